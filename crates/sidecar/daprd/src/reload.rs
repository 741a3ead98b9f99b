//! Resources that come, change and go while the sidecar runs: a source tells of them, and for each kind a [`Reconcile`]
//! brings what runs to what is wanted. So it does for the Configuration, which has sources of its own.

mod components;
mod configuration;
mod desired;
mod endpoints;
mod folders;
mod operator;
mod resiliency;
mod subscriptions;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use outrigger_blocks::Blocks;
use outrigger_blocks::invoke::Endpoints;
use outrigger_resources::load::{Kind, Resource};
use outrigger_resources::{Configuration, Loaded};
use outrigger_runtime::components::{Components, StartError};
use outrigger_runtime::life::{Condition, Readiness};
use outrigger_runtime::resilience::Resilience;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use desired::Desired;

use crate::operator::OperatorResource;
use crate::sidecar::SidecarError;
use crate::status::findings::Findings;

pub use configuration::{ConfigurationFiles, ConfigurationReconciler, OperatorConfiguration};
pub use endpoints::Resolve;
pub use folders::FolderSource;
pub use operator::OperatorSource;

const LOG: &str = "dapr.runtime.hotreload";
/// How often everything is listed again although nothing was reported.
const RELIST: Duration = Duration::from_secs(60);

/// Where resources come from: all of them, and then what changes. Only those of this app are given.
#[async_trait]
pub trait Source: Send {
    /// Begins to watch, where it has not yet. True when something may have changed since the first list was made.
    async fn begin(&mut self) -> bool {
        false
    }

    /// Everything there is now.
    ///
    /// # Errors
    /// [`ListError`].
    async fn list(&mut self) -> Result<Loaded, ListError>;

    /// Waits for the next change. May be dropped while it waits.
    async fn next(&mut self) -> Event;
}

/// What a source reports.
#[derive(Debug)]
pub enum Event {
    /// Something changed: only a new list tells what.
    Relist,
    /// These resources came or changed.
    Changed(Box<Loaded>),
    /// The resource of this kind and name ended.
    Ended(Kind, String),
}

/// What runs of one kind of resource, or by the Configuration.
pub trait Reconcile: Send {
    /// What it runs by: all resources of a kind, as `[Component]`, or the [`Configuration`].
    type Desired: ?Sized + Sync;

    /// What `/v1.0/healthz` waits for: that a source of this kind is watched. None: health does not depend on it.
    const CONDITION: Option<&'static str> = None;

    /// Brings what runs to what is `desired`. That may be the same as before.
    ///
    /// # Errors
    /// [`ReloadError`] when the process cannot go on.
    fn reconcile<'a>(&'a mut self, desired: &'a Self::Desired) -> BoxFuture<'a, Result<(), ReloadError>>;
}

/// What runs by resources: what the reconcilers of all kinds are made of.
pub struct Running {
    /// The app whose sidecar it is.
    pub app_id: String,
    /// Policies, built from the resources before anything that is called under them.
    pub resilience: Arc<Resilience>,
    /// Components.
    pub components: Arc<Components>,
    /// HTTP endpoints.
    pub endpoints: Arc<Endpoints>,
    /// What HTTP endpoints take from elsewhere.
    pub resolve: Resolve,
    /// Building blocks.
    pub blocks: Blocks,
    /// What is wrong with resources.
    pub findings: Arc<Findings>,
}

/// A kind of resource that a sidecar starts with and reloads.
pub(crate) trait Reloaded: OperatorResource {
    /// What brings it to what is desired.
    type Reconciler: Reconcile<Desired = [Self]> + 'static;

    /// Applies the resources that the sidecar starts with.
    ///
    /// # Errors
    /// [`SidecarError`] when the sidecar cannot start with them.
    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>>;

    /// The reconciler, for what was started with `loaded`.
    fn reconciler(running: &Running, loaded: &[Self]) -> Self::Reconciler;
}

macro_rules! reloaded {
    ($($kind:ident($resource:path)),*) => {
        /// Applies the resources that a sidecar starts with, kind by kind; gives everything that is wrong.
        pub async fn start(running: &Running, loaded: &Loaded) -> Vec<SidecarError> {
            let mut errors = Vec::new();
            $(errors.extend(<$resource>::start(running, <$resource>::of(loaded)).await.err());)*
            errors
        }

        /// The reconcilers of all kinds, for what was started with `loaded`.
        pub fn reconcilers(running: &Running, loaded: &Loaded) -> Vec<Box<dyn Reconciler>> {
            vec![$(follow(<$resource>::reconciler(running, <$resource>::of(loaded)), loaded)),*]
        }
    };
}

