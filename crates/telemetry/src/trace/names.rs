//! Names and attributes of spans, by what they are about (Dapr v1.17).

use std::net::SocketAddr;

use http::{HeaderMap, StatusCode};

use super::{Parent, Span, SpanKind, Status, Tracer};

const API: &str = "dapr.api";
const PROTOCOL: &str = "dapr.protocol";
const ACTOR: &str = "dapr.actor";
const RPC_SERVICE: &str = "rpc.service";
const INVOCATION: &str = "ServiceInvocation";

impl Tracer {
    /// A request of the HTTP API, or `None` for a health path, which has no span.
    pub fn http_api(&self, path: &str, headers: &HeaderMap) -> Option<Span> {
        if !self.enabled() || path.contains("/healthz") {
            return None;
        }
        Some(self.start(SpanKind::Client, path, &Parent::from_http(headers)))
    }

    /// A unary gRPC call: server for the internal protocol, client for everything else.
    pub fn grpc_unary(&self, full_method: &str, metadata: &HeaderMap) -> Span {
        let internal = full_method.starts_with("/dapr.proto.internals.");
        let kind = if internal {
            SpanKind::Server
        } else {
            SpanKind::Client
        };
        self.start(kind, full_method, &Parent::from_grpc(metadata))
    }

    /// A streaming gRPC call that is not proxied.
    pub fn grpc_stream(&self, full_method: &str, metadata: &HeaderMap) -> Span {
        let client = full_method.starts_with("/dapr.proto.runtime.");
        let kind = if client {
            SpanKind::Client
        } else {
            SpanKind::Server
        };
        self.start(kind, full_method, &Parent::from_grpc(metadata))
    }

    /// A proxied gRPC call: server when the called app is this sidecar's.
    pub fn grpc_proxied(&self, full_method: &str, metadata: &HeaderMap, callee_is_self: bool) -> Span {
        let kind = if callee_is_self {
            SpanKind::Server
        } else {
            SpanKind::Client
        };
        self.start(kind, full_method, &Parent::from_grpc(metadata))
    }

    /// Delivery of a message to the app.
    pub fn pubsub_delivery(&self, topic: &str, parent: &Parent) -> Span {
        let mut span = self.start(SpanKind::Client, "", parent);
        if span.is_recording() {
            span.set_name(format!("pubsub/{topic}"));
            span.publish(topic);
        }
        span
    }

    /// One entry of a bulk publish, child of the request's span.
    pub fn bulk_publish_entry(&self, name: &str, request: &Span) -> Span {
        self.start(SpanKind::Producer, name, &request.as_parent())
    }

    /// An input binding's event on its way to the app. `statement` is `POST /NAME`, or the callback's full method.
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

    /// A job of the app that is due. `statement` is `POST /job/NAME`, or the callback's full method.
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

/// Attributes. Each call is a no-op unless the span records.
impl Span {
    /// Attributes of every HTTP API request. `uri` is the request target as received.
    pub fn http_request(&mut self, method: &str, path: &str, uri: &str, peer: Option<SocketAddr>) {
        if !self.is_recording() {
            return;
        }
        self.set(PROTOCOL, "http");
        self.set(API, format!("{method} {path}"));
        self.set("http.request.method", method.to_owned());
        self.set("url.full", uri.to_owned());
        if let Some(peer) = peer {
            self.set("server.address", peer.ip().to_string());
            self.set("server.port", peer.port().to_string());
        }
    }

    /// Outcome of an HTTP API request: an error from 400 on.
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

    /// Attributes of every gRPC call that is not proxied.
    pub fn grpc_request(&mut self, full_method: &str) {
        if self.is_recording() {
            self.set(PROTOCOL, "grpc");
            self.set(API, full_method.to_owned());
        }
    }

    /// Marks the span as failed with a gRPC status message.
    pub fn grpc_failed(&mut self, message: &str) {
        if self.is_recording() {
            self.set_status(Status::Error(message.to_owned()));
        }
    }

    /// `dapr-` request headers as attributes, the last value of each. Attributes of the API win.
    pub fn http_user_headers(&mut self, headers: &HeaderMap) {
        if self.is_recording() {
            for name in headers.keys().filter(|name| name.as_str().starts_with("dapr-")) {
                let last = headers.get_all(name).iter().next_back();
                self.user_header(name.as_str(), last);
            }
        }
    }

    /// `dapr-` metadata as attributes, the first value of each, binary ones left out. Attributes of the API win.
    pub fn grpc_user_metadata(&mut self, metadata: &HeaderMap) {
        if self.is_recording() {
            let user = |name: &str| name.starts_with("dapr-") && !name.ends_with("-bin");
            for name in metadata.keys().filter(|name| user(name.as_str())) {
                self.user_header(name.as_str(), metadata.get(name));
            }
        }
    }

