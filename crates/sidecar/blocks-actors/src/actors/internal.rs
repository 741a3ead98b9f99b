//! Actors whose code is the sidecar's own: they live in types that no app names, need no app, and take part in placement,
//! turns and reminders as an app's actors do. They say themselves when they are done, and whether they need memory while idle.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::HeaderValue;
use outrigger_actors::settings::TypeSettings;
use outrigger_runtime::call::{AppStatus, Reply};
use outrigger_transport::body::Body;
use prost_types::Any;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::call::Message;
use super::host::{HostedType, Turn, TurnRequest};
use super::{ActorCall, ActorError, Actors, LOG};

/// How the names of the types begin that no app may host.
pub const RESERVED: &str = "dapr.internal.";
/// What internal actors are asked and answer in.
pub const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// What an internal actor tells those who watch it, one after the other.
pub type Watched = BoxStream<'static, Result<Any, Status>>;

/// The actors of one internal type, by their ids. A call has the turn of its actor, and ends early (it is dropped) when
/// the actor moves or the type is unregistered.
///
/// The statuses that methods fail with reach the caller as they are, wherever the actor lives.
pub trait InternalActors: Send + Sync {
    /// Calls a method; what comes back is the payload of the answer.
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>>;

    /// A call comes, and waits for the turn of its actor from now on. What comes back has the turn instead of
    /// [`InternalActors::invoke`], and is dropped when the call has ended, however it ends.
    fn arrive<'a>(&'a self, _call: &'a ActorCall) -> Option<Box<dyn QueuedCall + 'a>> {
        None
    }

    /// Something other than a call that arrives waits for the turn of an actor from now on, until what comes back is
    /// dropped.
    fn wait<'a>(&'a self, _id: &'a str) -> Option<Box<dyn Send + 'a>> {
        None
    }

    /// A reminder is due; one that fails comes again.
    fn remind<'a>(
        &'a self,
        id: &'a str,
        name: &'a str,
        data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>>;

    /// Begins to watch an actor. What is told comes without the actor's turn, and ends when the actor moves.
    fn watch<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Watched, Status>> {
        Box::pin(async move {
            Err(Status::unimplemented(format!(
                "actors of type {} cannot be watched",
                call.kind
            )))
        })
    }

    /// The actor ends here: it moved, its type was unregistered, or the sidecar ends. It has its turn for the last time.
    fn halt<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()>;

    /// Whether an actor has anything to stay in memory for, asked at the end of each of its turns.
    fn is_kept(&self, id: &str) -> bool;

    /// How long after its last turn began an actor is idle; it never is by default.
    fn idle_after(&self) -> Duration {
        Duration::MAX
    }

    /// An actor is idle, and has a turn that nobody waits for: whether it is active no more. One that stays is asked again
    /// when as much time has passed.
    fn on_idle(&self, _id: &str) -> bool {
        true
    }

    /// Whether reminders wait for the turn of their actor. Those that do not go on while actors move.
    fn reminders_take_turns(&self) -> bool {
        true
    }
}

/// A call that is known to its actor before it has the turn.
pub trait QueuedCall: Send + Sync {
    /// Its turn has come; what comes back is the payload of the answer.
    fn in_turn(&self) -> BoxFuture<'_, Result<Bytes, Status>>;

    /// Completes when it was answered in the turn of another; its own is not needed then.
    fn answered(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(std::future::pending())
    }
}

/// What an internal type has beside the turns of its actors.
pub(super) struct Internal {
    actors: Arc<dyn InternalActors>,
    /// The type is not hosted any more.
    ended: CancellationToken,
}

impl Internal {
    pub(super) fn settings(&self) -> TypeSettings {
        TypeSettings {
            idle: self.actors.idle_after(),
            reentrancy: None,
        }
    }

    /// Calls an actor in its turn, until its type is unregistered. `None` when the actor is not here any more.
    pub(super) async fn send(
        &self,
        kind: &HostedType,
        message: &Message<'_>,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Reply>, ActorError> {
        let id = message.id();
        let sent = async {
            match message {
                Message::Call(call) => {
                    let answer = match self.actors.arrive(call) {
                        Some(arrived) => self.arrived(kind, id, &*arrived, turn_request).await?,
                        None => match self.turn(kind, id, turn_request).await? {
                            Some(leaving) => {
                                let answer = self.actors.invoke(call).await;
                                drop(leaving);
                                Some(answer)
                            }
                            None => None,
                        },
                    };
                    let Some(answer) = answer else { return Ok(None) };
                    let mut reply = super::remote::empty();
                    reply.body = answer.map_err(ActorError::Internal)?.into();
                    reply.content_type = Some(PROTOBUF);
                    Ok(Some(reply))
                }
                Message::Due(reminder, ..) => {
                    let leaving = match self.actors.reminders_take_turns() {
                        true => match self.turn(kind, id, turn_request).await? {
                            Some(leaving) => Some(leaving),
                            None => return Ok(None),
                        },
                        false => None,
                    };
                    message.begins();
                    let handled = self.actors.remind(id, &reminder.name, reminder.data.as_ref());
                    let handled = handled.await;
                    match leaving {
                        Some(leaving) => drop(leaving),
                        // What was to be done is done: nothing is left to be active for.
                        None if handled.is_ok() => {
                            let turn = kind.turn(id, None, turn_request).await?;
                            turn.into_iter().for_each(Turn::deactivated);
                        }
                        None => {}
                    }
                    handled.map_err(ActorError::Internal)?;
                    Ok(Some(Reply::new(AppStatus::Http(200), Body::Empty)))
                }
            }
        };
        tokio::select! {
            biased;
            sent = sent => return sent,
            () = self.ended.cancelled() => {}
        }
        if turn_request.begun.load(Ordering::SeqCst) || (turn_request.is_local)() {
            return Err(unhosted(kind, id));
        }
        // By the table it is another host's by now, which may have it when it has ended here.
        kind.wait_until_ended(id).await;
        Ok(None)
    }

