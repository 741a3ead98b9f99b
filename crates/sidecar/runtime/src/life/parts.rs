//! The parts of a sidecar that run beside calls: each registers when it ends and how, and all end stage by stage.

use std::future::Future;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// When a part ends, in this order. All parts of a stage have ended before one of the next is told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No events are read any more. Comes before the time that `--dapr-block-shutdown-duration` leaves.
    Reading,
    /// Resources stay as they are.
    Reload,
    /// Events that were read are handled; for that the app may need the APIs.
    Events,
    /// Calls in flight end.
    Calls,
    /// What calls used is closed: components, name resolution.
    Components,
    /// What tells about the process, and keeps its certificate fresh.
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

/// Everything that has to end before the process does.
#[derive(Default)]
pub struct Lifecycle {
    running: Vec<Part>,
    ending: Vec<&'static str>,
}

/// Tasks that run until `stop` is cancelled.
#[derive(Clone, Default)]
pub struct Tasks {
    /// Their owner.
    pub tasks: TaskTracker,
    /// Ends them.
    pub stop: CancellationToken,
}

impl Lifecycle {
    /// Registers a part: at `stage` it is told to end by `stop`, and has ended when `drained` has.
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

    /// Ends all parts up to and with a stage.
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

    /// The parts that were told to end and have not, when [`Lifecycle::end`] was given up.
    pub fn unfinished(&self) -> &[&'static str] {
        &self.ending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn stages_end_one_after_the_other() {
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
            "all of a stage are told at once"
        );
        assert_eq!(seen[4..], ["stop metrics", "end metrics"]);
    }

    #[tokio::test]
    async fn what_does_not_end_is_named() {
        let mut parts = Lifecycle::default();
        let tasks = parts.tasks(Stage::Events, "fine");
        tasks.tasks.spawn(tasks.stop.clone().cancelled_owned());
        parts.add(Stage::Events, "stuck", || {}, std::future::pending());
        let ending = parts.end(Stage::Background);
        let limit = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(limit, ending).await.is_err());
        assert_eq!(parts.unfinished(), ["stuck"]);
    }
}
