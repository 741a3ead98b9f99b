//! The status of an instance, and its pending tasks.

use std::collections::HashMap;

use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_wire::durabletask::{HistoryEvent, OrchestrationStatus};
use outrigger_wire::runtime::v1::GetWorkflowResponse;
use outrigger_workflow::Wait;
use outrigger_workflow::names::activity_id;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::error::{Action, InstanceId, WorkflowError};
use crate::actors::ActorError;
use crate::workflow::error::is_final;
use crate::workflow::service::Workflows;
use crate::workflow::worker::queue::Progress;

/// The pending tasks of an instance, with their progress.
#[derive(Clone, Debug)]
pub struct Waits {
    id: String,
    status: OrchestrationStatus,
    host: Option<String>,
    workers: usize,
    work: usize,
    waits: Vec<Value>,
}

impl Waits {
    /// Renders JSON.
    pub fn to_json(&self) -> Value {
        let status = self
            .status
            .as_str_name()
            .trim_start_matches("ORCHESTRATION_STATUS_");
        json!({
            "instanceID": self.id,
            "runtimeStatus": status,
            "host": self.host,
            "workersOfThisSidecar": self.workers,
            "workWaitingHere": self.work,
            "waitsFor": self.waits,
        })
    }
}

impl Workflows {
    /// The pending tasks of an instance of this app; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn waits(&self, id: &str) -> Result<Option<Waits>, ActorError> {
        let Some(instance) = self.load(id).await? else {
            return Ok(None);
        };
        let status = instance.status();
        let host = self.actors.host_of(&self.engine.types.workflow, id);
        let mut waits: Vec<Value> = Vec::new();
        if host.is_none() && !is_final(status) {
            waits.push(json!({
                "kind": "host",
                "why": "no sidecar hosts this app's workflows: none has a worker connected",
            }));
        }
        let described = instance
            .waits()
            .into_iter()
            .map(|wait| self.described_wait(id, instance.generation, wait));
        waits.extend(described);
        // A fired timer is not stored before its step.
        let is_tried =
            self.workers().queue.step_progress(id).is_some() || self.instance_failures.of(id).is_some();
        if is_tried && !is_final(status) && !waits.iter().any(|wait| wait["kind"] == "turn") {
            waits.push(self.described_wait(id, instance.generation, Wait::Step { events: 0, due: None }));
        }
        Ok(Some(Waits {
            id: id.to_owned(),
            status,
            host,
            workers: self.workers().connected(),
            work: self.workers().queue.waiting(),
            waits,
        }))
    }

    /// The status of an instance; `None` if it does not exist.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_get(&self, of: InstanceId<'_>) -> Result<Option<GetWorkflowResponse>, WorkflowError> {
        let id = of.id;
        self.ready(id)?;
        let found = match self.other_app(of.app)? {
            Some(app) => self.get_elsewhere(app, id).await,
            None => self.get(id).await,
        };
        let found = found.map_err(|error| {
            let cause = format!(
                "failed to get workflow metadata for '{id}': failed to fetch workflow metadata: {error}"
            );
            WorkflowError::Failed(Action::Get, id.to_owned(), cause)
        })?;
        Ok(found.map(described))
    }

    /// The pending tasks of an instance; `None` if it does not exist.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_waits(&self, id: &str) -> Result<Option<Waits>, WorkflowError> {
        self.ready(id)?;
        let failed = |error: ActorError| WorkflowError::Failed(Action::Get, id.to_owned(), error.to_string());
        self.waits(id).await.map_err(failed)
    }

    /// The history of an instance; `None` if it does not exist.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_history(&self, id: &str) -> Result<Option<Vec<HistoryEvent>>, WorkflowError> {
        self.ready(id)?;
        let failed = |error: ActorError| WorkflowError::Failed(Action::Get, id.to_owned(), error.to_string());
        self.history(id).await.map_err(failed)
    }

    pub(crate) fn described_wait(&self, instance: &str, generation: u64, wait: Wait) -> Value {
        let types = |app: Option<&str>| self.engine.types_of(app);
        let mut members = Map::new();
        let mut set = |name: &str, value: Value| {
            if !value.is_null() {
                members.insert(name.to_owned(), value);
            }
        };
        match wait {
            Wait::Step { events, due } => {
                set("kind", json!("turn"));
                set("events", json!(events));
                set("due", time(due));
                // Only the hosting sidecar knows failures.
                if let Some(failure) = self.instance_failures.of(instance) {
                    set("why", json!(failure.why));
                    set("failures", json!(failure.count));
                    set("lastFailure", time(Some(failure.at.into())));
                } else if let Some(progress) = self.workers().queue.step_progress(instance) {
                    let why = text(progress, "steps", "maxConcurrentWorkflowInvocations");
                    set("why", json!(why));
                }
            }
            Wait::Activity { id, name, app, since } => {
                let actor = activity_id(instance, id, generation);
                let host = self.actors.host_of(&types(app.as_deref()).activity, &actor);
                set("kind", json!("activity"));
                set("id", json!(id));
                set("name", json!(name));
                set("since", time(since));
                if host.is_none() {
                    let app = app.as_deref().unwrap_or(&self.engine.app_id);
                    set(
                        "why",
                        json!(format!("no sidecar of app '{app}' has a worker connected")),
                    );
                } else if let Some(progress) = self.workers().queue.activity_progress(instance, id) {
                    let why = text(progress, "activities", "maxConcurrentActivityInvocations");
                    set("why", json!(why));
                }
                set("appID", json!(app));
                set("host", json!(host));
            }
            Wait::Child {
                id,
                name,
                instance,
                app,
                since,
            } => {
                let host = self.actors.host_of(&types(app.as_deref()).workflow, &instance);
                set("kind", json!("child"));
                set("id", json!(id));
                set("name", json!(name));
                set("instanceID", json!(instance));
                set("appID", json!(app));
                set("since", time(since));
                set("host", json!(host));
            }
            Wait::Timer { id, due } => {
                set("kind", json!("timer"));
                set("id", json!(id));
                set("due", time(due));
            }
            Wait::Event { name, until } => {
                set("kind", json!("event"));
                set("name", json!(name));
                set("until", time(until));
            }
            Wait::Resume => set("kind", json!("resume")),
            Wait::Fix { reason, description } => {
                set("kind", json!("fix"));
                set("reason", json!(reason));
                set("why", json!(description));
            }
        }
        Value::Object(members)
    }
}