outrigger_resources::for_each_kind!(reloaded);

/// What keeps what is desired, and has what runs of it reconciled.
#[async_trait]
pub trait Reconciler: Send {
    /// Whether it is for resources of this kind.
    fn is_for(&self, kind: Kind) -> bool;

    /// [`Reconcile::CONDITION`].
    fn condition(&self) -> Option<&'static str>;

    /// A source listed all that it has.
    ///
    /// # Errors
    /// [`ReloadError`] when the process cannot go on.
    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError>;

    /// Resources came or changed, of this kind or others.
    ///
    /// # Errors
    /// [`ReloadError`] when the process cannot go on.
    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError>;

    /// The resource with this name ended; its kind is one that [`Reconciler::is_for`] answers for.
    ///
    /// # Errors
    /// [`ReloadError`] when the process cannot go on.
    async fn ended(&mut self, name: &str) -> Result<(), ReloadError>;
}

struct Followed<R, T> {
    running: R,
    desired: Desired<T>,
}

/// The reconciler of what runs by the resources of `loaded`.
fn follow<T: Resource, R: Reconcile<Desired = [T]> + 'static>(
    running: R,
    loaded: &Loaded,
) -> Box<dyn Reconciler> {
    Box::new(Followed {
        running,
        desired: Desired::new(T::of(loaded).clone()),
    })
}

#[async_trait]
impl<T: Resource, R: Reconcile<Desired = [T]>> Reconciler for Followed<R, T> {
    fn is_for(&self, kind: Kind) -> bool {
        kind == T::KIND
    }

    fn condition(&self) -> Option<&'static str> {
        R::CONDITION
    }

    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError> {
        let resources = T::of(listed).clone();
        self.desired.list(resources, &listed.broken);
        self.running.reconcile(self.desired.all()).await
    }

    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError> {
        for resource in T::of(changed) {
            self.desired.put(resource.clone());
        }
        self.running.reconcile(self.desired.all()).await
    }

    async fn ended(&mut self, name: &str) -> Result<(), ReloadError> {
        self.desired.remove(name);
        self.running.reconcile(self.desired.all()).await
    }
}

struct FollowedConfiguration<R>(R);

/// The reconciler of what runs by the Configuration.
pub fn follow_configuration<R: Reconcile<Desired = Configuration> + 'static>(
    running: R,
) -> Box<dyn Reconciler> {
    Box::new(FollowedConfiguration(running))
}

#[async_trait]
impl<R: Reconcile<Desired = Configuration>> Reconciler for FollowedConfiguration<R> {
    fn is_for(&self, _: Kind) -> bool {
        false
    }

    fn condition(&self) -> Option<&'static str> {
        R::CONDITION
    }

    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError> {
        match &listed.configuration {
            Some(configuration) => self.0.reconcile(configuration).await,
            None => Ok(()),
        }
    }

    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError> {
        self.listed(changed).await
    }

    async fn ended(&mut self, _: &str) -> Result<(), ReloadError> {
        Ok(())
    }
}

/// Why a source has no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The resources contradict each other; begins with where they come from.
    #[error("{0}")]
    Contradiction(String),
    /// For the time being; what runs goes on.
    #[error("{0}")]
    Unavailable(String),
}

/// Why the process cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The resources contradict each other.
    #[error("failed to load resources from {0}")]
    Contradiction(String),
    /// A component that may not be missing did not start.
    #[error("{}", .0.summary())]
    Component(#[from] StartError),
}

/// Brings the resources of a sidecar to what a source wants, again and again.
pub struct Reloader {
    source: Box<dyn Source>,
    reconcilers: Vec<Box<dyn Reconciler>>,
    /// Met once the source is watched.
    watched: Vec<Condition>,
    /// Where the page of the status finds what the source said, of all kinds or of one.
    told: Option<(Arc<Findings>, Option<Kind>)>,
}

impl Reloader {
    /// For what was started from resources that were read after the source began to watch.
    pub fn new(
        source: Box<dyn Source>,
        reconcilers: Vec<Box<dyn Reconciler>>,
        readiness: &Readiness,
    ) -> Self {
        let names = reconcilers.iter().filter_map(|one| one.condition());
        Self {
            source,
            watched: names.map(|name| readiness.condition(name)).collect(),
            reconcilers,
            told: None,
        }
    }

    /// Puts what the source says of resources into `findings`; `of`: the only kind that it has.
    #[must_use]
    pub fn telling(mut self, findings: Arc<Findings>, of: Option<Kind>) -> Self {
        self.told = Some((findings, of));
        self
    }

