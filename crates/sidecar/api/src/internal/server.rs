//! The server that other sidecars call.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response};
use outrigger_blocks_actors::actors::{Actors, Served};
use outrigger_identity::SpiffeId;
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::call::{AppStatus, Call, Reply};
use outrigger_runtime::internal::stream::{ChunkStream, Direction, Finish, MessageStream, entries, inlined};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::trace::{Parent, Span, SpanKind, Tracer};
use outrigger_transport::body::Body;
use outrigger_transport::grpc::{self, CONTENT_TYPE_GRPC};
use outrigger_transport::headers::{names, put_identities, wants_events};
use outrigger_transport::listen::{Client, Handler};
use outrigger_wire::internals::v1::InternalInvokeRequest;
use outrigger_wire::invoke::{
    self, Chunk, Limits, RequestHead, ResponseHead, ResponseParts, Verb, method_of,
};
use prost::Message;
use tonic::{Code, Status};

use crate::access::Access;
use crate::proxy::Proxy;
use crate::reflection::Reflection;

const SERVICE: &str = "/dapr.proto.internals.v1.ServiceInvocation/";
/// Its unary methods, as metrics count them.
const UNARY: [&str; 3] = [
    "/dapr.proto.internals.v1.ServiceInvocation/CallLocal",
    "/dapr.proto.internals.v1.ServiceInvocation/CallActor",
    "/dapr.proto.internals.v1.ServiceInvocation/CallActorReminder",
];
/// Metric label of unknown methods, whose names a peer can choose freely.
const UNKNOWN: &str = "other";

/// Serves `dapr.proto.internals.v1.ServiceInvocation`, reflection, and proxied calls to the app.
pub struct InternalApi {
    /// The app that this sidecar serves.
    pub app_id: Arc<str>,
    /// The app; `None` without app port.
    pub app: Option<Arc<AppChannel>>,
    /// The actors of this app.
    pub actors: Arc<Actors>,
    /// Access control of this app.
    pub access: Arc<Access>,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
    /// Forwards calls of other services to the app.
    pub proxy: Arc<Proxy>,
    /// Describes the services.
    pub reflection: Reflection,
    /// Largest message, bytes.
    pub max_message: usize,
}

impl Handler for InternalApi {
    async fn handle(self: Arc<Self>, client: Arc<Client>, request: Request<Body>) -> Response<Body> {
        let started = Instant::now();
        let path = match grpc::method(&request) {
            Ok(path) => path,
            Err(status) => return grpc::status_response(&status),
        };
        let counted = counted_as(path);
        let response = self.answer(client.identity.as_ref(), request).await;
        if let Some(method) = counted {
            let code = grpc::early_status(&response).map_or(Code::Ok, |s| s.code());
            self.metrics.grpc_server(method, code, started.elapsed(), 0, 0);
        }
        response
    }
}

/// The metric label of a call of `path`; streams and proxied calls are not counted here.
fn counted_as(path: &str) -> Option<&'static str> {
    let method = path.strip_prefix(SERVICE)?;
    if matches!(method, "CallLocalStream" | "CallActorStream") {
        return None;
    }
    Some(UNARY.into_iter().find(|known| *known == path).unwrap_or(UNKNOWN))
}

impl InternalApi {
    /// Handles one request of the peer with identity `peer` (`None` without mTLS).
    async fn answer(&self, peer: Option<&SpiffeId>, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        if let Some(method) = path.strip_prefix(SERVICE) {
            let result = match method {
                "CallLocalStream" => self.call_local_stream(peer, request).await,
                "CallLocal" => self.call_local(peer, request).await,
                "CallActor" => Box::pin(self.call_actor(peer, request)).await,
                "CallActorStream" => Box::pin(self.call_actor_stream(peer, request)).await,
                "CallActorReminder" => Box::pin(self.call_actor_reminder(peer, request)).await,
                _ => Err(Status::unimplemented(format!(
                    "{path} is not implemented by this sidecar"
                ))),
            };
            return result.unwrap_or_else(|status| grpc::status_response(&status));
        }
        if Reflection::serves(path) {
            return self.reflection.handle(request).await;
        }
        Box::pin(self.proxy.inbound(peer, request)).await
    }

