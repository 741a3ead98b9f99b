//! Hot reload of resources. A source reports their changes, and a [`Reconcile`] per kind updates the running
//! parts. The Configuration is reloaded in the same way, from separate sources.

mod components;
mod configuration;
mod desired;
mod endpoints;
mod folders;
mod mcp_servers;
mod operator;
mod resiliency;
mod subscriptions;
mod watch;
mod workflow_access;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use outrigger_blocks::Blocks;
use outrigger_blocks::invoke::Endpoints;
use outrigger_blocks_actors::workflow::access::WorkflowAccess;
use outrigger_mcp::McpServers;
use outrigger_resources::load::{Kind, Resource};
use outrigger_resources::{Configuration, Loaded, Problem};
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

/// A source of the app's resources: a list, and then changes.
#[async_trait]
pub trait Source: Send {
    /// Starts watching unless it has started. Returns true if something may have changed since the first
    /// list.
    async fn begin(&mut self) -> bool {
        false
    }

    /// All current resources.
    ///
    /// # Errors
    /// [`ListError`].
    async fn list(&mut self) -> Result<Loaded, ListError>;

    /// The next change. Cancel safe.
    async fn next(&mut self) -> Event;
}

/// A change reported by a source.
#[derive(Debug)]
pub enum Event {
    /// Unspecified changes; a new list is required.
    Relist,
    /// Resources were created or changed.
    Changed(Box<Loaded>),
    /// The resource of this kind and name was deleted.
    Ended(Kind, String),
}

/// Updates the running parts for one kind of resource, or for the Configuration.
pub trait Reconcile: Send {
    /// The desired state: all resources of a kind, such as `[Component]`, or the [`Configuration`].
    type Desired: ?Sized + Sync;

    /// A condition of `/v1.0/healthz`: the source of this kind is watched. `None` if health does not depend
    /// on it.
    const CONDITION: Option<&'static str> = None;

    /// Updates the running parts to the `desired` state, which may be unchanged.
    ///
    /// # Errors
    /// [`ReloadError`] if the process cannot continue.
    fn reconcile<'a>(&'a mut self, desired: &'a Self::Desired) -> BoxFuture<'a, Result<(), ReloadError>>;
}

/// The parts that depend on resources, for the reconcilers of all kinds.
pub struct Running {
    /// App id of the sidecar.
    pub app_id: String,
    /// Policies; built first, because all other parts are called under them.
    pub resilience: Arc<Resilience>,
    /// Components.
    pub components: Arc<Components>,
    /// HTTP endpoints.
    pub endpoints: Arc<Endpoints>,
    /// Resolves secrets and variables of HTTP endpoints.
    pub resolve: Resolve,
    /// Building blocks.
    pub blocks: Blocks,
    /// MCP servers.
    pub mcp: Arc<McpServers>,
    /// Access of other apps to workflows.
    pub workflow_access: Arc<WorkflowAccess>,
    /// Problems of resources.
    pub findings: Arc<Findings>,
}

/// A kind of resource that a sidecar starts with and reloads.
pub(crate) trait Reloaded: OperatorResource {
    /// The reconciler of the kind.
    type Reconciler: Reconcile<Desired = [Self]> + 'static;

    /// Applies the resources present at start.
    ///
    /// # Errors
    /// [`SidecarError`] if the sidecar cannot start with them.
    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>>;

    /// The reconciler, given the resources applied at start.
    fn reconciler(running: &Running, loaded: &[Self]) -> Self::Reconciler;
}

macro_rules! reloaded {
    ($($kind:ident($resource:path)),*) => {
        /// Applies the resources present at start, kind by kind; returns all errors.
        pub async fn start(running: &Running, loaded: &Loaded) -> Vec<SidecarError> {
            let mut errors = Vec::new();
            $(errors.extend(<$resource>::start(running, <$resource>::of(loaded)).await.err());)*
            errors
        }

        /// The reconcilers of all kinds, given the resources applied at start.
        pub fn reconcilers(running: &Running, loaded: &Loaded) -> Vec<Box<dyn Reconciler>> {
            vec![$(follow(<$resource>::reconciler(running, <$resource>::of(loaded)), loaded)),*]
        }
    };
}

outrigger_resources::for_each_kind!(reloaded);

/// Holds the desired state of a kind and has it reconciled.
#[async_trait]
pub trait Reconciler: Send {
    /// Whether it handles resources of this kind.
    fn is_for(&self, kind: Kind) -> bool;

    /// [`Reconcile::CONDITION`].
    fn condition(&self) -> Option<&'static str>;

    /// A source listed all of its resources.
    ///
    /// # Errors
    /// [`ReloadError`] if the process cannot continue.
    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError>;

    /// Resources of this or other kinds were created or changed.
    ///
    /// # Errors
    /// [`ReloadError`] if the process cannot continue.
    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError>;

    /// The resource with this name was deleted. [`Reconciler::is_for`] accepts its kind.
    ///
    /// # Errors
    /// [`ReloadError`] if the process cannot continue.
    async fn ended(&mut self, name: &str) -> Result<(), ReloadError>;
}

struct Followed<R, T> {
    running: R,
    desired: Desired<T>,
}

/// The reconciler of the parts that run by the resources of `loaded`.
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
        match T::KIND {
            // A file that is being written must not open access: only deleting it ends its policies.
            Kind::WorkflowAccessPolicy => {
                let unread = [&listed.broken[..], &listed.empty].concat();
                self.desired.list(resources, &unread);
            }
            _ => self.desired.list(resources, &listed.broken),
        }
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

/// The reconciler of the parts that run by the Configuration.
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

/// The logged problems of a source's list, which are logged again only if they change.
#[derive(Default)]
struct Shown(Vec<Problem>);

