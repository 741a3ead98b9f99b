//! Names and attributes of spans by API (Dapr v1.18).

use http::StatusCode;

use super::{Parent, Span, SpanKind, Status, Tracer};

const API: &str = "dapr.api";
const ACTOR: &str = "dapr.actor";
const RPC_SERVICE: &str = "rpc.service";
const INVOCATION: &str = "ServiceInvocation";

impl Tracer {
    /// Delivery of a message to the app.
    pub fn pubsub_delivery(&self, topic: &str, parent: &Parent) -> Span {
        let mut span = self.start(SpanKind::Client, "", parent);
        if span.is_recording() {
            span.set_name(format!("pubsub/{topic}"));
            span.publish(topic);
        }
        span
    }

    /// An input binding's event delivered to the app. `statement` is `POST /NAME`, or the callback's full
    /// method.
    pub fn input_binding(&self, binding: &str, statement: &str, parent: &Parent) -> Span {
        let mut span = self.start(SpanKind::Client, "", parent);
        if span.is_recording() {
            span.set_name(format!("bindings/{binding}"));
            span.set("db.name", binding.to_owned());
            span.set(RPC_SERVICE, "Dapr");
            span.set("db.system", "bindings");
            span.set("db.connection_string", statement.to_owned());
        }
        span
    }

    /// A triggered job of the app. `statement` is `POST /job/NAME`, or the callback's full method.
    pub fn job(&self, job: &str, statement: &str, parent: &Parent) -> Span {
        let mut span = self.start(SpanKind::Client, "", parent);
        if span.is_recording() {
            span.set_name(format!("job/{job}"));
            span.set(RPC_SERVICE, "Dapr");
            span.set(API, statement.to_owned());
        }
        span
    }
}

/// Attributes. Each call is a no-op unless the span is recording.
impl Span {
    /// Outcome of an HTTP API request: codes from 400 are errors.
    pub fn http_status(&mut self, code: u16) {
        if !self.is_recording() {
            return;
        }
        self.set("dapr.status_code", code.to_string());
        if code >= 400 {
            let reason = StatusCode::from_u16(code)
                .ok()
                .and_then(|s| s.canonical_reason())
                .unwrap_or_default();
            self.set_status(Status::Error(format!("Code({code}): {reason}")));
        }
    }

    /// Marks the span as failed with a gRPC status message.
    pub fn grpc_failed(&mut self, message: &str) {
        if self.is_recording() {
            self.set_status(Status::Error(message.to_owned()));
        }
    }

    /// The internal CallActor, renamed `CallActor/TYPE/METHOD`.
    pub fn call_actor(&mut self, actor_type: &str, id: &str, method: &str) {
        if self.is_recording() {
            self.set_name(format!("CallActor/{actor_type}/{method}"));
            self.set(RPC_SERVICE, INVOCATION);
            self.set(ACTOR, format!("{actor_type}.{id}"));
        }
    }

    /// An actor method called through the HTTP API.
    pub fn actor_method(&mut self, actor_type: &str, id: &str, method: &str) {
        if self.is_recording() {
            self.call_actor(actor_type, id, method);
            self.set("net.peer.name", format!("{actor_type}.{id}"));
        }
    }

    /// Actor state, timers and reminders through the HTTP API. `statement` is `METHOD PATH`.
    pub fn actor_resource(&mut self, actor_type: &str, id: &str, statement: &str) {
        if self.is_recording() {
            self.set(ACTOR, format!("{actor_type}.{id}"));
            self.database("state", statement, "actor");
        }
    }

    /// State, secret or binding APIs: `system` is `state`, `secrets` or `bindings`, `statement` is `METHOD
    /// PATH` or the full gRPC method, `name` the component.
    pub fn database(&mut self, system: &'static str, statement: &str, name: &str) {
        if self.is_recording() {
            self.set("db.system", system);
            self.set("db.connection_string", system);
            self.set("db.statement", statement.to_owned());
            self.set("db.name", name.to_owned());
        }
    }

    /// As [`Span::database`] for a gRPC call.
    pub fn grpc_database(&mut self, system: &'static str, full_method: &str, name: &str) {
        if self.is_recording() {
            self.database(system, full_method, name);
            self.set(RPC_SERVICE, "Dapr");
        }
    }

    /// Publishing to, or delivering from, a topic.
    pub fn publish(&mut self, topic: &str) {
        if self.is_recording() {
            self.set("messaging.system", "pubsub");
            self.set("messaging.destination.name", topic.to_owned());
        }
    }

    /// As [`Span::publish`] for a gRPC call.
    pub fn grpc_publish(&mut self, topic: &str) {
        if self.is_recording() {
            self.publish(topic);
            self.set(RPC_SERVICE, "Dapr");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Sampler, SpanData, SpanQueue};
    use super::*;

    fn recorded(make: impl FnOnce(&Tracer) -> Span) -> Arc<SpanData> {
        let queue = Arc::new(SpanQueue::default());
        make(&Tracer::sampling(Sampler::new(1.0), vec![queue.clone()])).end();
        queue.take().remove(0)
    }

    fn attribute<'a>(data: &'a SpanData, key: &str) -> Option<&'a str> {
        data.attributes
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_ref())
    }

    #[test]
    fn deliveries() {
        let data = recorded(|t| t.pubsub_delivery("orders", &Parent::default()));
        assert_eq!(
            (data.name.as_ref(), attribute(&data, "messaging.destination.name")),
            ("pubsub/orders", Some("orders"))
        );
        let data = recorded(|t| {
            let mut span = t.input_binding("cron", "POST /cron", &Parent::default());
            span.http_status(404);
            span
        });
        assert_eq!(data.status, Status::Error("Code(404): Not Found".into()));
        assert_eq!(attribute(&data, "dapr.status_code"), Some("404"));
        assert_eq!(
            (data.name.as_ref(), attribute(&data, "db.connection_string")),
            ("bindings/cron", Some("POST /cron"))
        );
    }
}
