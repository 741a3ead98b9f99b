//! The gRPC API: token, allow lists, tracing, metrics, logs, then the service or the proxy.

mod boxed;
mod dapr;
mod fields;
mod groups;
mod oversized;
mod taskhub;
mod unary;

use std::convert::Infallible;
use std::error::Error as _;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use outrigger_policy::apilist::ApiList;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::apilog::ApiLog;
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Status as SpanStatus, Tracer};
use outrigger_transport::body::Body;
use outrigger_transport::grpc::{self, RequestKind};
use outrigger_transport::headers::names;
use outrigger_transport::listen::{Client, Handler};
use outrigger_wire::durabletask::task_hub_sidecar_service_server::TaskHubSidecarServiceServer;
use outrigger_wire::runtime::v1::dapr_server::DaprServer;
use tonic::body::Body as TonicBody;
use tonic::{Code, Status};
use tower::ServiceExt;

pub use dapr::DaprService;
pub(crate) use groups::groups;
pub use groups::methods;
#[cfg(feature = "fuzzing")]
pub use oversized::fuzz as fuzz_oversized;
pub use taskhub::TaskHub;

use crate::admit::{Token, hidden};
use crate::proxy::Proxy;
use crate::reflection::Reflection;

const DAPR: &str = "/dapr.proto.runtime.v1.Dapr/";

/// Streaming methods of the service, which are not counted.
const STREAMING: [&str; 6] = [
    "DecryptAlpha1",
    "EncryptAlpha1",
    "SubscribeActorEventsAlpha1",
    "SubscribeConfiguration",
    "SubscribeConfigurationAlpha1",
    "SubscribeTopicEventsAlpha1",
];

/// Methods with a client stream, which may be silent between two messages.
const CLIENT_STREAMING: [&str; 4] = [
    "DecryptAlpha1",
    "EncryptAlpha1",
    "SubscribeActorEventsAlpha1",
    "SubscribeTopicEventsAlpha1",
];

/// Database system in spans of conversations; spans name only the model.
const CONVERSATION: &str = "conversation";

/// Database system in spans of publishing; spans name the topic.
const TOPIC: &str = "topic";

/// The gRPC API of a sidecar.
pub struct GrpcApi {
    /// `dapr.proto.runtime.v1.Dapr`.
    pub dapr: Arc<DaprService>,
    /// The generated server, for streams and everything else that `unary` does not handle.
    pub streams: DaprServer<DaprService>,
    /// `TaskHubSidecarService`.
    pub task_hub: TaskHubSidecarServiceServer<TaskHub>,
    /// The worker side of the same service.
    pub workers: TaskHub,
    /// Allow and deny lists of method groups.
    pub list: ApiList,
    /// The token that callers must present.
    pub token: Token,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
    /// Logs calls.
    pub log: ApiLog,
    /// Forwards calls of other services.
    pub proxy: Arc<Proxy>,
    /// Describes the services.
    pub reflection: Reflection,
}

/// The contract's status for a message over the limit, if the codec reports one.
fn too_large(status: &Status) -> Option<Status> {
    let message = status.message();
    if status.code() != Code::OutOfRange || !message.contains("message length too large") {
        return None;
    }
    let mut numbers = message
        .split(|c: char| !c.is_ascii_digit())
        .filter(|part| !part.is_empty());
    let (found, limit) = (numbers.next()?, numbers.next()?);
    let done = match message.contains("encoded message") {
        true => "trying to send",
        false => "received",
    };
    Some(Status::resource_exhausted(format!(
        "grpc: {done} message larger than max ({found} vs. {limit})"
    )))
}

/// Splits a failed response into a head and a status, with the trailers of the app. Clients look for metadata
/// of an app or component in the head, which a trailers-only response does not have.
fn with_head(mut response: Response<Body>) -> Response<Body> {
    let status = response.extensions_mut().remove::<Status>();
    let of_app = status.as_ref().and_then(|status| status.source()?.downcast_ref());
    let is_said = |name: &HeaderName| name.as_str().starts_with("metadata.");
    if of_app.is_none() && !response.headers().keys().any(is_said) {
        return response;
    }
    let mut trailers = of_app.map_or_else(HeaderMap::new, |Trailers(trailers)| trailers.clone());
    for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
        if let Some(value) = response.headers_mut().remove(name) {
            trailers.insert(HeaderName::from_static(name), value);
        }
    }
    response.map(|_| Body::trailed(Bytes::new(), trailers))
}

/// Bytes of the message in a body of known length; 0 otherwise.
fn message_length(body: &Body) -> u64 {
    body.known_length()
        .unwrap_or(0)
        .saturating_sub(grpc::PREFIX as u64)
}