    async fn call_local_stream(
        &self,
        peer: Option<&SpiffeId>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let app = self.app()?;
        let (parts, body) = request.into_parts();
        let mut stream = MessageStream::new(body, Direction::Request, self.max_message);
        let message = std::future::poll_fn(|cx| stream.poll_message(cx))
            .await?
            .ok_or_else(no_head)?;
        let frame = invoke::decode_request(&message, stream.limits())
            .map_err(|e| Status::invalid_argument(format!("parsing InternalInvokeRequest error: {e}")))?;
        let head = frame.head.ok_or_else(no_head)?;
        stream.expect(&head.metadata);
        stream.take_payload(frame.payload)?;
        let (mut span, head, method) = self.admit(peer, &parts.headers, head)?;
        if may_lack_body(&head) {
            stream.wait_first().await;
        }
        let call = call(head, method, stream.into_body()?, &span);
        let source = self.count_request(&call.metadata);
        let wants_events = wants_events(&call.metadata);
        let reply = app.invoke(call).await.map_err(|e| e.status());
        self.finish_span(&mut span, reply.as_ref().err());
        let reply = reply?;
        // A caller that accepts events gets events or an error, not an app's error page. gRPC apps have no
        // events.
        let is_page = matches!(reply.status, AppStatus::Http(_)) && !reply.status.is_success();
        if wants_events && is_page {
            return Err(Status::internal(
                "error invoking app channel: no response received from stream",
            ));
        }
        self.metrics.invoke_response(&source, reply.status.code());
        stream_reply(reply)
    }

    async fn call_local(
        &self,
        peer: Option<&SpiffeId>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let app = self.app()?;
        let (parts, body) = request.into_parts();
        let message = self.message(body).await?;
        let message = InternalInvokeRequest::decode(message)
            .map_err(|e| Status::invalid_argument(format!("parsing InternalInvokeRequest error: {e}")))?;
        let (head, data) = RequestHead::from_message(message, &Limits::default())
            .map_err(|e| Status::invalid_argument(format!("parsing InternalInvokeRequest error: {e}")))?;
        let (mut span, head, method) = self.admit(peer, &parts.headers, head)?;
        let call = call(head, method, data.into(), &span);
        let source = self.count_request(&call.metadata);
        let reply = app.invoke(call).await.map_err(|e| e.status());
        self.finish_span(&mut span, reply.as_ref().err());
        let reply = reply?;
        self.metrics.invoke_response(&source, reply.status.code());
        self.unary_reply(reply).await
    }

    async fn message(&self, body: Body) -> Result<Bytes, Status> {
        let body = grpc::one_message(body)
            .collect_up_to(self.max_message.saturating_add(grpc::PREFIX))
            .await;
        grpc::unframe(body.map_err(|e| grpc::body_status(&e))?)
    }

    /// Handles an actor call of another sidecar.
    async fn served<'a>(
        &'a self,
        peer: Option<&'a SpiffeId>,
        headers: &'a HeaderMap,
        body: Body,
    ) -> Result<Served<'a>, Status> {
        Ok(Served {
            peer,
            headers,
            tracer: &self.tracer,
            message: self.message(body).await?,
        })
    }

    async fn call_actor(
        &self,
        peer: Option<&SpiffeId>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let (parts, body) = request.into_parts();
        let served = self.served(peer, &parts.headers, body).await?;
        let answer = self.actors.serve_call(served).await?;
        Ok(streamed(grpc::frame(&answer), Body::Empty, 0))
    }

    async fn call_actor_stream(
        &self,
        peer: Option<&SpiffeId>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let (parts, body) = request.into_parts();
        let served = self.served(peer, &parts.headers, body).await?;
        let updates = self.actors.serve_watch(served).await?;
        let mut response = Response::new(grpc::server_stream(updates));
        response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
        Ok(response)
    }

    async fn call_actor_reminder(
        &self,
        peer: Option<&SpiffeId>,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status> {
        let (parts, body) = request.into_parts();
        let served = self.served(peer, &parts.headers, body).await?;
        self.actors.serve_reminder(served).await?;
        Ok(streamed(grpc::frame(&()), Body::Empty, 0))
    }

    fn app(&self) -> Result<&AppChannel, Status> {
        self.app
            .as_deref()
            .ok_or_else(|| Status::internal("app channel is not initialized"))
    }

    /// Takes identities from the caller's certificate, not its headers. Normalises the method once; access
    /// control and dispatch use that value.
    fn admit(
        &self,
        peer: Option<&SpiffeId>,
        headers: &HeaderMap,
        mut head: RequestHead,
    ) -> Result<(Span, RequestHead, String), Status> {
        head.metadata.remove(names::API_TOKEN);
        if let Some(peer) = peer {
            put_identities(&mut head.metadata, peer, &self.app_id);
        }
        let method = outrigger_policy::path::canonical(&head.method)
            .map_err(|e| Status::invalid_argument(format!("invalid method: {e}")))?
            .into_owned();
        let mut span = self
            .tracer
            .start(SpanKind::Server, "", &Parent::from_grpc(headers));
        if span.is_recording() {
            span.set_name(format!("CallLocal/{}/{method}", self.app_id));
            span.set("dapr.protocol", "grpc");
            span.set("dapr.api", format!("{SERVICE}CallLocal"));
            span.set("rpc.service", "ServiceInvocation");
            span.set("dapr.invoke_method", method.clone());
        }
        self.access.check(
            peer,
            &method,
            method_of(head.verb).as_ref().map_or("NONE", Method::as_str),
        )?;
        Ok((span, head, method))
    }

    fn count_request(&self, metadata: &HeaderMap) -> String {
        let source = metadata
            .get(names::CALLER_APP_ID)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("unknown");
        self.metrics.invoke_request(source);
        source.to_owned()
    }

    fn finish_span(&self, span: &mut Span, error: Option<&Status>) {
        if let Some(status) = error {
            span.set_status(outrigger_telemetry::trace::Status::Error(
                status.message().to_owned(),
            ));
        }
    }

    async fn unary_reply(&self, reply: Reply) -> Result<Response<Body>, Status> {
        let data = reply
            .body
            .collect_up_to(self.max_message)
            .await
            .map_err(|e| grpc::body_status(&e))?;
        let (status_code, status_message, status_details) = status_parts(reply.status);
        let head = ResponseHead {
            status_code,
            status_message,
            status_details,
            headers: reply.headers,
            trailers: reply.trailers,
            content_type: reply.content_type,
            type_url: reply.type_url,
        };
        let message = head
            .into_message(data)
            .map_err(|e| Status::internal(e.to_string()))?;
        Ok(streamed(grpc::frame(&message), Body::Empty, 0))
    }
}

