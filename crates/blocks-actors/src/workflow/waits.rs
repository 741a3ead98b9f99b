//! Why an instance does not go on, for whoever asks.

use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::Wait;
use outrigger_workflow::names::activity_id;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use super::Workflows;
use super::queue::Unsent;
use crate::actors::ActorError;

/// What an instance waits for, and where.
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
    /// As JSON.
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
    /// What an instance of this app waits for; `None` where there is none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn waits(&self, id: &str) -> Result<Option<Waits>, ActorError> {
        let Some(instance) = self.load(id).await? else {
            return Ok(None);
        };
        let status = instance.status();
        let host = self.with.actors.host_of(&self.types.workflow, id);
        let mut waits: Vec<Value> = Vec::new();
        if host.is_none() && !super::is_final(status) {
            waits.push(json!({
                "kind": "host",
                "why": "no sidecar hosts this app's workflows: none has a worker connected",
            }));
        }
        let described = instance
            .waits()
            .into_iter()
            .map(|wait| self.described(id, instance.generation, wait));
        waits.extend(described);
        Ok(Some(Waits {
            id: id.to_owned(),
            status,
            host,
            workers: self.workers(),
            work: self.queue.waiting(),
            waits,
        }))
    }

    fn described(&self, instance: &str, generation: u64, wait: Wait) -> Value {
        let types = |app: Option<&str>| match app {
            Some(app) => outrigger_workflow::names::ActorTypes::of(&self.with.namespace, app),
            None => self.types.clone(),
        };
        let mut told = Map::new();
        let mut tell = |name: &str, value: Value| {
            if !value.is_null() {
                told.insert(name.to_owned(), value);
            }
        };
        match wait {
            Wait::Turn { events, due } => {
                tell("kind", json!("turn"));
                tell("events", json!(events));
                tell("due", time(due));
                // Known to the sidecar that hosts it.
                if let Some(trouble) = self.troubles.of(instance) {
                    tell("why", json!(trouble.why));
                    tell("failures", json!(trouble.count));
                    tell("lastFailure", time(Some(trouble.at.into())));
                } else if let Some(unsent) = self.queue.unsent_turn(instance) {
                    tell(
                        "why",
                        json!(text(unsent, "turns", "maxConcurrentWorkflowInvocations")),
                    );
                }
            }
            Wait::Activity { id, name, app, since } => {
                let actor = activity_id(instance, id, generation);
                let host = self.with.actors.host_of(&types(app.as_deref()).activity, &actor);
                tell("kind", json!("activity"));
                tell("id", json!(id));
                tell("name", json!(name));
                tell("since", time(since));
                if host.is_none() {
                    let app = app.as_deref().unwrap_or(&self.with.app_id);
                    tell(
                        "why",
                        json!(format!("no sidecar of app '{app}' has a worker connected")),
                    );
                } else if let Some(unsent) = self.queue.unsent_activity(instance, id) {
                    let why = text(unsent, "activities", "maxConcurrentActivityInvocations");
                    tell("why", json!(why));
                }
                tell("appID", json!(app));
                tell("host", json!(host));
            }
            Wait::Child {
                id,
                name,
                instance,
                app,
                since,
            } => {
                let host = self
                    .with
                    .actors
                    .host_of(&types(app.as_deref()).workflow, &instance);
                tell("kind", json!("child"));
                tell("id", json!(id));
                tell("name", json!(name));
                tell("instanceID", json!(instance));
                tell("appID", json!(app));
                tell("since", time(since));
                tell("host", json!(host));
            }
            Wait::Timer { id, due } => {
                tell("kind", json!("timer"));
                tell("id", json!(id));
                tell("due", time(due));
            }
            Wait::Event { name, until } => {
                tell("kind", json!("event"));
                tell("name", json!(name));
                tell("until", time(until));
            }
            Wait::Resume => tell("kind", json!("resume")),
            Wait::Fix { reason, description } => {
                tell("kind", json!("fix"));
                tell("reason", json!(reason));
                tell("why", json!(description));
            }
        }
        Value::Object(told)
    }
}

/// Why work of this sidecar is with no worker.
fn text(unsent: Unsent, what: &str, setting: &str) -> String {
    match unsent {
        Unsent::Limit(limit) => {
            format!(
                "this sidecar's workers have {limit} {what}, as many as {setting} allows: raise it, or wait"
            )
        }
        Unsent::Untaken => "no worker of this sidecar has accepted it yet".to_owned(),
    }
}

/// RFC 3339.
pub(super) fn time(at: Option<Timestamp>) -> Value {
    let at = at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok());
    at.map_or(Value::Null, |at| Value::String(at.to_string()))
}
