//! Watching internal actors: one request, then the actor's updates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::BodyExt;
use outrigger_actors::ring::Host;
use outrigger_actors::routes::{Origin, Route};
use outrigger_policy::resiliency::{Builtin, Key};
use outrigger_runtime::resilience::Attempts;
use outrigger_transport::body::Body;
use outrigger_transport::grpc;
use outrigger_transport::peer::{Failed, PeerError};
use outrigger_wire::internals::v1::{InternalInvokeRequest, InternalInvokeResponse, Status as CallStatus};
use outrigger_wire::invoke::FrameReader;
use prost::Message as _;
use tonic::{Code, Status};

use super::call::{no_address, outcome};
use super::host::TurnRequest;
use super::internal::Update;
use super::remote::{failed, request};
use super::serve::{Served, status, unread};
use super::type_admission::InFlight;
use super::{ActorCall, ActorError, Actors, check};

const CALL_ACTOR_STREAM: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActorStream";

/// Updates of an actor; the last one may be the error that ended them.
pub type ActorStream = BoxStream<'static, Result<Update, ActorError>>;

impl Actors {
    /// Watches an internal actor. If the actor moves, the updates end with a routing error: watch again.
    ///
    /// # Errors
    /// [`ActorError`]; `Unimplemented` for an app's actor.
    pub async fn watch(&self, call: &ActorCall) -> Result<ActorStream, ActorError> {
        let resilience = &self.with.resilience;
        let builtin = Arc::clone(resilience.policies.load().builtin(Builtin::ActorNotFoundRetries));
        let attempts = Attempts::new(Some(&builtin), Key::NONE, &resilience.metrics);
        let watched = attempts.until(&self.ended).run(async |_| {
            let result = Box::pin(self.watch_once(call)).await;
            let outcome = outcome(&result);
            (result, outcome)
        });
        watched
            .await
            .unwrap_or_else(|refused| Err(ActorError::Invoke(refused.to_string())))
    }

