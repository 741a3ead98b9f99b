//! The internal API for other sidecars.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use outrigger_actors::routes::{Origin, Stamp};
use outrigger_identity::SpiffeId;
use outrigger_runtime::call::{AppStatus, Reply};
use outrigger_runtime::scheduler::DeliveryStarted;
use outrigger_telemetry::trace::{Parent, SpanKind, Status as SpanStatus, Tracer};
use outrigger_transport::headers::{names, put_identities};
use outrigger_wire::internals::v1::{InternalInvokeRequest, InternalInvokeResponse, Reminder};
use outrigger_wire::invoke::{Actor, Limits, RequestHead, ResponseHead};
use prost::Message as _;
use tonic::{Code, Status};

use super::app::is_cancelled;
use super::call::Message;
use super::remote::{CANCELLED, HANDED, restore_case};
use super::{ActorCall, ActorError, Actors, Caller, HANDED_BY, REMOTE, check, check_name, spans};

/// A call of another sidecar.
pub struct Served<'a> {
    /// The caller's identity; `None` without mTLS.
    pub peer: Option<&'a SpiffeId>,
    /// gRPC metadata.
    pub headers: &'a HeaderMap,
    /// Starts spans.
    pub tracer: &'a Tracer,
    /// The encoded request.
    pub message: Bytes,
}

impl Actors {
    /// `CallActor`.
    ///
    /// # Errors
    /// The status for the calling sidecar.
    pub async fn serve_call(&self, served: Served<'_>) -> Result<InternalInvokeResponse, Status> {
        let origin = origin(served.headers);
        let message = InternalInvokeRequest::decode(served.message).map_err(|error| unread(&error))?;
        let mut call = self.call_of(served.peer, origin, message)?;
        let mut span = served
            .tracer
            .start(SpanKind::Server, "", &Parent::from_grpc(served.headers));
        span.call_actor(&call.kind, &call.id, &call.method);
        call.trace = span.as_parent();
        let result = self.received(&Message::Call(&call), origin).await;
        if let Err(error) = &result {
            span.set_status(SpanStatus::Error(error.to_string()));
        }
        response(result.map_err(|error| status(&error))?, self.with.max_message).await
    }

    /// `CallActorReminder`: a due timer or reminder.
    ///
    /// # Errors
    /// The status for the calling sidecar.
    pub async fn serve_reminder(&self, served: Served<'_>) -> Result<(), Status> {
        let reminder = Reminder::decode(served.message)
            .map_err(|error| Status::invalid_argument(format!("cannot decode the reminder: {error}")))?;
        self.admit(served.peer, &reminder.actor_type)?;
        let caller = self.caller(served.peer);
        let access = &self.with.workflow_access;
        access.admit_reminder(&caller, &reminder.actor_type)?;
        check(&reminder.actor_type, &reminder.actor_id).map_err(|error| status(&error))?;
        check_name("name", &reminder.name).map_err(|error| status(&error))?;
        let origin = origin(served.headers);
        let mut span = spans::passed_on(served.tracer, &reminder, &Parent::from_grpc(served.headers));
        let trace = span.as_parent();
        let begun = DeliveryStarted::default();
        let due = Message::Due(&reminder, &trace, &begun);
        let reply = self.received(&due, origin).await;
        spans::note(&mut span, &reply);
        match reply.map_err(|error| status(&error))? {
            reply if is_cancelled(&reply) => Err(Status::unknown(CANCELLED)),
            _ => Ok(()),
        }
    }

    /// Rejects callers of other namespaces: a placement table covers one namespace.
    fn admit(&self, peer: Option<&SpiffeId>, kind: &str) -> Result<(), Status> {
        let of_other = peer.filter(|peer| *peer.namespace() != *self.with.namespace);
        let Some(peer) = of_other else { return Ok(()) };
        Err(self
            .with
            .workflow_access
            .denial_of_namespace(kind)
            .unwrap_or_else(|| {
                Status::permission_denied(format!(
                    "actors of namespace {} cannot be called from namespace {}",
                    self.with.namespace,
                    peer.namespace()
                ))
            }))
    }

    /// The app of a peer of this namespace.
    fn caller(&self, peer: Option<&SpiffeId>) -> Caller {
        match peer.map(SpiffeId::app_id) {
            None => Caller::Unknown,
            Some(app) if app == &*self.with.app_id => Caller::Own,
            Some(app) => Caller::App(app.to_owned()),
        }
    }

