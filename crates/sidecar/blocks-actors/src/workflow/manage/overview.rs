//! The workflows of this sidecar as far as they are in memory, for the status page.

use serde_json::{Map, Value, json};

use super::status::{text, time};
use crate::workflow::service::Workflows;

/// A pending task of an instance, as JSON: `instanceID`, `runtimeStatus` and the fields of a wait.
pub type WorkflowWait = Value;
/// A pending work item, as JSON: `instanceID`, `kind` (`turn` or `activity`), the activity's `id`, and `why`
/// it is pending.
pub type WorkflowWork = Value;

/// The workflows of this sidecar.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Connected workers.
    pub workers: usize,
    /// Work items that no worker has taken.
    pub waiting: usize,
    /// Pending work items.
    pub work: Vec<WorkflowWork>,
    /// Pending tasks of cached instances, least recently used first.
    pub waits: Vec<WorkflowWait>,
    /// Failing instances, as JSON: `instanceID`, `why`, `failures`, `lastFailure`.
    pub failing: Vec<Value>,
}

impl Workflows {
    /// Up to `most` entries of each kind. Instances that are only stored are not included.
    pub fn overview(&self, most: usize) -> Overview {
        let wanted = self.workers().queue.wanted(most).into_iter();
        let work = wanted.map(|(instance, task, progress)| {
            let (kind, why) = match task {
                Some(_) => (
                    "activity",
                    text(progress, "activities", "maxConcurrentActivityInvocations"),
                ),
                None => (
                    "turn",
                    text(progress, "steps", "maxConcurrentWorkflowInvocations"),
                ),
            };
            json!({"instanceID": instance, "kind": kind, "id": task, "why": why})
        });
        let failing = self.instance_failures.all(most).into_iter().map(|(id, failure)| {
            json!({
                "instanceID": id,
                "why": failure.why,
                "failures": failure.count,
                "lastFailure": time(Some(failure.at.into())),
            })
        });
        Overview {
            workers: self.workers().connected(),
            waiting: self.workers().queue.waiting(),
            work: work.collect(),
            waits: self.known_waits(most),
            failing: failing.collect(),
        }
    }

    fn known_waits(&self, most: usize) -> Vec<WorkflowWait> {
        let Some(instances) = self.instances() else {
            return Vec::new();
        };
        let known = instances.waits(most).into_iter().flat_map(|known| {
            let status = known.status.as_str_name();
            let status = status.trim_start_matches("ORCHESTRATION_STATUS_");
            known.waits.into_iter().map(move |wait| {
                let mut members = Map::new();
                members.insert("instanceID".to_owned(), json!(known.id));
                members.insert("runtimeStatus".to_owned(), json!(status));
                if let Value::Object(described) = self.described_wait(&known.id, known.generation, wait) {
                    // A child has its own instance id.
                    for (name, value) in described {
                        let name = match name.as_str() {
                            "instanceID" => "child".to_owned(),
                            _ => name,
                        };
                        members.insert(name, value);
                    }
                }
                Value::Object(members)
            })
        });
        known.take(most).collect()
    }
}
