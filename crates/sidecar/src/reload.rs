//! Resources that come, change and go while the sidecar runs: a source tells of them, and for each kind a [`Reconcile`]
//! brings what runs to what is wanted.

mod components;
mod desired;
mod endpoints;
mod folders;
mod operator;
mod subscriptions;
mod watch;

use std::time::Duration;

use async_trait::async_trait;
use outrigger_resources::Loaded;
use outrigger_resources::load::Kind;
use outrigger_runtime::components::StartError;
use outrigger_runtime::life::{Condition, Readiness};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub use components::ComponentReconciler;
pub use endpoints::{EndpointReconciler, Resolve};
pub use folders::FolderSource;
pub use operator::OperatorSource;
pub use subscriptions::SubscriptionReconciler;

const LOG: &str = "dapr.runtime.hotreload";
/// How often everything is listed again although nothing was reported.
const RELIST: Duration = Duration::from_secs(60);
/// What must be ready for `/v1.0/healthz` where hot reload is on.
const CONDITIONS: [&str; 2] = ["component-reconciler", "subscription-reconciler"];

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

/// Brings what runs to what is wanted, for one kind of resource.
#[async_trait]
pub trait Reconcile: Send {
    /// Of which kind.
    fn kind(&self) -> Kind;

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

    /// The resource of this kind with this name ended.
    ///
    /// # Errors
    /// [`ReloadError`] when the process cannot go on.
    async fn ended(&mut self, name: &str) -> Result<(), ReloadError>;
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
    #[error(transparent)]
    Component(#[from] StartError),
}

/// Brings the resources of a sidecar to what a source wants, again and again.
pub struct Reloader {
    source: Box<dyn Source>,
    reconcilers: Vec<Box<dyn Reconcile>>,
    /// Met once the source is watched.
    watched: Vec<Condition>,
}

impl Reloader {
    /// For what was started from resources that were read after the source began to watch.
    pub fn new(source: Box<dyn Source>, reconcilers: Vec<Box<dyn Reconcile>>, readiness: &Readiness) -> Self {
        let has_components = reconcilers.iter().any(|one| one.kind() == Kind::Component);
        let names = if has_components { &CONDITIONS[..] } else { &[] };
        Self {
            source,
            reconcilers,
            watched: names.iter().map(|name| readiness.condition(name)).collect(),
        }
    }

    /// Follows the source until `stop`; a change that has begun is finished.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ReloadError> {
        if !self.watched.is_empty() {
            tracing::info!(
                target: LOG,
                "Hot reloading enabled. Daprd will reload 'Component', 'HTTPEndpoint' and 'Subscription' resources on \
                 change."
            );
        }
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
                for reconciler in self.reconcilers.iter_mut().filter(|one| one.kind() == kind) {
                    reconciler.ended(&name).await?;
                }
            }
        }
        Ok(())
    }
}