    /// Decodes and admits a call of another sidecar, without a span. The caller is the certificate's. Only a
    /// sidecar of the same app that forwards a call may name another caller: it has verified that caller, and
    /// its own identity would give a foreign call the app's rights.
    pub(super) fn call_of(
        &self,
        peer: Option<&SpiffeId>,
        origin: Origin,
        message: InternalInvokeRequest,
    ) -> Result<ActorCall, Status> {
        let mut call = call_of(message)?;
        self.admit(peer, &call.kind)?;
        call.caller = self.caller(peer);
        let is_forwarded = matches!(origin, Origin::Handed(_)) && call.caller == Caller::Own;
        if is_forwarded {
            call.caller = self.named_caller(&call.metadata, &names::CALLER_APP_ID);
        } else if let Some(peer) = peer {
            put_identities(&mut call.metadata, peer, &self.with.app_id);
        }
        if call.caller == Caller::Own && call.metadata.contains_key(HANDED_BY) {
            call.caller = self.named_caller(&call.metadata, &HANDED_BY);
        }
        self.with.workflow_access.admit(&call)?;
        call.metadata.insert(REMOTE, HeaderValue::from_static("true"));
        Ok(call)
    }

    /// The caller that a sidecar of this app has verified; this app itself names none.
    fn named_caller(&self, metadata: &HeaderMap, name: &HeaderName) -> Caller {
        match metadata.get(name).map(HeaderValue::to_str) {
            None => Caller::Own,
            Some(Ok(app)) if app == &*self.with.app_id => Caller::Own,
            Some(Ok(app)) => Caller::App(app.to_owned()),
            Some(Err(_)) => Caller::Unknown,
        }
    }
}

fn origin(headers: &HeaderMap) -> Origin {
    let stamp = headers.get(HANDED).and_then(|value| value.to_str().ok());
    stamp.and_then(Stamp::parse).map_or(Origin::Peer, Origin::Handed)
}

pub(super) fn unread(error: &dyn std::fmt::Display) -> Status {
    Status::invalid_argument(format!("parsing InternalInvokeRequest error: {error}"))
}

fn call_of(message: InternalInvokeRequest) -> Result<ActorCall, Status> {
    let (head, body) =
        RequestHead::from_message(message, &Limits::default()).map_err(|error| unread(&error))?;
    let Actor { kind, id } = head.actor.clone().unwrap_or_default();
    check(&kind, &id).map_err(|error| status(&error))?;
    let method = outrigger_policy::path::canonical(&head.method)
        .map_err(|error| Status::invalid_argument(format!("invalid method: {error}")))?
        .into_owned();
    let from_grpc = head.is_from_grpc();
    let mut metadata = head.metadata;
    metadata.remove(names::API_TOKEN);
    Ok(ActorCall {
        kind,
        id,
        method,
        query: head.query,
        content_type: head.content_type,
        metadata,
        from_grpc,
        body,
        trace: Parent::default(),
        caller: Caller::Unknown,
    })
}

/// The status of a failure for the calling sidecar.
pub(super) fn status(error: &ActorError) -> Status {
    let code = match error {
        ActorError::NoPlacement | ActorError::Ended => Code::Unavailable,
        ActorError::NoNamespace => Code::FailedPrecondition,
        ActorError::Illegal(_) => Code::InvalidArgument,
        ActorError::TooDeep(_) => Code::ResourceExhausted,
        ActorError::Peer(status) | ActorError::Cut(status) | ActorError::Internal(status) => {
            return status.clone();
        }
        // A code that makes callers, Dapr's too, look the actor up again: by their table this host has the
        // type.
        ActorError::NoAddress { .. } => {
            return Status::internal(format!("error invoke actor method: {}", ActorError::Moved));
        }
        other => return Status::internal(format!("error invoke actor method: {other}")),
    };
    Status::new(code, error.to_string())
}

async fn response(reply: Reply, limit: usize) -> Result<InternalInvokeResponse, Status> {
    let body = reply.body.collect_up_to(limit).await;
    let body = body.map_err(|error| outrigger_transport::grpc::body_status(&error))?;
    let (status_code, status_message) = match reply.status {
        AppStatus::Http(code) => (code.into(), String::new()),
        AppStatus::Grpc { code, message, .. } => (code, message),
    };
    let head = ResponseHead {
        status_code,
        status_message,
        status_details: Vec::new(),
        headers: reply.headers,
        trailers: reply.trailers,
        content_type: reply.content_type,
        type_url: reply.type_url,
    };
    let mut message = head
        .into_message(body)
        .map_err(|error| Status::internal(error.to_string()))?;
    restore_case(&mut message.headers);
    Ok(message)
}

#[cfg(test)]
mod tests;
