//! Internal actors, implemented by the sidecar. Apps cannot name their types. They need no app, and take part
//! in placement, turns and reminders like an app's actors. They decide when they are done, and whether they
//! stay in memory while idle.

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

/// Prefix of types that apps cannot host.
pub const RESERVED: &str = "dapr.internal.";
/// Content type of internal actors.
pub const PROTOBUF: HeaderValue = HeaderValue::from_static("application/x-protobuf");

/// Updates of an internal actor for a watcher.
pub type Watched = BoxStream<'static, Result<Update, Status>>;

/// An update of an internal actor.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// A status code of HTTP, or 0, which also means success.
    pub code: i32,
    /// The content.
    pub data: Any,
}

impl From<Any> for Update {
    fn from(data: Any) -> Self {
        Self { code: 200, data }
    }
}

/// The actors of one internal type. A call holds the turn of its actor, and is cancelled (dropped) if the
/// actor moves or the type is unregistered.
///
/// Status errors of the methods reach the caller unchanged, wherever the actor lives.
pub trait InternalActors: Send + Sync {
    /// Calls a method; returns the response payload.
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>>;

    /// Called when a call arrives and starts to wait for its turn. The returned value handles the call in
    /// place of [`InternalActors::invoke`], and is dropped when the call ends in any way.
    fn arrive<'a>(&'a self, _call: &'a ActorCall) -> Option<Box<dyn QueuedCall + 'a>> {
        None
    }

    /// Called when another message starts to wait for a turn, until the returned value is dropped.
    fn wait<'a>(&'a self, _id: &'a str) -> Option<Box<dyn Send + 'a>> {
        None
    }

    /// Handles a due reminder; a failed one is redelivered.
    fn remind<'a>(
        &'a self,
        id: &'a str,
        name: &'a str,
        data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>>;

    /// Starts to watch an actor. Updates are sent outside of its turns, and end when the actor moves.
    fn watch<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Watched, Status>> {
        Box::pin(async move {
            Err(Status::unimplemented(format!(
                "actors of type {} cannot be watched",
                call.kind
            )))
        })
    }

    /// Ends the actor here, in its last turn: it moved, its type was unregistered, or the sidecar is shutting
    /// down.
    fn halt<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()>;

    /// Whether the actor needs to stay in memory; checked at the end of each turn.
    fn is_kept(&self, id: &str) -> bool;

    /// Idle timeout, from the start of the last turn; never by default.
    fn idle_after(&self) -> Duration {
        Duration::MAX
    }

    /// Called for an idle actor in its own turn: whether to deactivate it. An actor that stays is asked again
    /// after the idle timeout.
    fn on_idle(&self, _id: &str) -> bool {
        true
    }

    /// Whether reminders wait for a turn. Those that do not continue while actors move.
    fn reminders_take_turns(&self) -> bool {
        true
    }
}

/// A call known to its actor before it has a turn.
pub trait QueuedCall: Send + Sync {
    /// Handles the call in its turn; returns the response payload.
    fn in_turn(&self) -> BoxFuture<'_, Result<Bytes, Status>>;

    /// Completes if another turn answered the call, which then needs no turn.
    fn answered(&self) -> BoxFuture<'_, Result<Bytes, Status>> {
        Box::pin(std::future::pending())
    }
}

/// An internal type.
pub(super) struct Internal {
    actors: Arc<dyn InternalActors>,
    /// The type is unregistered.
    ended: CancellationToken,
}

impl Internal {
    /// The same actors, until `ended`.
    pub(super) fn again(&self, ended: CancellationToken) -> Self {
        Self {
            actors: Arc::clone(&self.actors),
            ended,
        }
    }

    pub(super) fn settings(&self) -> TypeSettings {
        TypeSettings {
            idle: self.actors.idle_after(),
            reentrancy: None,
            drain: None,
        }
    }

    /// Calls an actor in its turn, until the type is unregistered. `None` if the actor is not here any
    /// longer.
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
                        // The reminder is done: the actor need not stay active.
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
        // The table names another host, which may have the actor once it has ended here.
        kind.wait_until_ended(id).await;
        Ok(None)
    }

    /// Watches an actor until the type is unregistered.
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

    /// Waits for a turn; `None` if the actor is not here any longer.
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

    /// Answers a queued call, in its own turn or in another. `None` if the actor is not here any longer.
    async fn arrived(
        &self,
        kind: &HostedType,
        id: &str,
        arrived: &dyn QueuedCall,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Result<Bytes, Status>>, ActorError> {
        let answered = tokio::select! {
            biased;
            // First: an answered call must not be forwarded to another host.
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

    pub(super) async fn halt(&self, id: &str) {
        self.actors.halt(id).await;
    }

    /// Ends the turn of an idle actor, and deactivates it unless it stays.
    pub(super) fn on_idle(&self, id: &str, turn: Turn<'_>) {
        match self.actors.on_idle(id) {
            true => turn.deactivated(),
            false => turn.keep_active(),
        }
    }

    /// Cancels all calls of the type.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Whether a message needs no turn and does not delay a new table.
    pub(super) fn is_free(&self, message: &Message<'_>) -> bool {
        matches!(message, Message::Due(..)) && !self.actors.reminders_take_turns()
    }
}

/// A turn that deactivates the actor at its end, also when cancelled, unless the actor wants to stay.
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

/// Updates of an actor, until the type is unregistered.
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

/// Whether a type is internal.
pub fn is_reserved(kind: &str) -> bool {
    kind.starts_with(RESERVED)
}

impl Actors {
    /// Registers internal types, in addition to the app's. They are hosted while there is an actor state store.
    /// Placement and the schedulers are informed automatically.
    ///
    /// # Errors
    /// [`ActorError`] if there is no placement, or during shutdown.
    pub fn register_internal(
        &self,
        types: impl IntoIterator<Item = (String, Arc<dyn InternalActors>)>,
    ) -> Result<(), ActorError> {
        self.check_possible()?;
        self.host_internal(types);
        self.log_dormant();
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
                let settings = internal.settings();
                let mut hosted = self.hosted_type(&name, settings);
                hosted.internal = Some(internal);
                if let Some(old) = known.internal.insert(name, Arc::new(hosted)) {
                    old.end();
                }
            }
        });
    }

    /// Unregisters internal types: cancels their calls and ends their actors. The types stay known until
    /// then, as an app's types do.
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
