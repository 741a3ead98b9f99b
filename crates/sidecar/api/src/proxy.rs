//! Transparent gRPC proxy: calls of unknown services are forwarded frame by frame, never decoded.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body::Frame;
use http_body_util::BodyExt;
use outrigger_identity::SpiffeId;
use outrigger_policy::resiliency::{Key, Outcome, Policy};
use outrigger_policy::target::Target;
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::{Attempts, Deadline, Resilience, grpc_outcome};
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Tracer};
use outrigger_transport::body::{Body, BoxError, Failure, Next, REPLAY_LIMIT, Replayable};
use outrigger_transport::grpc;
use outrigger_transport::headers::{names, put_identities, strip_hop_by_hop, strip_identities};
use outrigger_transport::peer::{PeerError, Peers};
use tonic::{Code, Status};

use crate::access::Access;

/// Forwards calls by the app id in their metadata.
pub struct Proxy {
    /// App id of the caller: `--app-id`.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// The app; `None` without app port.
    pub app: Option<Arc<AppChannel>>,
    /// The other sidecars.
    pub peers: Arc<Peers>,
    /// Access control of this app.
    pub access: Arc<Access>,
    /// Retries, timeouts, breakers.
    pub resilience: Arc<Resilience>,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
}

/// Path prefix of calls between sidecars.
const BETWEEN_SIDECARS: &str = "/dapr.proto.internals.";

/// The server that received a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Api,
    Internal,
}

impl Proxy {
    /// Handles a call of an API client.
    pub async fn outbound(&self, request: Request<Body>) -> Response<Body> {
        self.forward(Side::Api, None, request).await
    }

    /// Handles a call of another sidecar; without mTLS `peer` is `None`.
    pub async fn inbound(&self, peer: Option<&SpiffeId>, request: Request<Body>) -> Response<Body> {
        self.forward(Side::Internal, peer, request).await
    }

    async fn forward(&self, side: Side, peer: Option<&SpiffeId>, request: Request<Body>) -> Response<Body> {
        let started = Instant::now();
        let request = request.map(grpc::passed_messages);
        let method = request.uri().path().to_owned();
        let counted = request.headers().contains_key(names::APP_ID);
        let baggage = match self.tracer.enabled() {
            true => grpc::baggage(request.headers()),
            false => Ok(None),
        };
        let baggage = match baggage {
            Ok(baggage) => baggage,
            Err(status) => return grpc::status_response(&status),
        };
        let (mut response, span) = match self.route(side, peer, request, &method).await {
            Ok(done) => done,
            Err(status) => (grpc::status_response(&status), Span::none()),
        };
        if let Some(baggage) = baggage {
            response.headers_mut().append(names::BAGGAGE, baggage);
        }
        let metrics = Arc::clone(&self.metrics);
        let finish = move |code: Code| {
            drop(span);
            match side {
                _ if !counted => {}
                Side::Api => metrics.grpc_server_stream(&method, code, started.elapsed()),
                Side::Internal => metrics.grpc_client_stream(&method, code, started.elapsed()),
            }
        };
        match grpc::early_status(&response) {
            Some(status) => {
                finish(status.code());
                response
            }
            None => {
                let mut call = FinishOnce(Some(finish));
                response.map(|body| {
                    body.inspect(move |next| {
                        call.observe(&next);
                        next
                    })
                })
            }
        }
    }

