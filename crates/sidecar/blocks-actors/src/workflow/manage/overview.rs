//! What this sidecar knows of its workflows without reading a store, for the page of the status.

use serde_json::{Map, Value, json};

use super::status::{text, time};
use crate::workflow::service::Workflows;

/// Something that an instance waits for, as JSON: `instanceID`, `runtimeStatus`, and what the API tells of a wait.
pub type WorkflowWait = Value;
/// Work for a worker, as JSON: `instanceID`, `kind` (`turn` or `activity`), `id` of an activity, and `why` it is not done.
pub type WorkflowWork = Value;

/// What is known of the workflows of this sidecar.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Workers that are connected.
    pub workers: usize,
    /// Pieces of work that no worker has taken.
    pub waiting: usize,
    /// Work that is wanted.
    pub work: Vec<WorkflowWork>,
    /// What instances in memory wait for, the one first whose turn was longest ago.
    pub waits: Vec<WorkflowWait>,
    /// Instances whose runs fail, as JSON: `instanceID`, `why`, `failures`, `lastFailure`.
    pub failing: Vec<Value>,
}

impl Workflows {
    /// What is known here, `most` entries of each kind. Instances that sleep are in the store alone.
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
                    text(progress, "turns", "maxConcurrentWorkflowInvocations"),
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
                    // An instance that is waited for has an id of its own.
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