/// The status code in the response head, if any; the span records a failure.
fn note_status(span: &mut Span, response: &Response<Body>) -> Code {
    let Some(status) = grpc::early_status(response) else {
        return Code::Ok;
    };
    if status.code() != Code::Ok {
        span.set_status(SpanStatus::Error(status.message().to_owned()));
    }
    status.code()
}

/// The span of a request, as a request extension.
#[derive(Clone)]
pub struct CurrentSpan(pub Parent);

/// Carries the system and name of the called store from a handler to a recording span.
#[derive(Clone, Default)]
struct Database(Arc<OnceLock<(&'static str, String)>>);

/// Records the called store in the span of a request.
fn describe_database<T>(request: &tonic::Request<T>, system: &'static str, store: &str) {
    if let Some(Database(note)) = request.extensions().get() {
        note.get_or_init(|| (system, store.to_owned()));
    }
}

/// Records the called model in the span of a request.
fn describe_conversation<T>(request: &tonic::Request<T>, model: &str) {
    describe_database(request, CONVERSATION, model);
}

/// Records the topic in the span of a request.
fn describe_publish<T>(request: &tonic::Request<T>, topic: &str) {
    describe_database(request, TOPIC, topic);
}

/// Trailers of an app besides the status. Handlers put them into the response extensions, or make them the
/// source of the status they fail with.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the app failed")]
pub struct Trailers(pub HeaderMap);

impl Handler for GrpcApi {
    async fn handle(self: Arc<Self>, _client: Arc<Client>, mut request: Request<Body>) -> Response<Body> {
        if let Err(status) = self.admit(&request) {
            return grpc::status_response(&status);
        }
        request.headers_mut().remove(names::API_TOKEN);
        let path = request.uri().path();
        if Reflection::serves(path) {
            return self.reflection.handle(request).await;
        }
        let started = Instant::now();
        let method = path.to_owned();
        let user_agent = if self.log.enabled {
            request.headers().get("user-agent").cloned()
        } else {
            None
        };
        let (response, code) = if method.starts_with(DAPR) {
            self.serve(request, &method, started).await
        } else if method.starts_with(taskhub::SERVICE) {
            // Boxed: it is off the path of the most frequent calls.
            Box::pin(self.serve_task_hub(request, &method, started)).await
        } else {
            // Boxed, so that calls of the service do not reserve space for a proxied one.
            let response = Box::pin(self.proxy.outbound(request)).await;
            let code = grpc::early_status(&response).map_or(Code::Ok, |s| s.code());
            (response, code)
        };
        let user_agent = user_agent.as_ref().and_then(|v: &HeaderValue| v.to_str().ok());
        self.log
            .grpc(&method, user_agent, started.elapsed(), code as i32, false);
        response
    }
}

/// Whether the method at this path takes one message or a stream.
fn request_kind(path: &str) -> RequestKind {
    match path.strip_prefix(DAPR) {
        Some(name) if CLIENT_STREAMING.contains(&name) => RequestKind::Streaming,
        _ => RequestKind::Unary,
    }
}

/// Runs a call on a generated server. A message that stalls fails; one over the limit gets the code of the
/// contract.
async fn by_generated<S>(server: S, request: Request<Body>) -> Response<TonicBody>
where
    S: tower::Service<Request<TonicBody>, Response = Response<TonicBody>, Error = Infallible>,
{
    let path = request.uri().path();
    let (kind, nested) = (request_kind(path), fields::nested(path));
    let request = request.map(|body| {
        let body = grpc::decoded_messages(body, kind).counting(nested);
        TonicBody::new(body.map_err(|e| grpc::body_status(&e)))
    });
    let response = match server.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let refused = Status::from_header_map(response.headers());
    match refused.as_ref().and_then(too_large) {
        Some(status) => status.into_http(),
        None => response.map(|body| TonicBody::new(body.map_frame(with_contract_code))),
    }
}

/// Replaces the status of a response over the limit. The codec measures it after the head is sent, so the
/// status is in the trailers.
fn with_contract_code(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut()
        && let Some(status) = Status::from_header_map(trailers).as_ref().and_then(too_large)
    {
        // Digits and our own words are valid header values.
        let _added = status.add_header(trailers);
    }
    frame
}

impl GrpcApi {
    fn admit(&self, request: &Request<Body>) -> Result<(), Status> {
        let method = grpc::method(request)?;
        if !grpc::is_grpc(request.headers()) {
            return Err(Status::invalid_argument(
                "this port speaks gRPC: content-type must be application/grpc (the HTTP API has another port)",
            ));
        }
        if !self.list.grpc_allows(method) {
            return Err(hidden());
        }
        self.token.admit_grpc(request.headers())
    }

    async fn serve(
        &self,
        mut request: Request<Body>,
        method: &str,
        started: Instant,
    ) -> (Response<Body>, Code) {
        let (mut span, baggage, received) = match self.begin(&mut request, method) {
            Ok(begun) => begun,
            Err(status) => return (grpc::status_response(&status), status.code()),
        };
        let database = span.is_recording().then(Database::default);
        if let Some(database) = &database {
            request.extensions_mut().insert(database.clone());
        }
        let name = method.strip_prefix(DAPR).unwrap_or_default();
        let mut response = match unary::call(&self.dapr, name, request).await {
            Ok(response) => response,
            Err(request) => self.generated(request).await,
        };
        if let Some((system, store)) = database.as_ref().and_then(|Database(note)| note.get()) {
            match *system {
                CONVERSATION => span.set("rpc.system", store.clone()),
                TOPIC => span.grpc_publish(store),
                _ => span.grpc_database(system, method, store),
            }
        }
        let code = note_status(&mut span, &response);
        if name == "InvokeService" {
            span.inject_grpc(response.headers_mut());
        } else {
            span.inject_grpc_bin(response.headers_mut());
        }
        if let Some(baggage) = baggage {
            response.headers_mut().insert(names::BAGGAGE, baggage);
        }
        let sent = message_length(response.body());
        if !STREAMING.contains(&name) {
            self.metrics
                .grpc_server(method, code, started.elapsed(), received, sent);
        }
        if code != Code::Ok && matches!(name, "InvokeBinding" | "InvokeService") {
            response = with_head(response);
        }
        (response, code)
    }

    /// Handles a call of the workflow service.
    async fn serve_task_hub(
        &self,
        mut request: Request<Body>,
        method: &str,
        started: Instant,
    ) -> (Response<Body>, Code) {
        let (mut span, baggage, received) = match self.begin(&mut request, method) {
            Ok(begun) => begun,
            Err(status) => return (grpc::status_response(&status), status.code()),
        };
        let response = match method {
            taskhub::GET_WORK_ITEMS => {
                let request = request.map(|body| {
                    let body = grpc::one_message(body);
                    TonicBody::new(body.map_err(|e| grpc::body_status(&e)))
                });
                self.workers.work(request).await
            }
            taskhub::COMPLETE_TURN | taskhub::COMPLETE_TURN_OLD => {
                match oversized::check(request, oversized::TURN, self.dapr.max_message).await {
                    Ok(request) => by_generated(self.task_hub.clone(), request).await,
                    Err(answer) => self
                        .workers
                        .workflows
                        .workers()
                        .step_too_large(&answer)
                        .await
                        .into_http(),
                }
            }
            taskhub::COMPLETE_ACTIVITY => {
                match oversized::check(request, oversized::ACTIVITY, self.dapr.max_message).await {
                    Ok(request) => by_generated(self.task_hub.clone(), request).await,
                    Err(answer) => self
                        .workers
                        .workflows
                        .workers()
                        .activity_too_large(answer)
                        .await
                        .into_http(),
                }
            }
            _ => by_generated(self.task_hub.clone(), request).await,
        };
        let mut response = response.map(Body::stream);
        let code = note_status(&mut span, &response);
        if let Some(baggage) = baggage {
            response.headers_mut().insert(names::BAGGAGE, baggage);
        }
        if method != taskhub::GET_WORK_ITEMS {
            self.metrics
                .grpc_server(method, code, started.elapsed(), received, 0);
        }
        (response, code)
    }

    /// Handles a call with the generated server.
    async fn generated(&self, request: Request<Body>) -> Response<Body> {
        let mut response = by_generated(self.streams.clone(), request).await;
        match response.extensions_mut().remove::<Trailers>() {
            Some(Trailers(more)) => response.map(|body| {
                Body::stream(body.map_frame(move |mut frame| {
                    if let Some(trailers) = frame.trailers_mut() {
                        trailers.extend(more.clone());
                    }
                    frame
                }))
            }),
            None => response.map(Body::stream),
        }
    }

    /// Starts a call: the span, which handlers find in the request, the baggage to return, and the size of
    /// the message.
    fn begin(
        &self,
        request: &mut Request<Body>,
        method: &str,
    ) -> Result<(Span, Option<HeaderValue>, u64), Status> {
        let headers = request.headers();
        let parent = Parent::from_grpc(headers);
        let baggage = match self.tracer.enabled() {
            true => grpc::baggage(headers)?,
            false => None,
        };
        let mut span = self.tracer.start(SpanKind::Client, method, &parent);
        if span.is_recording() {
            span.set("dapr.protocol", "grpc");
            span.set("dapr.api", method.to_owned());
            for (name, value) in headers {
                if name.as_str().starts_with("dapr-")
                    && !name.as_str().ends_with("-bin")
                    && *name != names::API_TOKEN
                    && let Ok(value) = value.to_str()
                {
                    span.set_default(name.as_str().to_owned(), value.to_owned());
                }
            }
        }
        let received = message_length(request.body());
        request.extensions_mut().insert(CurrentSpan(span.as_parent()));
        Ok((span, baggage, received))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::BufMut;
    use futures::stream::{self, StreamExt};
    use http_body_util::StreamBody;
    use tokio::time::timeout;
    use tonic::codec::{EncodeBody, EncodeBuf, Encoder, SingleMessageCompressionOverride};

    use super::*;

    /// The status of a service that reads a whole request when the client sends `said` and then stalls;
    /// `None` if it still waits after a day.
    async fn read(method: &str, said: impl Into<Bytes>) -> Option<Code> {
        let pieces = stream::iter([Ok::<_, Infallible>(Frame::data(said.into()))]);
        let body = Body::stream(StreamBody::new(pieces.chain(stream::pending())));
        let request = Request::post(format!("{DAPR}{method}")).body(body).unwrap();
        let service = tower::service_fn(|request: Request<TonicBody>| async {
            let read = request.into_body().collect().await;
            let said = read.map_or_else(|status| status, |_| Status::ok(""));
            Ok::<_, Infallible>(said.into_http::<TonicBody>())
        });
        let answer = timeout(Duration::from_secs(24 * 3600), by_generated(service, request)).await;
        answer
            .ok()
            .map(|answer| Status::from_header_map(answer.headers()).unwrap().code())
    }

    #[tokio::test(start_paused = true)]
    async fn times_out_stalled_messages_only() {
        let (half, whole) = (&b"\0\0\0\0\x09half"[..], &b"\0\0\0\0\x04full"[..]);
        for method in [
            "GetSecret",
            "SubscribeConfiguration",
            CLIENT_STREAMING[0],
            CLIENT_STREAMING[1],
            CLIENT_STREAMING[2],
        ] {
            assert_eq!(read(method, half).await, Some(Code::DeadlineExceeded), "{method}");
        }
        assert_eq!(
            read("GetSecret", Bytes::new()).await,
            Some(Code::DeadlineExceeded)
        );
        assert_eq!(
            read("GetSecret", whole).await,
            Some(Code::DeadlineExceeded),
            "no end"
        );
        for method in CLIENT_STREAMING {
            assert_eq!(read(method, whole).await, None, "{method}");
            assert_eq!(read(method, Bytes::new()).await, None, "{method}");
        }
    }

    /// A codec of raw bytes.
    struct Raw;

    impl Encoder for Raw {
        type Item = Bytes;
        type Error = Status;

        fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
            out.put(item);
            Ok(())
        }
    }

    #[tokio::test]
    async fn too_large_response_has_contract_code() {
        for (bytes, code, text) in [
            (100, Code::Ok, ""),
            (
                101,
                Code::ResourceExhausted,
                "grpc: trying to send message larger than max (101 vs. 100)",
            ),
        ] {
            let service = tower::service_fn(move |_: Request<TonicBody>| {
                let body = EncodeBody::new_server(
                    Raw,
                    stream::iter([Ok(Bytes::from(vec![b'x'; bytes]))]),
                    None,
                    SingleMessageCompressionOverride::default(),
                    Some(100),
                );
                async { Ok::<_, Infallible>(Response::new(TonicBody::new(body))) }
            });
            let request = Request::post(format!("{DAPR}GetBulkState"));
            let request = request.body(Body::Full(Bytes::new())).unwrap();
            let answer = by_generated(service, request).await;
            let read = answer.into_body().collect().await.unwrap();
            let status = Status::from_header_map(read.trailers().unwrap()).unwrap();
            assert_eq!((status.code(), status.message()), (code, text), "{bytes}");
        }
    }

    #[tokio::test]
    async fn refuses_too_many_fields() {
        let many = [0x12, 0].repeat(grpc::fields::MAX_FIELDS + 1);
        let said = [&[0, 0, 4, 0, 2][..], &many].concat();
        for method in ["GetBulkState", "BulkPublishEvent", CLIENT_STREAMING[2]] {
            let code = read(method, said.clone()).await;
            assert_eq!(code, Some(Code::ResourceExhausted), "{method}");
        }
    }

    #[test]
    fn client_streaming_matches_contract() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../proto/dapr/proto/runtime/v1/dapr.proto"
        );
        let text = std::fs::read_to_string(file).unwrap();
        let streaming = text.lines().filter_map(|line| {
            let (name, taken) = line.trim().strip_prefix("rpc ")?.split_once('(')?;
            taken.starts_with("stream ").then_some(name.trim())
        });
        let mut streaming: Vec<_> = streaming.collect();
        streaming.sort_unstable();
        assert_eq!(streaming, CLIENT_STREAMING);
    }
}
