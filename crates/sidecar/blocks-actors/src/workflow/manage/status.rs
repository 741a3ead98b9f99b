//! Why an instance does not go on, for whoever asks.

use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::Wait;
use outrigger_workflow::names::activity_id;
use prost_types::Timestamp;
use serde_json::{Map, Value, json};

use crate::actors::ActorError;
use crate::workflow::Workflows;
use crate::workflow::worker::queue::Progress;

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
        if host.is_none() && !crate::workflow::is_final(status) {
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
        // A timer that has fired is nowhere stored until its turn is.
        let is_tried = self.queue.turn_progress(id).is_some() || self.instance_failures.of(id).is_some();
        if is_tried && !crate::workflow::is_final(status) && !waits.iter().any(|wait| wait["kind"] == "turn")
        {
            waits.push(self.described(id, instance.generation, Wait::Turn { events: 0, due: None }));
        }
        Ok(Some(Waits {
            id: id.to_owned(),
            status,
            host,
            workers: self.workers(),
            work: self.queue.waiting(),
            waits,
        }))
    }

    pub(crate) fn described(&self, instance: &str, generation: u64, wait: Wait) -> Value {
        let types = |app: Option<&str>| match app {
            Some(app) => outrigger_workflow::names::ActorTypes::of(&self.with.namespace, app),
            None => self.types.clone(),
        };
        let mut members = Map::new();
        let mut set = |name: &str, value: Value| {
            if !value.is_null() {
                members.insert(name.to_owned(), value);
            }
        };
        match wait {
            Wait::Turn { events, due } => {
                set("kind", json!("turn"));
                set("events", json!(events));
                set("due", time(due));
                // Known to the sidecar that hosts it.
                if let Some(trouble) = self.instance_failures.of(instance) {
                    set("why", json!(trouble.why));
                    set("failures", json!(trouble.count));
                    set("lastFailure", time(Some(trouble.at.into())));
                } else if let Some(progress) = self.queue.turn_progress(instance) {
                    let why = text(progress, "turns", "maxConcurrentWorkflowInvocations");
                    set("why", json!(why));
                }
            }
            Wait::Activity { id, name, app, since } => {
                let actor = activity_id(instance, id, generation);
                let host = self.with.actors.host_of(&types(app.as_deref()).activity, &actor);
                set("kind", json!("activity"));
                set("id", json!(id));
                set("name", json!(name));
                set("since", time(since));
                if host.is_none() {
                    let app = app.as_deref().unwrap_or(&self.with.app_id);
                    set(
                        "why",
                        json!(format!("no sidecar of app '{app}' has a worker connected")),
                    );
                } else if let Some(progress) = self.queue.activity_progress(instance, id) {
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
                let host = self
                    .with
                    .actors
                    .host_of(&types(app.as_deref()).workflow, &instance);
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

/// Where work of this sidecar is.
pub(crate) fn text(progress: Progress, what: &str, setting: &str) -> String {
    match progress {
        Progress::Limit(limit) => {
            format!(
                "this sidecar's workers have {limit} {what}, as many as {setting} allows: raise it, or wait"
            )
        }
        Progress::Untaken => "no worker of this sidecar has accepted it yet".to_owned(),
        Progress::Sent(at) => {
            let at = time(Some(at.into()));
            format!(
                "it is with a worker since {}, which has not answered",
                at.as_str().unwrap_or_default()
            )
        }
    }
}

/// RFC 3339.
pub(crate) fn time(at: Option<Timestamp>) -> Value {
    let at = at.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok());
    at.map_or(Value::Null, |at| Value::String(at.to_string()))
}
