//! Calls of an app through its sidecar: `CallLocalStream`, and `CallLocal` for older peers.

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Frame;
use outrigger_transport::body::{Body, REPLAY_LIMIT, Replayable};
use outrigger_transport::conn::SendError;
use outrigger_transport::grpc;
use outrigger_transport::peer::Instance;
use outrigger_wire::internals::v1::{InternalInvokeRequest, InternalInvokeResponse};
use outrigger_wire::invoke::{self, Chunk, Limits, RequestHead, RequestParts, ResponseHead, verb_of};
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use super::stream::{ChunkStream, Direction, Finish, MessageStream, entries, inlined};
use crate::call::{AppStatus, Call, Reply};

const CALL_LOCAL: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallLocal";
const CALL_LOCAL_STREAM: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallLocalStream";

/// A call whose head was encoded once for all attempts.
pub struct OpenRequest {
    call: Call<Replayable>,
    first: Bytes,
    /// Whether `first` contains the payload.
    is_whole: bool,
}

/// Encodes the head of `call`, with the payload if it is small.
///
/// # Errors
/// The metadata are too large for a frame.
pub fn open_request(mut call: Call) -> Result<OpenRequest, Status> {
    let parts = RequestParts {
        method: &call.method,
        verb: call.verb.as_ref().map(verb_of).unwrap_or_default(),
        query: &call.query,
        content_type: call.content_type.as_ref().map_or(&[], |v| v.as_bytes()),
        type_url: &call.type_url,
        actor: None,
    };
    let data = inlined(&call.body);
    let chunk = data.map(|data| Chunk {
        seq: 0,
        len: data.len(),
    });
    let mut first = BytesMut::with_capacity(1024 + data.map_or(0, Bytes::len));
    invoke::encode_request(
        &parts,
        entries(&call.metadata, !call.from_grpc),
        chunk,
        &mut first,
    )
    .map_err(|e| Status::invalid_argument(e.to_string()))?;
    if let Some(data) = data {
        first.extend_from_slice(data);
    }
    let is_whole = data.is_some() || matches!(call.body, Body::Empty);
    if let Body::Full(bytes) = &call.body
        && bytes.len() > REPLAY_LIMIT
    {
        // As a stream it is sent once, and its memory is freed afterwards.
        call.body = Body::Empty.after(Some(Ok(Frame::data(bytes.clone()))));
    }
    Ok(OpenRequest {
        is_whole,
        first: first.freeze(),
        call: call.replayable(),
    })
}

impl OpenRequest {
    /// Whether another attempt is possible.
    pub fn can_repeat(&self) -> bool {
        self.call.body.can_repeat()
    }

    fn body(&self) -> Option<Body> {
        if self.is_whole {
            return Some(Body::Full(self.first.clone()));
        }
        let rest = self.call.body.attempt()?;
        let chunks = ChunkStream::new(self.first.clone(), rest, 0, Finish::End);
        Some(Body::Stream(Box::pin(chunks)))
    }

    /// The call as a single message.
    fn message(&self, data: Bytes) -> InternalInvokeRequest {
        let call = &self.call;
        let head = RequestHead {
            verb: call.verb.as_ref().map(verb_of).unwrap_or_default(),
            method: call.method.clone(),
            query: call.query.clone(),
            content_type: call.content_type.clone(),
            type_url: call.type_url.clone(),
            metadata: call.metadata.clone(),
            http_names: !call.from_grpc,
            actor: None,
        };
        head.into_message(data)
    }
}

/// Why an attempt at a remote call failed.
pub struct RemoteError {
    /// The status for the caller.
    pub status: Status,
    /// Whether the peer was unreachable or disconnected, so that another instance or a new connection may
    /// succeed.
    pub connection: bool,
}

impl From<Status> for RemoteError {
    fn from(status: Status) -> Self {
        Self {
            status,
            connection: false,
        }
    }
}

impl From<SendError> for RemoteError {
    fn from(error: SendError) -> Self {
        Self {
            connection: error.is_unavailable(),
            status: grpc::send_status(&error),
        }
    }
}

