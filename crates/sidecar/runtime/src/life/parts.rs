//! The background parts of a sidecar: each registers its stage of shutdown, and the stages end one after
//! another.

use std::future::Future;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The stage of shutdown. All parts of a stage have ended before the next stage is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Sources of events stop. Precedes the delay of `--dapr-block-shutdown-duration`.
    Reading,
    /// Resources are no longer reloaded.
    Reload,
    /// Events in flight are handled; the app may still need the APIs.
    Events,
    /// Calls in flight end.
    Calls,
    /// Dependencies of calls close: components, name resolution.
    Components,
    /// Telemetry and certificate renewal.
    Background,
}

const STAGES: [Stage; 6] = [
    Stage::Reading,
    Stage::Reload,
    Stage::Events,
    Stage::Calls,
    Stage::Components,
    Stage::Background,
];

struct Part {
    stage: Stage,
    name: &'static str,
    stop: Box<dyn FnOnce() + Send>,
    drained: BoxFuture<'static, ()>,
}

/// All parts that must end before the process does.
#[derive(Default)]
pub struct Lifecycle {
    running: Vec<Part>,
    ending: Vec<&'static str>,
}

/// Tasks that run until `stop` is cancelled.
#[derive(Clone, Default)]
pub struct Tasks {
    /// The tracker of the tasks.
    pub tasks: TaskTracker,
    /// Stops them.
    pub stop: CancellationToken,
}

impl Lifecycle {
    /// Registers a part: `stop` ends it at `stage`, and `drained` completes once it has ended.
    pub fn add(
        &mut self,
        stage: Stage,
        name: &'static str,
        stop: impl FnOnce() + Send + 'static,
        drained: impl Future<Output = ()> + Send + 'static,
    ) {
        self.running.push(Part {
            stage,
            name,
            stop: Box::new(stop),
            drained: Box::pin(drained),
        });
    }

    /// Registers a part that consists of tasks.
    pub fn tasks(&mut self, stage: Stage, name: &'static str) -> Tasks {
        let tasks = Tasks::default();
        let (stop, waiting) = (tasks.clone(), tasks.tasks.clone());
        let stop = move || {
            stop.stop.cancel();
            stop.tasks.close();
        };
        self.add(stage, name, stop, async move { waiting.wait().await });
        tasks
    }

    /// Ends all parts up to and including a stage.
    pub async fn end(&mut self, last: Stage) {
        for stage in STAGES.into_iter().filter(|stage| *stage <= last) {
            let (now, later) = std::mem::take(&mut self.running)
                .into_iter()
                .partition(|part| part.stage == stage);
            self.running = later;
            self.end_all(now).await;
        }
    }

    async fn end_all(&mut self, parts: Vec<Part>) {
        let mut draining = FuturesUnordered::new();
        for part in parts {
            (part.stop)();
            self.ending.push(part.name);
            draining.push(async move {
                part.drained.await;
                part.name
            });
        }
        while let Some(ended) = draining.next().await {
            self.ending.retain(|name| *name != ended);
        }
    }

    /// Stops the parts of all stages without waiting, after [`Lifecycle::end`] was cancelled.
    pub fn stop_all(&mut self) {
        for part in std::mem::take(&mut self.running) {
            (part.stop)();
        }
    }

    /// The parts that were stopped but have not ended, if [`Lifecycle::end`] was cancelled.
    pub fn unfinished(&self) -> &[&'static str] {
        &self.ending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn stages_end_in_order() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut parts = Lifecycle::default();
        for (stage, name) in [
            (Stage::Background, "metrics"),
            (Stage::Calls, "http"),
            (Stage::Reading, "bindings"),
            (Stage::Calls, "grpc"),
        ] {
            let (stopped, drained) = (Arc::clone(&seen), Arc::clone(&seen));
            parts.add(
                stage,
                name,
                move || stopped.lock().unwrap().push(format!("stop {name}")),
                async move { drained.lock().unwrap().push(format!("end {name}")) },
            );
        }
        parts.end(Stage::Reading).await;
        assert_eq!(*seen.lock().unwrap(), ["stop bindings", "end bindings"]);
        parts.end(Stage::Background).await;
        let seen = seen.lock().unwrap().split_off(2);
        assert_eq!(
            seen[..2],
            ["stop http", "stop grpc"],
            "all parts of a stage are stopped together"
        );
        assert_eq!(seen[4..], ["stop metrics", "end metrics"]);
    }

    #[tokio::test]
    async fn names_unfinished_parts() {
        let mut parts = Lifecycle::default();
        let tasks = parts.tasks(Stage::Events, "fine");
        tasks.tasks.spawn(tasks.stop.clone().cancelled_owned());
        parts.add(Stage::Events, "stuck", || {}, std::future::pending());
        let later = parts.tasks(Stage::Background, "later");
        let ending = parts.end(Stage::Background);
        let limit = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, ending).await.is_err());
        assert_eq!(parts.unfinished(), ["stuck"]);
        parts.stop_all();
        assert!(later.stop.is_cancelled());
    }
}
