//! Calls to actors of other sidecars.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use outrigger_actors::ring::Host;
use outrigger_actors::routes::Stamp;
use outrigger_runtime::call::{AppStatus, Reply};
use outrigger_transport::grpc;
use outrigger_transport::peer::{Failed, PeerError};
use outrigger_wire::internals::v1::{InternalInvokeResponse, ListStringValue};
use outrigger_wire::invoke::{Actor, Limits, RequestHead, ResponseHead, Verb};
use prost::Message as _;
use tonic::{Code, Status};

use super::call::Message;
use super::internal::is_reserved;
use super::{ActorCall, ActorError, Actors, CANCEL};

const CALL_ACTOR: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActor";
const CALL_ACTOR_REMINDER: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActorReminder";

/// The response for a timer or reminder that its actor has cancelled.
pub(super) const CANCELLED: &str = "reminder has been canceled";

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Proves to an actor's new host that the actor has ended on its old host. Sent only with handover.
pub(super) const HANDED: HeaderName = HeaderName::from_static("outrigger-handed-over");

/// Names that Dapr matches case-sensitively.
const CASE_SENSITIVE: [(&str, &str); 10] = [
    ("dapr-reentrancy-id", "Dapr-Reentrancy-Id"),
    ("dapr-api-call", "Dapr-API-Call"),
    ("x-dapr-remote", "X-Dapr-Remote"),
    ("x-daprerrorresponseheader", "X-Daprerrorresponseheader"),
    ("x-daprremindercancel", "X-Daprremindercancel"),
    ("duetime", "dueTime"),
    ("purgeretentioncall", "PurgeRetentionCall"),
    ("purgeforce", "PurgeForce"),
    ("checksubtreeterminal", "CheckSubtreeTerminal"),
    ("metadatafetchonly", "MetadataFetchOnly"),
];

/// Spells metadata names as Dapr expects.
pub(super) fn restore_case(metadata: &mut HashMap<String, ListStringValue>) {
    for (lower, spelled) in CASE_SENSITIVE {
        if let Some(values) = metadata.remove(lower) {
            metadata.insert(spelled.to_owned(), values);
        }
    }
}

impl Actors {
    /// Sends to an actor on another host. `stamp`: it has ended here.
    pub(super) async fn call_remote(
        &self,
        host: &Host,
        message: &Message<'_>,
        stamp: Option<Stamp>,
    ) -> Result<Reply, ActorError> {
        let trace = match message {
            Message::Call(call) => call.trace.clone(),
            Message::Due(_, trace, _) => (*trace).clone(),
        };
        message.begins();
        let (path, frame) = match message {
            Message::Call(call) => (CALL_ACTOR, grpc::frame(&request(call))),
            Message::Due(reminder, ..) => (CALL_ACTOR_REMINDER, grpc::frame(*reminder)),
        };
        let target = (&*host.app_id, &*self.with.namespace);
        let handed = stamp.and_then(|stamp| HeaderValue::try_from(stamp.to_string()).ok());
        let limit = self.with.max_message;
        // The connection broke after the call may have started.
        let cut = &AtomicBool::new(false);
        let unknown = |error: PeerError| failed(Status::unavailable(error.to_string()));
        let sent = self
            .with
            .peers
            .call_at(target, &host.address, unknown, |instance| async move {
                let mut request = grpc::request(path, frame.into());
                trace.inject_grpc(request.headers_mut());
                if let Some(handed) = handed {
                    request.headers_mut().insert(HANDED, handed);
                }
                let response = instance.send(request).await.map_err(|error| {
                    cut.store(!error.is_repeatable(), Ordering::Relaxed);
                    Failed {
                        connection: error.is_unavailable(),
                        error: grpc::send_status(&error),
                    }
                })?;
                grpc::finish_unary(response, limit).await.map_err(|failure| {
                    let answered = [&failure.headers, &failure.trailers];
                    let answered = answered.iter().any(|fields| fields.contains_key(GRPC_STATUS));
                    cut.store(!answered, Ordering::Relaxed);
                    failed(failure.status)
                })
            });
        let answer = match sent.await {
            Ok(answer) => answer,
            Err(failed) if failed.error.message() == CANCELLED => return Ok(cancelled()),
            Err(failed) => {
                let error = ActorError::Peer(failed.error);
                let of_app = matches!(message, Message::Call(call) if !is_reserved(&call.kind));
                let begun = of_app && cut.load(Ordering::Relaxed);
                // A call that the app may have executed is not retried unless the caller does so. Reminders
                // are redelivered, and internal actors are idempotent.
                return Err(match begun {
                    true => ActorError::Invoke(error.to_string()),
                    false => error,
                });
            }
        };
        match message {
            Message::Call(_) => reply(answer.message).map_err(ActorError::Peer),
            Message::Due(..) => Ok(empty()),
        }
    }
}

pub(super) fn failed(error: Status) -> Failed<Status> {
    Failed {
        connection: error.code() == Code::Unavailable,
        error,
    }
}

/// An empty reply.
pub(super) fn empty() -> Reply {
    Reply::new(AppStatus::Http(200), outrigger_transport::body::Body::Empty)
}

/// The reply of an actor that cancels a timer or reminder.
pub(super) fn cancelled() -> Reply {
    let mut reply = empty();
    reply.headers.insert(CANCEL, HeaderValue::from_static("true"));
    reply
}

pub(super) fn request(call: &ActorCall) -> outrigger_wire::internals::v1::InternalInvokeRequest {
    let mut metadata = call.metadata.clone();
    // The receiver would treat it as a header of the app call.
    metadata.remove(http::header::CONTENT_LENGTH);
    let head = RequestHead {
        method: call.method.clone(),
        verb: Verb::Put,
        query: call.query.clone(),
        content_type: call.content_type.clone(),
        type_url: String::new(),
        metadata,
        http_names: !call.from_grpc,
        actor: Some(Actor {
            kind: call.kind.clone(),
            id: call.id.clone(),
        }),
    };
    let mut message = head.into_message(call.body.clone());
    restore_case(&mut message.metadata);
    message
}

fn reply(message: Bytes) -> Result<Reply, Status> {
    let malformed =
        |error: &dyn std::fmt::Display| Status::internal(format!("malformed answer of the peer: {error}"));
    let message = InternalInvokeResponse::decode(message).map_err(|error| malformed(&error))?;
    let (head, data) =
        ResponseHead::from_message(message, &Limits::default()).map_err(|error| malformed(&error))?;
    let status = match u16::try_from(head.status_code) {
        // An interim status ends no response (RFC 9110, section 15.2).
        Ok(code @ 100..200) => return Err(malformed(&format_args!("status {code} is an interim one"))),
        Ok(code) if code >= 100 => AppStatus::Http(code),
        _ => AppStatus::Grpc {
            code: head.status_code,
            message: head.status_message,
            details: Vec::new(),
        },
    };
    let type_of_body = |value: &HeaderValue| !value.is_empty();
    Ok(Reply {
        status,
        content_type: head.content_type.filter(type_of_body),
        headers: head.headers,
        trailers: head.trailers,
        type_url: head.type_url,
        body: data.into(),
    })
}
