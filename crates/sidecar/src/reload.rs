//! Hot reload: components that come, change and go while the sidecar runs.

mod folders;
mod operator;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outrigger_resources::Component;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub use folders::FolderSource;
pub use operator::OperatorSource;

use crate::components::{Components, StartError};
use crate::life::Readiness;

const LOG: &str = "dapr.runtime.hotreload";
/// How often everything is listed again although nothing was reported.
const RELIST: Duration = Duration::from_secs(60);
/// What must be ready for `/v1.0/healthz` where hot reload is on.
pub const TARGETS: [&str; 2] = ["component-reconciler", "subscription-reconciler"];

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
    async fn list(&mut self) -> Result<Listing, ListError>;

    /// Waits for the next change. May be dropped while it waits.
    async fn next(&mut self) -> Event;
}

/// Everything a source has.
#[derive(Debug, Default)]
pub struct Listing {
    /// The components.
    pub components: Vec<Component>,
    /// Files that cannot be read at present: what was read from them before is still wanted.
    pub broken: Vec<PathBuf>,
}

/// What a source reports.
#[derive(Debug)]
pub enum Event {
    /// Something changed: only a new list tells what.
    Relist,
    /// A component came or changed.
    Put(Box<Component>),
    /// The component of this name ended.
    Ended(String),
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

/// Brings the components of a sidecar to what a source wants, again and again.
pub struct Reloader {
    source: Box<dyn Source>,
    components: Arc<Components>,
    wanted: Vec<Component>,
}

impl Reloader {
    /// For components that were started from `wanted`, which was read after the source began to watch.
    pub fn new(source: Box<dyn Source>, components: Arc<Components>, wanted: Vec<Component>) -> Self {
        Self {
            source,
            components,
            wanted,
        }
    }

    /// Follows the source until `stop`; a change that has begun is finished.
    ///
    /// # Errors
    /// [`ReloadError`].
    pub async fn run(mut self, readiness: Readiness, stop: CancellationToken) -> Result<(), ReloadError> {
        tracing::info!(
            target: LOG,
            "Hot reloading enabled. Daprd will reload 'Component' resources on change."
        );
        let mut relist = tokio::time::interval_at(Instant::now() + RELIST, RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        if self.source.begin().await {
            self.handle(Event::Relist).await?;
        }
        for target in TARGETS {
            readiness.ready(target);
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
                Ok(listing) => self.wanted = with_broken(listing, &self.wanted),
                Err(ListError::Contradiction(text)) => return Err(ReloadError::Contradiction(text)),
                Err(ListError::Unavailable(text)) => {
                    tracing::error!(target: LOG, "{text}; components stay as they are");
                    return Ok(());
                }
            },
            Event::Put(component) => {
                self.wanted.retain(|known| known.name != component.name);
                self.wanted.push(*component);
            }
            Event::Ended(name) => self.wanted.retain(|known| known.name != name),
        }
        self.components.reconcile(&self.wanted).await?;
        Ok(())
    }
}

/// What is listed and, of what was wanted before, what stood in files that cannot be read now.
fn with_broken(listing: Listing, before: &[Component]) -> Vec<Component> {
    let Listing {
        mut components,
        broken,
    } = listing;
    for old in before {
        let listed = components.iter().any(|component| component.name == old.name);
        if !listed && broken.contains(&old.source.file) {
            tracing::warn!(
                target: LOG,
                "{} cannot be read: component {} stays as it is",
                old.source.file.display(),
                old.log_name()
            );
            components.push(old.clone());
        }
    }
    components
}

#[cfg(test)]
mod tests {
    use outrigger_resources::Source as Place;
    use outrigger_resources::load::text;

    use super::*;

    fn component(name: &str, file: &str) -> Component {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: state.x\n"
        );
        let mut component = text(&yaml, "app").unwrap().components.remove(0);
        component.source = Place::new(file, 1);
        component
    }

    #[test]
    fn what_stood_in_a_broken_file_stays() {
        let before = [
            component("kept", "broken"),
            component("moved", "broken"),
            component("gone", "readable"),
        ];
        let listing = Listing {
            components: vec![component("moved", "readable")],
            broken: vec!["broken".into()],
        };
        let wanted = with_broken(listing, &before);
        let names: Vec<_> = wanted.iter().map(|c| (c.name.as_str(), &c.source.file)).collect();
        assert_eq!(names, [("moved", &"readable".into()), ("kept", &"broken".into())]);
    }
}