    /// As [`Actors::watch`], for updates that must not be lost: nothing is retried here, and
    /// [`ActorError::Cut`] says that a broken connection may have carried an update.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn watch_once(&self, call: &ActorCall) -> Result<ActorStream, ActorError> {
        check(&call.kind, &call.id)?;
        self.known(&call.kind).await?;
        loop {
            let mut steps = self.steps.subscribe();
            let guard = self.admit_call(&call.kind, &call.id).await?;
            let routes = self.routes.load_full();
            match routes.route(Origin::Own, &call.kind, &call.id) {
                Route::Local => return self.watch_here(guard, call).await,
                Route::Remote(host) | Route::Forward(host, _) => {
                    drop(guard);
                    return self.watch_there(host, call).await;
                }
                Route::Wait => {
                    drop(guard);
                    self.next_step(&mut steps).await?;
                }
                Route::Moved | Route::NoHost => return Err(no_address(&call.kind, &call.id)),
            }
        }
    }

    /// Watches an actor of this sidecar. A watch does not delay a new table, but ends with it.
    async fn watch_here(&self, guard: InFlight, call: &ActorCall) -> Result<ActorStream, ActorError> {
        let mut steps = self.steps.subscribe();
        let (name, id) = (call.kind.clone(), call.id.clone());
        let moved = async move {
            // The sender is gone: nothing is left to watch.
            let _moved = steps.wait_for(|routes| !routes.owns(&name, &id)).await;
        };
        let hosted = self.hosted.load_full();
        // The table predates the types; the watcher may look the actor up again.
        let kind = hosted.get(&call.kind).ok_or(ActorError::Moved)?;
        let closed = kind.admission.closed();
        let Some(internal) = &kind.internal else {
            let text = "actors of apps cannot be watched";
            return Err(ActorError::Internal(Status::unimplemented(text)));
        };
        let stays = || self.routes.load().route(Origin::Own, &call.kind, &call.id) == Route::Local;
        let turn_request = TurnRequest::new(&stays);
        let watching = tokio::select! {
            biased;
            watching = internal.watch(kind, call, &turn_request) => watching?,
            () = guard.cancelled() => return Err(ActorError::Disseminating),
        };
        let ended = watching.ended;
        let end = async move {
            tokio::select! {
                () = closed => ActorError::Disseminating,
                () = moved => ActorError::Disseminating,
                () = ended.cancelled() => ActorError::Moved,
            }
        };
        let updates = stream::unfold(Some((watching.updates, end.boxed())), |state| async move {
            let (mut updates, mut end) = state?;
            tokio::select! {
                biased;
                next = updates.next() => {
                    let next = next?.map_err(ActorError::Internal);
                    Some((next, Some((updates, end))))
                }
                error = &mut end => Some((Err(error), None)),
            }
        });
        Ok(updates.boxed())
    }

    async fn watch_there(&self, host: &Host, call: &ActorCall) -> Result<ActorStream, ActorError> {
        let frame = grpc::frame(&request(call));
        let target = (&*host.app_id, &*self.with.namespace);
        let unknown = |error: PeerError| failed(Status::unavailable(error.to_string()));
        // The connection broke after the actor may have sent an update.
        let cut = &AtomicBool::new(false);
        let opened = self
            .with
            .peers
            .call_at(target, &host.address, unknown, |instance| async move {
                let mut request = grpc::request(CALL_ACTOR_STREAM, frame.into());
                call.trace.inject_grpc(request.headers_mut());
                let response = instance.send(request).await.map_err(|error| {
                    cut.store(!error.is_repeatable(), Ordering::Relaxed);
                    Failed {
                        connection: error.is_unavailable(),
                        error: grpc::send_status(&error),
                    }
                })?;
                match grpc::early_status(&response) {
                    Some(status) if status.code() != Code::Ok => Err(failed(status)),
                    _ => Ok(response.into_body()),
                }
            });
        let body = opened.await.map_err(|failed| match cut.load(Ordering::Relaxed) {
            true => ActorError::Cut(failed.error),
            false => ActorError::Peer(failed.error),
        })?;
        let messages = Messages {
            body,
            frames: FrameReader::new(self.with.max_message),
        };
        let updates = stream::unfold(Some(messages), |state| async move {
            let mut messages = state?;
            match messages.next().await {
                Ok(update) => Some((Ok(update?), Some(messages))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(updates.boxed())
    }

    /// `CallActorStream`: another sidecar watches an actor here.
    ///
    /// # Errors
    /// The status for the calling sidecar.
    pub async fn serve_watch(
        &self,
        served: Served<'_>,
    ) -> Result<BoxStream<'static, Result<InternalInvokeResponse, Status>>, Status> {
        let message = InternalInvokeRequest::decode(served.message).map_err(|error| unread(&error))?;
        let call = self.call_of(served.peer, Origin::Peer, message)?;
        let watched = async {
            loop {
                let mut steps = self.steps.subscribe();
                let guard = self.admit_from_peer(&call.kind, &call.id).await?;
                let routes = self.routes.load_full();
                match routes.route(Origin::Peer, &call.kind, &call.id) {
                    Route::Local => return self.watch_here(guard, &call).await,
                    Route::Wait => {
                        drop(guard);
                        self.next_step(&mut steps).await?;
                    }
                    _ => return Err(ActorError::Moved),
                }
            }
        };
        let updates = watched.await.map_err(|error| status(&error))?;
        let updates = updates.map(|next| match next {
            Ok(update) => Ok(response(update)),
            Err(ActorError::Internal(status)) if status.code() == Code::Aborted => Ok(refusal(&status)),
            Err(error) => Err(status(&error)),
        });
        Ok(updates.boxed())
    }
}

fn response(update: Update) -> InternalInvokeResponse {
    use outrigger_wire::common::v1::InvokeResponse;
    InternalInvokeResponse {
        status: Some(CallStatus {
            code: update.code,
            ..CallStatus::default()
        }),
        message: Some(InvokeResponse {
            data: Some(update.data),
            ..InvokeResponse::default()
        }),
        ..InternalInvokeResponse::default()
    }
}

/// A cancelled executor, as the contract has it: an update, not the end of the stream.
fn refusal(status: &Status) -> InternalInvokeResponse {
    InternalInvokeResponse {
        status: Some(CallStatus {
            code: status.code().into(),
            message: status.message().to_owned(),
            ..CallStatus::default()
        }),
        ..InternalInvokeResponse::default()
    }
}

/// The payload of a peer's update. Codes below those of HTTP are gRPC's.
fn payload(response: InternalInvokeResponse) -> Result<Update, ActorError> {
    let status = response.status.unwrap_or_default();
    match status.code {
        code @ (0 | 100..) => Ok(Update {
            code,
            data: response.message.unwrap_or_default().data.unwrap_or_default(),
        }),
        code => Err(ActorError::Internal(Status::new(code.into(), status.message))),
    }
}

/// Reads a peer's messages as they arrive.
struct Messages {
    body: Body,
    frames: FrameReader,
}

impl Messages {
    /// The next message; `None` at the regular end.
    async fn next(&mut self) -> Result<Option<Update>, ActorError> {
        let malformed = |error: &dyn std::fmt::Display| {
            ActorError::Peer(Status::internal(format!("malformed answer of the peer: {error}")))
        };
        loop {
            if let Some(message) = self.frames.next().map_err(|error| malformed(&error))? {
                let message = InternalInvokeResponse::decode(message).map_err(|error| malformed(&error))?;
                return payload(message).map(Some);
            }
            let frame = match self.body.frame().await {
                None => {
                    let text = "the connection ended before the call did";
                    return Err(ActorError::Cut(Status::unavailable(text)));
                }
                Some(Err(error)) => return Err(ActorError::Cut(grpc::body_status(&error))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => self.frames.push(data),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    return match Status::from_header_map(&trailers) {
                        Some(status) if status.code() != Code::Ok => Err(ActorError::Peer(status)),
                        _ => Ok(None),
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Any;

    use super::*;

    #[test]
    fn reports_cancellation_as_contract() {
        let cancelled = refusal(&Status::aborted("cancelled"));
        assert_eq!(cancelled.status.as_ref().unwrap().code, 10);
        let ActorError::Internal(status) = payload(cancelled).unwrap_err() else {
            panic!("a refusal of the actor");
        };
        assert_eq!((status.code(), status.message()), (Code::Aborted, "cancelled"));
        let any = Any {
            type_url: String::new(),
            value: vec![1],
        };
        // Dapr's executors send 0, its workflows 200, or 404 and 409 about their children.
        for code in [0, 200, 404, 409] {
            let update = Update {
                code,
                data: any.clone(),
            };
            assert_eq!(payload(response(update.clone())).unwrap(), update);
        }
    }
}
