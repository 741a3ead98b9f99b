//! Metrics of steps.

use std::time::SystemTime;

use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_workflow::{Instance, Outcome, Step};
use prost::Message as _;
use prost_types::Timestamp;

use crate::workflow::engine::Engine;
use crate::workflow::metrics::Ended as Execution;

impl Engine {
    /// Counts a step: failed, or if the workflow has ended with it.
    pub(crate) fn count(
        &self,
        workflow: &str,
        ended: Option<OrchestrationStatus>,
        since: Option<Timestamp>,
        done: bool,
    ) {
        if !done {
            self.metrics.execution(workflow, Execution::Recoverable, None);
            return;
        }
        let Some(status) = ended else { return };
        let ended = match status {
            OrchestrationStatus::Completed => Execution::Success,
            OrchestrationStatus::Terminated => Execution::Terminated,
            _ => Execution::Failed,
        };
        let since = since.and_then(|since| SystemTime::try_from(since).ok());
        let elapsed = since.and_then(|since| since.elapsed().ok());
        self.metrics.execution(workflow, ended, elapsed);
    }

    /// Records the size of an instance to be sent to a worker, even if it is too large.
    pub(crate) fn count_size(&self, workflow: &str, instance: &Instance) {
        if let Some(ratio) = self.limit.ratio(instance.size()) {
            self.metrics.payload(workflow, ratio);
        }
    }

    /// Records the sizes of the activities of a step, even if they are too large.
    pub(crate) fn count_tasks(&self, workflow: &str, outcome: &Outcome) {
        for event in outcome.tasks.iter().chain(&outcome.refused) {
            if let Some(EventType::TaskScheduled(task)) = &event.event_type
                && let Some(ratio) = self.limit.ratio(event.encoded_len())
            {
                self.metrics.activity_payload(workflow, &task.name, ratio);
            }
        }
    }

    /// Records the start delay of an execution.
    pub(crate) fn count_begun(&self, step: &Step) {
        let Some(started) = &step.facts().started else {
            return;
        };
        let due = started.event.scheduled_start_timestamp.or(started.at);
        let due = due.and_then(|due| SystemTime::try_from(due).ok());
        if let Some(late) = due.and_then(|due| due.elapsed().ok()) {
            self.metrics.scheduled(&started.event.name, late);
        }
    }
}