/// Describes the progress of a work item.
pub(crate) fn text(progress: Progress, what: &str, setting: &str) -> String {
    match progress {
        Progress::Limit(limit) => {
            format!("this sidecar's workers have {limit} {what}, the limit of {setting}: raise it, or wait")
        }
        Progress::Untaken => "no worker of this sidecar has accepted it yet".to_owned(),
        Progress::Sent(at) => {
            let at = time(Some(at.into()));
            format!(
                "sent to a worker at {}, no answer yet",
                at.as_str().unwrap_or_default()
            )
        }
    }
}

/// Formats RFC 3339.
pub(crate) fn time(at: Option<Timestamp>) -> Value {
    let at = at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok());
    at.map_or(Value::Null, |at| Value::String(at.to_string()))
}

/// The management API's form of an instance.
fn described(metadata: WorkflowMetadata) -> GetWorkflowResponse {
    let runtime_status = match metadata.runtime_status() {
        // The management API has no name for it.
        OrchestrationStatus::Stalled => "UNKNOWN",
        status => status.as_str_name().trim_start_matches("ORCHESTRATION_STATUS_"),
    };
    let mut properties = HashMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            properties.insert(format!("dapr.workflow.{name}"), value);
        }
    };
    put("custom_status", metadata.custom_status.clone());
    put("input", metadata.input.clone());
    put("output", metadata.output.clone());
    if let Some(failure) = metadata.failure_details.clone() {
        put("failure.error_type", Some(failure.error_type));
        put("failure.error_message", Some(failure.error_message));
        put("failure.stack_trace", failure.stack_trace);
    }
    GetWorkflowResponse {
        runtime_status: runtime_status.to_owned(),
        instance_id: metadata.instance_id,
        workflow_name: metadata.name,
        created_at: metadata.created_at,
        last_updated_at: metadata.last_updated_at,
        properties,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_is_shown_as_unknown() {
        let status = |status: OrchestrationStatus| {
            let metadata = WorkflowMetadata {
                runtime_status: status.into(),
                ..WorkflowMetadata::default()
            };
            described(metadata).runtime_status
        };
        assert_eq!(status(OrchestrationStatus::Running), "RUNNING");
        assert_eq!(status(OrchestrationStatus::ContinuedAsNew), "CONTINUED_AS_NEW");
        assert_eq!(status(OrchestrationStatus::Stalled), "UNKNOWN");
    }
}