    /// Follows the source until `stop`; a change that has begun is finished.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ReloadError> {
        let mut relist = tokio::time::interval_at(Instant::now() + RELIST, RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let Some(changed) = stop.run_until_cancelled(self.source.begin()).await else {
            return Ok(());
        };
        if changed {
            self.handle(Event::Relist).await?;
        }
        for condition in &self.watched {
            condition.met();
        }
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = relist.tick() => Event::Relist,
                event = self.source.next() => event,
            };
            self.handle(event).await?;
        }
    }

    async fn handle(&mut self, event: Event) -> Result<(), ReloadError> {
        match event {
            Event::Relist => match self.source.list().await {
                Ok(listed) => {
                    if let Some((findings, of)) = &self.told {
                        findings.listed(*of, &listed);
                    }
                    for reconciler in &mut self.reconcilers {
                        reconciler.listed(&listed).await?;
                    }
                }
                Err(ListError::Contradiction(text)) => return Err(ReloadError::Contradiction(text)),
                Err(ListError::Unavailable(text)) => {
                    tracing::error!(target: LOG, "{text}; running resources are left unchanged");
                }
            },
            Event::Changed(changed) => {
                for reconciler in &mut self.reconcilers {
                    reconciler.changed(&changed).await?;
                }
            }
            Event::Ended(kind, name) => {
                for reconciler in self.reconcilers.iter_mut().filter(|one| one.is_for(kind)) {
                    reconciler.ended(&name).await?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    /// A source that is watched once it is told to be, and has nothing to report.
    struct Silent(oneshot::Receiver<()>);

    #[async_trait]
    impl Source for Silent {
        async fn begin(&mut self) -> bool {
            // Whoever drops the other half lets it begin, too.
            let _told = (&mut self.0).await;
            false
        }

        async fn list(&mut self) -> Result<Loaded, ListError> {
            Ok(Loaded::default())
        }

        async fn next(&mut self) -> Event {
            pending().await
        }
    }

    struct Waited(Kind, Option<&'static str>);

    #[async_trait]
    impl Reconciler for Waited {
        fn is_for(&self, kind: Kind) -> bool {
            self.0 == kind
        }

        fn condition(&self) -> Option<&'static str> {
            self.1
        }

        async fn listed(&mut self, _: &Loaded) -> Result<(), ReloadError> {
            Ok(())
        }

        async fn changed(&mut self, _: &Loaded) -> Result<(), ReloadError> {
            Ok(())
        }

        async fn ended(&mut self, _: &str) -> Result<(), ReloadError> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_ready_when_its_own_source_is_watched() {
        let readiness = Readiness::default();
        let stop = CancellationToken::new();
        let reloader = |kind, condition| {
            let (begin, begun) = oneshot::channel();
            let reconcilers: Vec<Box<dyn Reconciler>> = vec![Box::new(Waited(kind, condition))];
            let reloader = Reloader::new(Box::new(Silent(begun)), reconcilers, &readiness);
            (begin, tokio::spawn(reloader.run(stop.clone())))
        };
        let (endpoints, _) = reloader(Kind::HttpEndpoint, None);
        let (components, _) = reloader(Kind::Component, Some("component-reconciler"));
        let (subscriptions, _) = reloader(Kind::Subscription, Some("subscription-reconciler"));
        // Time stands still until every task waits, so that a pause lets all of them go as far as they can.
        let settled = || tokio::time::sleep(Duration::from_millis(1));
        endpoints.send(()).unwrap();
        settled().await;
        assert_eq!(
            readiness.unready(),
            ["component-reconciler", "subscription-reconciler"]
        );
        components.send(()).unwrap();
        settled().await;
        assert_eq!(readiness.unready(), ["subscription-reconciler"]);
        subscriptions.send(()).unwrap();
        settled().await;
        assert!(readiness.unready().is_empty());
        stop.cancel();
    }

    /// A source that reports nothing, and counts how often it is listed.
    struct Unchanging(Arc<AtomicUsize>);

    #[async_trait]
    impl Source for Unchanging {
        async fn list(&mut self) -> Result<Loaded, ListError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Loaded::default())
        }

        async fn next(&mut self) -> Event {
            pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_reports_nothing_is_listed_each_minute() {
        let (stop, lists) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let source = Box::new(Unchanging(Arc::clone(&lists)));
        let reloader = Reloader::new(source, Vec::new(), &Readiness::default());
        let running = tokio::spawn(reloader.run(stop.clone()));
        tokio::time::sleep(RELIST * 3 + RELIST / 2).await;
        assert_eq!(lists.load(Ordering::Relaxed), 3);
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