    fn user_header(&mut self, name: &str, value: Option<&http::HeaderValue>) {
        // Control headers of the runtime itself that carry a secret are never attributes.
        if name == "dapr-api-token" {
            return;
        }
        if let Some(value) = value.and_then(|v| v.to_str().ok()) {
            self.set_default(name.to_owned(), value.to_owned());
        }
    }

    /// Service invocation of `target`, renamed `CallLocal/TARGET/METHOD`.
    pub fn service_invocation(&mut self, target: &str, method: &str) {
        if self.is_recording() {
            self.set_name(format!("CallLocal/{target}/{method}"));
            self.set(RPC_SERVICE, INVOCATION);
            self.set("net.peer.name", target.to_owned());
        }
    }

    /// The internal CallLocal and CallLocalStream, renamed `CallLocal/OWNAPP/METHOD`.
    pub fn call_local(&mut self, own_app: &str, method: &str) {
        if self.is_recording() {
            self.set_name(format!("CallLocal/{own_app}/{method}"));
            self.set(RPC_SERVICE, INVOCATION);
            self.set("dapr.invoke_method", method.to_owned());
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

    /// State, secret or binding APIs: `system` is `state`, `secrets` or `bindings`, `statement` is `METHOD PATH` or
    /// the full gRPC method, `name` the component.
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

    /// A conversation with a model through the gRPC API.
    pub fn conversation(&mut self, component: &str) {
        if self.is_recording() {
            self.set("rpc.system", component.to_owned());
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
    fn http_invocation() {
        let mut headers = HeaderMap::new();
        headers.insert("dapr-app-id", "b".parse().unwrap());
        headers.append("dapr-app-id", "c".parse().unwrap());
        headers.insert("dapr-api-token", "secret".parse().unwrap());
        let data = recorded(|tracer| {
            let mut span = tracer.http_api("/v1.0/invoke/b/method/x", &headers).unwrap();
            let peer = "127.0.0.1:1234".parse().ok();
            span.http_request(
                "GET",
                "/v1.0/invoke/b/method/x",
                "/v1.0/invoke/b/method/x?q=1",
                peer,
            );
            span.http_user_headers(&headers);
            span.service_invocation("b", "x");
            span.http_status(404);
            span
        });
        assert_eq!(data.name, "CallLocal/b/x");
        assert_eq!(data.kind, SpanKind::Client);
        assert_eq!(data.status, Status::Error("Code(404): Not Found".into()));
        for (key, value) in [
            ("dapr.protocol", "http"),
            ("dapr.api", "GET /v1.0/invoke/b/method/x"),
            ("url.full", "/v1.0/invoke/b/method/x?q=1"),
            ("server.address", "127.0.0.1"),
            ("server.port", "1234"),
            ("dapr.status_code", "404"),
            ("dapr-app-id", "c"),
            ("rpc.service", "ServiceInvocation"),
            ("net.peer.name", "b"),
        ] {
            assert_eq!(attribute(&data, key), Some(value), "{key}");
        }
        assert_eq!(attribute(&data, "dapr-api-token"), None);
    }

    #[test]
    fn kinds_of_grpc_calls() {
        let none = HeaderMap::new();
        let internal = "/dapr.proto.internals.v1.ServiceInvocation/CallLocal";
        let api = "/dapr.proto.runtime.v1.Dapr/GetState";
        assert_eq!(recorded(|t| t.grpc_unary(internal, &none)).kind, SpanKind::Server);
        assert_eq!(recorded(|t| t.grpc_unary(api, &none)).kind, SpanKind::Client);
        assert_eq!(
            recorded(|t| t.grpc_stream("/TaskHubSidecarService/GetWorkItems", &none)).kind,
            SpanKind::Server
        );
        assert_eq!(recorded(|t| t.grpc_stream(api, &none)).kind, SpanKind::Client);
    }

    #[test]
    fn health_paths_have_no_span() {
        let tracer = Tracer::sampling(Sampler::new(1.0), vec![]);
        assert!(
            tracer
                .http_api("/v1.0/healthz/outbound", &HeaderMap::new())
                .is_none()
        );
        assert!(
            Tracer::off()
                .http_api("/v1.0/state/s/k", &HeaderMap::new())
                .is_none()
        );
    }

    #[test]
    fn deliveries() {
        let data = recorded(|t| t.pubsub_delivery("orders", &Parent::default()));
        assert_eq!(
            (data.name.as_ref(), attribute(&data, "messaging.destination.name")),
            ("pubsub/orders", Some("orders"))
        );
        let data = recorded(|t| t.input_binding("cron", "POST /cron", &Parent::default()));
        assert_eq!(
            (data.name.as_ref(), attribute(&data, "db.connection_string")),
            ("bindings/cron", Some("POST /cron"))
        );
    }
}