/// One attempt: sends the call to an instance of the target and waits for the head of the app's response. The
/// payload follows as the reply's body, in messages of at most `max_message` bytes.
///
/// # Errors
/// [`RemoteError`] if the peer returned no response of the app.
pub async fn call_remote(
    instance: &Instance,
    request: &OpenRequest,
    max_message: usize,
) -> Result<Reply, RemoteError> {
    let Some(body) = request.body() else {
        return Err(
            Status::internal("the request body was already sent and is too large to be replayed").into(),
        );
    };
    let mut http = grpc::request(CALL_LOCAL_STREAM, body);
    request.call.trace.inject_grpc(http.headers_mut());
    let response = instance.send(http).await?;
    match grpc::early_status(&response) {
        Some(status) if status.code() == Code::Unimplemented => {
            return call_unary(instance, request, max_message).await;
        }
        Some(status) if status.code() != Code::Ok => return Err(status.into()),
        _ => {}
    }
    let mut stream = MessageStream::new(response.into_body(), Direction::Response, max_message);
    let first = std::future::poll_fn(|cx| stream.poll_message(cx)).await;
    let message = match first {
        Ok(Some(message)) => message,
        Ok(None) => return Err(missing_head().into()),
        Err(status) if status.code() == Code::Unimplemented => {
            return call_unary(instance, request, max_message).await;
        }
        Err(status) => {
            let connection = status.code() == Code::Unavailable;
            return Err(RemoteError { status, connection });
        }
    };
    let frame = invoke::decode_response(&message, stream.limits())
        .map_err(|e| Status::internal(format!("malformed answer of the peer: {e}")))?;
    let Some(head) = frame.head else {
        return Err(missing_head().into());
    };
    stream.expect(&head.headers);
    stream.take_payload(frame.payload)?;
    reply(head, stream.into_body()?).map_err(RemoteError::from)
}

fn missing_head() -> Status {
    Status::internal("response does not contain the required fields in the leading chunk")
}

fn reply(head: ResponseHead, body: Body) -> Result<Reply, Status> {
    let status = match u16::try_from(head.status_code) {
        Ok(code) if is_interim(code) => {
            return Err(Status::internal(format!(
                "malformed answer of the peer: status {code} is an interim one"
            )));
        }
        Ok(code) if code >= 100 => AppStatus::Http(code),
        _ => AppStatus::Grpc {
            code: head.status_code,
            message: head.status_message,
            details: head
                .status_details
                .into_iter()
                .filter_map(|d| Any::decode(d).ok())
                .collect(),
        },
    };
    Ok(Reply {
        status,
        headers: head.headers,
        trailers: head.trailers,
        content_type: head.content_type,
        type_url: head.type_url,
        body,
    })
}

/// Whether the status is interim and cannot end a response (RFC 9110, section 15.2). 101 can; it is handled
/// with the responses of apps.
fn is_interim(code: u16) -> bool {
    (100..200).contains(&code) && code != StatusCode::SWITCHING_PROTOCOLS
}

/// Falls back to the unary call for a peer without the streaming one, if the body can be replayed.
async fn call_unary(
    instance: &Instance,
    request: &OpenRequest,
    max_message: usize,
) -> Result<Reply, RemoteError> {
    tracing::warn!(
        target: "dapr.runtime.direct_messaging",
        "The target's sidecar does not support streaming-based service invocation; falling back to unary calls"
    );
    let data = match request.call.body.attempt() {
        Some(Body::Full(data)) if request.is_whole => data,
        Some(body) => collect(body, max_message).await?,
        None => return Err(no_streaming()),
    };
    let message = request.message(data);
    let mut http = grpc::request(CALL_LOCAL, grpc::frame(&message).into());
    request.call.trace.inject_grpc(http.headers_mut());
    let response = instance.send(http).await?;
    let answer = grpc::finish_unary(response, max_message)
        .await
        .map_err(|f| f.status)?;
    let message = InternalInvokeResponse::decode(answer.message)
        .map_err(|e| Status::internal(format!("malformed answer of the peer: {e}")))?;
    let (head, data) = ResponseHead::from_message(message, &Limits::default())
        .map_err(|e| Status::internal(format!("malformed answer of the peer: {e}")))?;
    reply(head, data.into()).map_err(RemoteError::from)
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, Status> {
    body.collect_up_to(limit).await.map_err(|e| grpc::body_status(&e))
}

fn no_streaming() -> RemoteError {
    Status::unimplemented(
        "the target app is running a version of Dapr that does not support streaming-based service invocation",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use http_body_util::BodyExt as _;
    use outrigger_telemetry::trace::Parent;

    use super::*;

    #[tokio::test]
    async fn large_body_in_memory_is_sent_once() {
        for (len, again) in [(REPLAY_LIMIT, true), (REPLAY_LIMIT + 1, false)] {
            let body = Body::Full(Bytes::from(vec![b'x'; len]));
            let call = Call::own(
                Method::POST,
                "m".to_owned(),
                HeaderMap::new(),
                body,
                Parent::default(),
            );
            let request = open_request(call).unwrap_or_else(|status| panic!("{status}"));
            let first = request.body().unwrap_or_default();
            assert!(
                first
                    .collect()
                    .await
                    .is_ok_and(|sent| sent.to_bytes().len() > len)
            );
            assert_eq!(request.can_repeat(), again, "{len} bytes");
        }
    }
}