    /// `method` is the path of `request`, in the one form that [`grpc::method`] accepts.
    async fn route(
        &self,
        side: Side,
        peer: Option<&SpiffeId>,
        mut request: Request<Body>,
        method: &str,
    ) -> Result<(Response<Body>, Span), Status> {
        if side == Side::Api && method.starts_with(BETWEEN_SIDECARS) {
            // Forwarding it would make it a call of this sidecar, past the API lists and access control.
            return Err(Status::unimplemented(format!(
                "{method} is reserved for sidecars: use the API of this sidecar"
            )));
        }
        let headers = request.headers();
        let target = headers
            .get(names::CALLEE_APP_ID)
            .or_else(|| headers.get(names::APP_ID));
        let Some(id) = target
            .and_then(|v| v.to_str().ok())
            .filter(|id| !id.is_empty())
            .map(str::to_owned)
        else {
            return Err(Status::unknown(
                "failed to proxy request: required metadata dapr-callee-app-id or dapr-app-id not found",
            ));
        };
        let (app_id, namespace) = match Target::parse(&id) {
            Ok(Target::App { id, namespace }) => (id, namespace.unwrap_or(&self.namespace)),
            Ok(Target::Url(_)) => return Err(Status::unknown(format!("invalid app id {id}"))),
            Err(error) => return Err(Status::unknown(error.to_string())),
        };
        let local = *app_id == *self.app_id && *namespace == *self.namespace;
        if side == Side::Internal && !local {
            // Forwarding it would make it a call in this app's name.
            return Err(Status::permission_denied(format!(
                "the sidecar of {} accepts calls from other sidecars only for {}, not for {id}",
                self.app_id, self.app_id
            )));
        }
        let kind = if local { SpanKind::Server } else { SpanKind::Client };
        let span = self.tracer.start(kind, method, &Parent::from_grpc(headers));
        let headers = request.headers_mut();
        headers.remove(names::APP_ID);
        strip_hop_by_hop(headers);
        match (side, peer) {
            (Side::Api, _) => strip_identities(headers),
            (Side::Internal, Some(peer)) => put_identities(headers, peer, &self.app_id),
            (Side::Internal, None) => {}
        }
        headers.remove(names::TRACESTATE);
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
        span.inject_grpc(headers);
        *request.uri_mut() = origin_form(request.uri());
        if local {
            self.access.check(peer, method, "NONE")?;
            return Ok((self.to_app(request).await?, span));
        }
        self.name_caller(request.headers_mut(), app_id);
        let response = self.to_peer(&id, app_id, namespace, method, request).await?;
        Ok((response, span))
    }

    async fn to_app(&self, mut request: Request<Body>) -> Result<Response<Body>, Status> {
        let Some(app) = &self.app else {
            return Err(Status::unavailable("app channel is not initialized"));
        };
        let headers = request.headers_mut();
        headers.remove(names::API_TOKEN);
        if let Some(token) = app.token() {
            headers.insert(names::API_TOKEN, token.clone());
        }
        app.proxy(request).await
    }

    fn name_caller(&self, headers: &mut HeaderMap, callee: &str) {
        if let Ok(caller) = HeaderValue::try_from(&*self.app_id) {
            headers.insert(names::CALLER_APP_ID, caller);
        }
        if let Ok(callee) = HeaderValue::try_from(callee) {
            headers.insert(names::CALLEE_APP_ID, callee);
        }
    }

    async fn to_peer(
        &self,
        id: &str,
        app_id: &str,
        namespace: &str,
        method: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let rules = self.resilience.policies.load().app(id);
        let policy = rules.policy.as_deref();
        let long_lived = request.headers().get(names::STREAM).is_some_and(truthy);
        let repeat = !long_lived && policy.is_some_and(Policy::may_retry);
        self.metrics.invoke_sent_streaming(app_id);
        let (head, mut body) = request.into_parts();
        let failure = Failure::watch(&mut body);
        let replay = Replayable::new(body);
        let attempts = Attempts::new(policy, Key::app(id, method), self.metrics.as_ref());
        let (head, replay, failure) = (&head, &replay, &failure);
        let called = attempts.run(|limit| async move {
            // Streams have no time limit; other calls must end within it.
            let deadline = if long_lived {
                Deadline::NONE
            } else {
                limit.deadline()
            };
            let wait = repeat || !deadline.is_none();
            let attempt = async {
                let result = self.attempt((app_id, namespace), head, replay, failure).await;
                known_code(result, wait).await
            };
            let (is_late, (result, code)) = match deadline.within(pin!(attempt)).await {
                Some(known) => (false, known),
                None => (true, (Err(late()), Code::DeadlineExceeded as i32)),
            };
            let outcome = match grpc_outcome(code) {
                Outcome::Failure { .. } if failure.reason().is_some() => Outcome::Unsendable,
                Outcome::Failure { .. } if is_late => Outcome::TimedOut,
                other => other,
            };
            let outcome = outcome.if_repeatable(repeat && replay.can_repeat());
            let result = result.map(|response| response.map(|body| deadline.bound(body, late_trailers)));
            ((result, code), outcome)
        });
        let (result, code) = called
            .await
            .map_err(|refused| Status::unavailable(refused.to_string()))?;
        self.metrics.invoke_received_streaming(app_id, code);
        result
    }