impl Shown {
    fn show(&mut self, problems: &[Problem]) {
        let new = problems.iter().filter(|problem| !self.0.contains(problem));
        crate::log_problems!(LOG, new);
        self.0 = problems.to_vec();
    }
}

/// Why a source has no list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The resources contradict each other; the text begins with their source.
    #[error("{0}")]
    Contradiction(String),
    /// A temporary failure; running parts are not affected.
    #[error("{0}")]
    Unavailable(String),
    /// The source does not know the kind; running parts are not affected.
    #[error("the source does not know the kind of resources")]
    Unknown,
}

/// Why the process cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The resources contradict each other.
    #[error("failed to load resources from {0}")]
    Contradiction(String),
    /// An MCP server is invalid, or cannot be registered.
    #[error("{0}")]
    McpServer(String),
    /// A required component did not start.
    #[error("{}", .0.summary())]
    Component(#[from] StartError),
}

/// Keeps the running parts in line with a source.
pub struct Reloader {
    source: Box<dyn Source>,
    reconcilers: Vec<Box<dyn Reconciler>>,
    /// Interval of full lists without reported changes.
    relist: Duration,
    /// Set once the source is watched.
    watched: Vec<Condition>,
    /// Receives the source's findings for the status page, of one kind or of all.
    told: Option<(Arc<Findings>, Option<Kind>)>,
}

impl Reloader {
    /// A reloader for parts started from resources that were read after the source began to watch.
    pub fn new(
        source: Box<dyn Source>,
        reconcilers: Vec<Box<dyn Reconciler>>,
        relist: Duration,
        readiness: &Readiness,
    ) -> Self {
        let names = reconcilers.iter().filter_map(|one| one.condition());
        Self {
            source,
            watched: names.map(|name| readiness.condition(name)).collect(),
            reconcilers,
            relist,
            told: None,
        }
    }

    /// Reports the source's findings to `findings`; `of` is its only kind, if it has just one.
    #[must_use]
    pub fn reporting_to(mut self, findings: Arc<Findings>, of: Option<Kind>) -> Self {
        self.told = Some((findings, of));
        self
    }

    /// Follows the source until `stop`. A change in progress is completed.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ReloadError> {
        let mut relist = tokio::time::interval_at(Instant::now() + self.relist, self.relist);
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
                // For example after a rollback of the operator, which must not remove access policies.
                Err(ListError::Unknown) => {}
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use outrigger_resources::WorkflowAccessPolicy;
    use tokio::sync::oneshot;

    use super::*;

    const RELIST: Duration = Duration::from_secs(60);

    /// A source that starts watching on a signal and reports nothing.
    struct Silent(oneshot::Receiver<()>);

    #[async_trait]
    impl Source for Silent {
        async fn begin(&mut self) -> bool {
            // A dropped sender starts it too.
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
    async fn kind_is_ready_when_source_is_watched() {
        let readiness = Readiness::default();
        let stop = CancellationToken::new();
        let reloader = |kind, condition| {
            let (begin, begun) = oneshot::channel();
            let reconcilers: Vec<Box<dyn Reconciler>> = vec![Box::new(Waited(kind, condition))];
            let reloader = Reloader::new(Box::new(Silent(begun)), reconcilers, RELIST, &readiness);
            (begin, tokio::spawn(reloader.run(stop.clone())))
        };
        let (endpoints, _) = reloader(Kind::HttpEndpoint, None);
        let (components, _) = reloader(Kind::Component, Some("component-reconciler"));
        let (subscriptions, _) = reloader(Kind::Subscription, Some("subscription-reconciler"));
        // Time is paused until every task waits, so a sleep lets all tasks make progress.
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

    /// A source without changes, which counts its lists.
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
    async fn lists_silent_source_repeatedly() {
        let (stop, lists) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let source = Box::new(Unchanging(Arc::clone(&lists)));
        let reloader = Reloader::new(source, Vec::new(), RELIST, &Readiness::default());
        let running = tokio::spawn(reloader.run(stop.clone()));
        tokio::time::sleep(RELIST * 3 + RELIST / 2).await;
        assert_eq!(lists.load(Ordering::Relaxed), 3);
        stop.cancel();
        running.await.unwrap().unwrap();
    }
    /// Records the names of the policies applied last.
    struct Recorded(Arc<Mutex<Vec<String>>>);

    impl Reconcile for Recorded {
        type Desired = [WorkflowAccessPolicy];

        fn reconcile<'a>(&'a mut self, desired: &'a Self::Desired) -> BoxFuture<'a, Result<(), ReloadError>> {
            *self.0.lock().unwrap() = desired.iter().map(|policy| policy.name.clone()).collect();
            Box::pin(std::future::ready(Ok(())))
        }
    }

    #[tokio::test]
    async fn emptied_file_keeps_access_policies() {
        let yaml = "apiVersion: dapr.io/v1alpha1\nkind: WorkflowAccessPolicy\nmetadata: {name: p}\nspec: {rules: []}\n";
        let loaded = outrigger_resources::load::text(yaml, "app").unwrap();
        let file = loaded.workflow_access_policies[0].source.file.clone();
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let mut reconciler = follow::<WorkflowAccessPolicy, _>(Recorded(Arc::clone(&applied)), &loaded);
        let emptied = Loaded {
            empty: vec![file],
            ..Loaded::default()
        };
        reconciler.listed(&emptied).await.unwrap();
        assert_eq!(*applied.lock().unwrap(), ["p"]);
        reconciler.listed(&Loaded::default()).await.unwrap();
        assert!(applied.lock().unwrap().is_empty(), "its file is deleted");
    }
}
