//! The status of a sidecar for people and programs: its parts, their state and their problems. Read-only, on
//! the metrics port, built on request.

pub mod findings;
mod html;

use std::sync::Arc;
use std::time::Instant;

use outrigger_blocks::invoke::Endpoints;
use outrigger_blocks::subscriptions::{AppSubscription, SubscriptionState, SubscriptionType, Subscriptions};
use outrigger_blocks_actors::actors::Actors;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_runtime::app::{App, Health};
use outrigger_runtime::components::{ComponentStatus, Components};
use outrigger_runtime::life::Readiness;
use outrigger_runtime::scheduler::Scheduler;
use outrigger_telemetry::metrics::Page;
use outrigger_transport::peer::{PeerStatus, Peers};
use serde_json::{Value, json};

use crate::config::VERSION;
use findings::{Finding, Findings};

/// Maximum number of entries per list.
const MAX_ROWS: usize = 500;
/// Maximum number of characters of a text.
const MAX_TEXT: usize = 2048;

/// The inputs of the status.
pub(crate) struct Status {
    pub(crate) app_id: Arc<str>,
    pub(crate) namespace: Arc<str>,
    pub(crate) started: Instant,
    pub(crate) app: App,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    pub(crate) components: Arc<Components>,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) findings: Arc<Findings>,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) actors: Arc<Actors>,
    pub(crate) workflows: Arc<Workflows>,
}

impl Status {
    /// The pages of the metrics port: HTML and JSON.
    pub(crate) fn pages(self) -> Arc<[Page]> {
        let for_people = Arc::new(self);
        let for_programs = Arc::clone(&for_people);
        Arc::new([
            Page {
                path: "/status",
                content_type: "text/html; charset=utf-8",
                write: Arc::new(move || html::page(&for_people.json())),
            },
            Page {
                path: "/status.json",
                content_type: "application/json",
                write: Arc::new(move || for_programs.json().to_string()),
            },
        ])
    }

    fn json(&self) -> Value {
        let actors = self.actors.status();
        let active = actors.active_actors.iter();
        let active = active.map(|count| json!({"type": count.r#type, "count": count.count}));
        let workflows = self.workflows.overview(MAX_ROWS);
        json!({
            "sidecar": {
                "appID": &*self.app_id,
                "namespace": &*self.namespace,
                "version": VERSION,
                "uptimeSeconds": self.started.elapsed().as_secs(),
                "notReady": self.readiness.unready(),
                "outboundError": self.readiness.outbound().err().flatten(),
                "appPort": self.app.port,
                "appHealthy": (self.app.port != 0).then(|| self.health.is_healthy()),
                "placement": actors.placement,
                "schedulers": self.scheduler.addresses(),
                "workers": workflows.workers,
                "workWaiting": workflows.waiting,
            },
            "components": rows(self.components.status(), component),
            "findings": rows(self.findings.all(), finding),
            "httpEndpoints": rows(self.endpoints.names(), |name| json!({"name": name})),
            "subscriptions": rows(self.subscriptions.status(), |(wanted, state)| subscription(&wanted, &state)),
            "peers": rows(self.peers.status(MAX_ROWS), peer),
            "actors": rows(active, |count| count),
            "work": rows(workflows.work, |work| work),
            "workflowWaits": rows(workflows.waits, |wait| wait),
            "failingWorkflows": rows(workflows.failing, |failing| failing),
        })
    }
}

fn rows<T>(all: impl IntoIterator<Item = T>, row: impl Fn(T) -> Value) -> Vec<Value> {
    all.into_iter().take(MAX_ROWS).map(row).map(bounded).collect()
}

/// Truncates the texts of a row.
fn bounded(mut row: Value) -> Value {
    let members = row.as_object_mut().into_iter().flat_map(|row| row.values_mut());
    for value in members {
        if let Value::String(text) = value
            && let Some((end, _)) = text.char_indices().nth(MAX_TEXT)
        {
            text.truncate(end);
            text.push_str("...");
        }
    }
    row
}

fn component(status: ComponentStatus) -> Value {
    json!({
        "name": status.name,
        "type": status.kind,
        "version": status.version,
        "state": status.state.as_str(),
        "error": text(status.why),
        "place": text(status.place),
    })
}

fn finding(finding: Finding) -> Value {
    json!({
        "level": finding.gravity.as_str(),
        "place": text(finding.place),
        "text": finding.text,
    })
}

fn subscription(wanted: &AppSubscription, state: &SubscriptionState) -> Value {
    let origin = match wanted.origin {
        SubscriptionType::Declared => "declarative",
        SubscriptionType::Programmatic => "programmatic",
        SubscriptionType::Streaming => "streaming",
    };
    let (state, error) = match state {
        SubscriptionState::Active => ("active", None),
        SubscriptionState::Paused => ("paused", None),
        SubscriptionState::NoBroker => ("no broker", Some("no pub/sub component of this name is loaded")),
        SubscriptionState::Failed(error) => ("failed", Some(error.as_str())),
    };
    json!({
        "pubsubName": wanted.pubsub,
        "topic": wanted.topic,
        "name": text(wanted.name.clone()),
        "type": origin,
        "deadLetterTopic": wanted.dead_letter,
        "state": state,
        "error": error,
    })
}

fn peer(peer: PeerStatus) -> Value {
    json!({
        "appID": peer.app_id,
        "namespace": text(peer.namespace),
        "address": peer.address,
        "connections": peer.connections,
    })
}

/// `None` for an empty text.
fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