fn no_head() -> Status {
    Status::invalid_argument(
        "parsing InternalInvokeRequest error: \
         request does not contain the required fields in the leading chunk",
    )
}

/// Whether the request may have no body. Such requests briefly wait for its end, because HTTP/1.1 would
/// otherwise send a chunked body.
fn may_lack_body(head: &RequestHead) -> bool {
    !head.metadata.contains_key(CONTENT_LENGTH)
        && matches!(
            head.verb,
            Verb::Get | Verb::Head | Verb::Delete | Verb::Options | Verb::Trace
        )
}

fn call(head: RequestHead, method: String, body: Body, span: &Span) -> Call {
    Call {
        from_grpc: head.is_from_grpc(),
        method,
        octets: None,
        verb: method_of(head.verb),
        query: head.query,
        content_type: head.content_type,
        type_url: head.type_url,
        metadata: head.metadata,
        body,
        trace: span.as_parent(),
    }
}

fn status_parts(status: AppStatus) -> (i32, String, Vec<Bytes>) {
    match status {
        AppStatus::Http(code) => (code.into(), String::new(), Vec::new()),
        AppStatus::Grpc {
            code,
            message,
            details,
        } => (
            code,
            message,
            details.iter().map(|d| d.encode_to_vec().into()).collect(),
        ),
    }
}

fn stream_reply(reply: Reply) -> Result<Response<Body>, Status> {
    let from_http = matches!(reply.status, AppStatus::Http(_));
    let (status_code, status_message, status_details) = status_parts(reply.status);
    let parts = ResponseParts {
        status_code,
        status_message: &status_message,
        status_details: &status_details,
        content_type: reply.content_type.as_ref().map_or(&[], |v| v.as_bytes()),
        type_url: &reply.type_url,
    };
    let data = inlined(&reply.body);
    let chunk = data.map(|data| Chunk {
        seq: 0,
        len: data.len(),
    });
    let mut head = BytesMut::with_capacity(512 + data.map_or(0, Bytes::len));
    let headers = entries(&reply.headers, from_http);
    invoke::encode_response(&parts, headers, entries(&reply.trailers, false), chunk, &mut head)
        .map_err(|e| Status::internal(e.to_string()))?;
    if let Some(data) = data {
        head.extend_from_slice(data);
    }
    let rest = if data.is_some() { Body::Empty } else { reply.body };
    Ok(streamed(head.freeze(), rest, u64::from(chunk.is_some())))
}

fn streamed(head: Bytes, rest: Body, next_seq: u64) -> Response<Body> {
    let body = ChunkStream::new(head, rest, next_seq, Finish::Trailers);
    let mut response = Response::new(Body::Stream(Box::pin(body)));
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_unknown_methods_as_one() {
        let of = |method: &str| counted_as(&format!("{SERVICE}{method}"));
        for known in UNARY {
            assert_eq!(counted_as(known), Some(known));
        }
        for unknown in ["CallRemote", "CallRemoteStream", "", "CallLocal2"] {
            assert_eq!(of(unknown), Some(UNKNOWN), "{unknown}");
        }
        for elsewhere in ["CallLocalStream", "CallActorStream"] {
            assert_eq!(of(elsewhere), None, "{elsewhere}");
        }
        assert_eq!(counted_as("/orders.Orders/Get"), None);
    }
}