    /// One attempt; a broken connection is replaced once.
    async fn attempt(
        &self,
        target: (&str, &str),
        head: &http::request::Parts,
        replay: &Replayable,
        failure: &Failure,
    ) -> Result<Response<Body>, Status> {
        let requests = || {
            let mut request = Request::new(replay.attempt()?);
            *request.method_mut() = head.method.clone();
            *request.uri_mut() = head.uri.clone();
            *request.headers_mut() = head.headers.clone();
            Some(request)
        };
        let sent = self.peers.send(target, requests, failure).await;
        sent.map_err(|error| peer_status(&error))
    }
}

/// The status code of an attempt, or 0 until the call ends. It comes from the head or, with `wait`, from
/// trailers that follow without a whole message.
async fn known_code(
    result: Result<Response<Body>, Status>,
    wait: bool,
) -> (Result<Response<Body>, Status>, i32) {
    let response = match result {
        Ok(response) => response,
        Err(status) => {
            let code = status.code() as i32;
            return (Err(status), code);
        }
    };
    if let Some(status) = grpc::early_status(&response) {
        let code = grpc::raw_code(response.headers()).unwrap_or_else(|| status.code() as i32);
        return (Ok(response), code);
    }
    if !wait {
        return (Ok(response), 0);
    }
    let (head, body) = response.into_parts();
    let (body, code) = begun(body).await;
    (Ok(Response::from_parts(head, body)), code)
}

/// The response body once it has begun, and the status code of trailers that came before.
async fn begun(mut body: Body) -> (Body, i32) {
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    let (rest, code) = loop {
        match body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    if first.is_empty() && joined.is_empty() {
                        first = data;
                    } else {
                        joined.extend_from_slice(&std::mem::take(&mut first));
                        joined.extend_from_slice(&data);
                    }
                    if has_started(&first) || has_started(&joined) {
                        break (body, 0);
                    }
                }
                Err(frame) => {
                    let code = frame.trailers_ref().and_then(grpc::raw_code).unwrap_or(0);
                    break (Body::Empty.after(Some(Ok(frame))), code);
                }
            },
            Some(Err(error)) => break (Body::Empty.after(Some(Err(error))), Code::Unavailable as i32),
            None => break (Body::Empty, Code::Unknown as i32),
        }
    };
    let held = if joined.is_empty() { first } else { joined.freeze() };
    if held.is_empty() {
        return (rest, code);
    }
    (rest.after(Some(Ok(Frame::data(held)))), code)
}

/// Whether a response has begun: a whole message, or more than the buffer limit.
fn has_started(held: &[u8]) -> bool {
    held.len() > REPLAY_LIMIT || grpc::has_message(held)
}

fn late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The trailers of a call that timed out after its response began.
fn late_trailers() -> Result<Frame<Bytes>, BoxError> {
    let mut trailers = HeaderMap::new();
    grpc::put_status(&late(), &mut trailers);
    Ok(Frame::trailers(trailers))
}

fn peer_status(error: &PeerError) -> Status {
    match error {
        PeerError::NoResolver => Status::unavailable(
            "failed to proxy request: proxy not initialized. daprd startup may be incomplete",
        ),
        PeerError::Send(error) => grpc::send_status(error),
        PeerError::Spent => {
            Status::failed_precondition("cannot use resiliency policies with retries on streaming RPCs")
        }
        PeerError::Resolve(error) => Status::unknown(error.to_string()),
    }
}

fn truthy(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(outrigger_resources::value::truthy)
}

fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from)
}

/// Reports the status of a call, once.
struct FinishOnce<F: FnOnce(Code)>(Option<F>);

impl<F: FnOnce(Code)> FinishOnce<F> {
    /// Observes the frames of the response body.
    fn observe(&mut self, next: &Next) {
        match next {
            Some(Ok(frame)) => {
                let Some(trailers) = frame.trailers_ref() else {
                    return;
                };
                self.finish(if grpc::has_ok_status(trailers) {
                    Code::Ok
                } else {
                    Status::from_header_map(trailers).map_or(Code::Unknown, |s| s.code())
                });
            }
            Some(Err(_)) => self.finish(Code::Unavailable),
            None => self.finish(Code::Unknown),
        }
    }

    fn finish(&mut self, code: Code) {
        if let Some(finish) = self.0.take() {
            finish(code);
        }
    }
}

impl<F: FnOnce(Code)> Drop for FinishOnce<F> {
    fn drop(&mut self) {
        self.finish(Code::Cancelled);
    }
}