    /// Watches an actor, until its type is unregistered.
    pub(super) async fn watch(
        &self,
        kind: &HostedType,
        call: &ActorCall,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Watching, ActorError> {
        let watched = async {
            let leaving = self.turn(kind, &call.id, turn_request).await?;
            let leaving = leaving.ok_or(ActorError::Moved)?;
            let watched = self.actors.watch(call).await;
            drop(leaving);
            watched.map_err(ActorError::Internal)
        };
        let updates = tokio::select! {
            biased;
            watched = watched => watched?,
            () = self.ended.cancelled() => return Err(ActorError::Moved),
        };
        let ended = self.ended.clone();
        Ok(Watching { updates, ended })
    }

    /// Waits for a turn of an actor; `None` when the actor is not here any more.
    async fn turn<'a>(
        &'a self,
        kind: &'a HostedType,
        id: &'a str,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Leaving<'a>>, ActorError> {
        let _waiting = self.actors.wait(id);
        let turn = kind.turn(id, None, turn_request).await?;
        Ok(turn.map(|turn| self.leaving(turn, id)))
    }

    /// The answer to a call that has arrived: in its own turn, or in that of another. `None` when the actor is not here any
    /// more.
    async fn arrived(
        &self,
        kind: &HostedType,
        id: &str,
        arrived: &dyn QueuedCall,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Result<Bytes, Status>>, ActorError> {
        let answered = tokio::select! {
            biased;
            // First: who has an answer is not sent on to another host.
            answer = arrived.answered() => answer,
            turn = kind.turn(id, None, turn_request) => {
                let Some(turn) = turn? else { return Ok(None) };
                let leaving = self.leaving(turn, id);
                let answer = arrived.in_turn().await;
                drop(leaving);
                return Ok(Some(answer));
            }
        };
        // Its own turn may have come, and with it the end of the actor.
        drop(kind.free_turn(id).map(|turn| self.leaving(turn, id)));
        Ok(Some(answered))
    }

    fn leaving<'a>(&'a self, turn: Turn<'a>, id: &'a str) -> Leaving<'a> {
        Leaving {
            actors: &*self.actors,
            turn: Some(turn),
            id,
        }
    }

    /// Ends an actor in its last turn.
    pub(super) async fn halt(&self, id: &str) {
        self.actors.halt(id).await;
    }

    /// Ends the turn of an actor that was found idle: it is active no more, unless it says that it stays.
    pub(super) fn on_idle(&self, id: &str, turn: Turn<'_>) {
        match self.actors.on_idle(id) {
            true => turn.deactivated(),
            false => turn.keep_active(),
        }
    }

    /// Ends all calls of the type.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Whether a message is for an actor without waiting for it, and without holding up a new table.
    pub(super) fn is_free(&self, message: &Message<'_>) -> bool {
        matches!(message, Message::Due(..)) && !self.actors.reminders_take_turns()
    }
}

/// A turn at whose end the actor is asked whether it stays, however the turn ends: who is cut off would stay until it is
/// found idle.
struct Leaving<'a> {
    actors: &'a dyn InternalActors,
    turn: Option<Turn<'a>>,
    id: &'a str,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take()
            && !self.actors.is_kept(self.id)
        {
            turn.deactivated();
        }
    }
}

/// What an actor tells, until its type is unregistered.
pub(super) struct Watching {
    pub(super) updates: Watched,
    pub(super) ended: CancellationToken,
}

fn unhosted(kind: &HostedType, id: &str) -> ActorError {
    ActorError::NoAddress {
        kind: kind.name.to_string(),
        id: id.to_owned(),
    }
}

/// Whether a type is no app's.
pub fn is_reserved(kind: &str) -> bool {
    kind.starts_with(RESERVED)
}

impl Actors {
    /// Hosts internal types from now on, beside those of the app. Placement and the schedulers hear of it by themselves.
    ///
    /// # Errors
    /// [`ActorError`] where there is no placement, no state store of actors, or the sidecar ends.
    pub fn register_internal(
        &self,
        types: impl IntoIterator<Item = (String, Arc<dyn InternalActors>)>,
    ) -> Result<(), ActorError> {
        self.check_available()?;
        self.host_internal(types);
        Ok(())
    }

    pub(super) fn host_internal(&self, types: impl IntoIterator<Item = (String, Arc<dyn InternalActors>)>) {
        self.change_types(|known| {
            for (name, actors) in types {
                tracing::info!(target: LOG, "Registering internal actors: {name}");
                let internal = Internal {
                    actors,
                    ended: self.ended.child_token(),
                };
                let hosted = HostedType::internal(&name, internal, self.metrics.of(&name), &self.looks);
                if let Some(old) = known.internal.insert(name, Arc::new(hosted)) {
                    old.end();
                }
            }
        });
    }

    /// Hosts internal types no more: calls of them end, and all their actors. Until these have ended, their types are kept as
    /// those of an app are.
    pub async fn unregister_internal(&self, names: &[String]) {
        let mut going = Vec::new();
        self.change_types(|known| {
            going.extend(names.iter().filter_map(|name| known.internal.remove(name)));
            known.retire(&going);
        });
        for kind in &going {
            tracing::info!(target: LOG, "Unregistering internal actors: {}", kind.name);
            kind.end();
        }
        self.halt(&going, |_, _| true).await;
        self.change_types(|known| known.forget(&going));
    }
}

#[cfg(test)]
mod tests;
