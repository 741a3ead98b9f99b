//! The way of a call to an actor, wherever it lives.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use outrigger_policy::resiliency::{Builtin, Key, Outcome};
use outrigger_telemetry::trace::Parent;
use outrigger_wire::internals::v1::Reminder;

use super::gate::Claim;
use super::host::Hosted;
use super::{ActorError, Actors, REENTRANCY_ID, check};
use crate::call::Reply;
use crate::resilience::Attempts;

/// A call of an actor's method; its body is here whole, so that it can be made again.
#[derive(Clone, Debug, Default)]
pub struct ActorCall {
    /// Actor type.
    pub kind: String,
    /// Actor id.
    pub id: String,
    /// Canonical decoded method without leading slash.
    pub method: String,
    /// Raw query string without `?`.
    pub query: String,
    /// Media type of the body.
    pub content_type: Option<HeaderValue>,
    /// The caller's headers.
    pub metadata: HeaderMap,
    /// Whether they are gRPC metadata.
    pub from_grpc: bool,
    /// The payload.
    pub body: Bytes,
    /// The current span.
    pub trace: Parent,
}

/// Something for an actor.
pub(super) enum Message<'a> {
    Call(&'a ActorCall),
    /// A timer or a reminder is due; a timer also has the name of what it calls.
    Due(&'a Reminder, &'a str),
}

impl Message<'_> {
    pub(super) fn kind(&self) -> &str {
        match self {
            Self::Call(call) => &call.kind,
            Self::Due(reminder, _) => &reminder.actor_type,
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Call(call) => &call.id,
            Self::Due(reminder, _) => &reminder.actor_id,
        }
    }

    fn reentry(&self) -> Option<&str> {
        match self {
            Self::Call(call) => call.metadata.get(REENTRANCY_ID)?.to_str().ok(),
            Self::Due(..) => None,
        }
    }
}

/// Where an actor lives.
pub(super) enum Place {
    Here,
    There { address: Arc<str>, app_id: Arc<str> },
}

impl Actors {
    /// Calls a method of an actor. What the app says is `Ok` if it is 200, or its own failure.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn invoke(&self, call: &ActorCall) -> Result<Reply, ActorError> {
        check(&call.kind, &call.id)?;
        self.send(&Message::Call(call)).await
    }

    /// Sends to an actor under the policies of its type.
    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Reply, ActorError> {
        self.known(message.kind()).await?;
        let resilience = &self.with.resilience;
        let rules = resilience.policies.actor(message.kind());
        let builtin = (!rules.has_target).then(|| resilience.policies.builtin(Builtin::ActorNotFoundRetries));
        let key = Key::actor(message.id());
        let attempts = Attempts::new(rules.before_lock.as_deref(), key, &resilience.metrics);
        let sent = attempts.until(&self.ended).run(async |_| {
            let found = Attempts::new(builtin.map(Arc::as_ref), Key::NONE, &resilience.metrics);
            let sent = found.until(&self.ended).run(async |_| {
                // The future of a call to the app is large.
                let result = Box::pin(self.once(message)).await;
                let outcome = outcome(&result);
                (result, outcome)
            });
            let result = sent
                .await
                .unwrap_or_else(|refused| Err(ActorError::Invoke(refused.to_string())));
            let outcome = match &result {
                Ok(_) => Outcome::Success,
                Err(error) if error.is_failure() => Outcome::Failure { code: None },
                Err(_) => Outcome::Final,
            };
            (result, outcome)
        });
        sent.await
            .unwrap_or_else(|refused| Err(ActorError::Invoke(refused.to_string())))
    }

    /// Waits until calls may begin, and begins one of this actor.
    pub(super) async fn claim(&self, kind: &str, id: &str) -> Result<Claim, ActorError> {
        let lane = self.hosted.load().get(kind).map_or(0, |kind| kind.lane(id));
        tokio::select! {
            claim = self.gate.enter(lane) => Ok(claim),
            () = self.ended.cancelled() => Err(ActorError::Ended),
        }
    }

    async fn once(&self, message: &Message<'_>) -> Result<Reply, ActorError> {
        let (kind, id) = (message.kind(), message.id());
        let claim = self.claim(kind, id).await?;
        match self.place(kind, id)? {
            Place::Here => self.claimed(claim, message).await,
            Place::There { address, app_id } => {
                drop(claim);
                Box::pin(self.there(&address, &app_id, message)).await
            }
        }
    }

    pub(super) fn place(&self, kind: &str, id: &str) -> Result<Place, ActorError> {
        let tables = self.tables.load();
        let owner = tables.owner(kind, id).ok_or_else(|| ActorError::NoAddress {
            kind: kind.to_owned(),
            id: id.to_owned(),
        })?;
        if is_same(&owner.address, &self.with.address) {
            return Ok(Place::Here);
        }
        Ok(Place::There {
            address: Arc::clone(&owner.address),
            app_id: Arc::clone(&owner.app_id),
        })
    }

    /// The address of the sidecar that an actor belongs to by the table; `None` where nobody hosts its type.
    pub fn host_of(&self, kind: &str, id: &str) -> Option<String> {
        let tables = self.tables.load();
        tables.owner(kind, id).map(|owner| owner.address.to_string())
    }

    /// Whether an actor is this sidecar's by the table.
    pub(super) fn is_here(&self, kind: &str, id: &str) -> bool {
        matches!(self.place(kind, id), Ok(Place::Here))
    }

    /// Another sidecar sends to an actor that it takes for this one's. It goes no further.
    pub(super) async fn received(&self, message: &Message<'_>) -> Result<Reply, ActorError> {
        self.known(message.kind()).await?;
        let (kind, id) = (message.kind(), message.id());
        let claim = self.claim(kind, id).await?;
        if !self.is_here(kind, id) {
            return Err(ActorError::Moved);
        }
        self.claimed(claim, message).await
    }

    /// An actor that lives here, for as long as the claim stands.
    async fn claimed(&self, claim: Claim, message: &Message<'_>) -> Result<Reply, ActorError> {
        let hosted = self.hosted.load_full();
        let internal = hosted.get(message.kind()).and_then(|kind| kind.internal.as_ref());
        if internal.is_some_and(|internal| internal.is_free(message)) {
            drop(claim);
            return self.here(&hosted, message).await;
        }
        let here = pin!(self.here(&hosted, message));
        tokio::select! {
            biased;
            result = here => result,
            () = claim.cancelled() => Err(ActorError::Disseminating),
        }
    }

    /// An actor of this sidecar: waits for its turn, and calls the app, or the actor itself.
    async fn here(&self, hosted: &Hosted, message: &Message<'_>) -> Result<Reply, ActorError> {
        // The table may be of a time when another set of types was hosted.
        let Some(kind) = hosted.get(message.kind()) else {
            return Err(ActorError::NoAddress {
                kind: message.kind().to_owned(),
                id: message.id().to_owned(),
            });
        };
        if let Some(internal) = &kind.internal {
            return internal.send(kind, message).await;
        }
        let given = message.reentry().filter(|id| !id.is_empty());
        let made = match (given, kind.settings.reentrancy) {
            (None, Some(_)) => Some(uuid::Uuid::new_v4().to_string()),
            _ => None,
        };
        let reentry = made.as_deref().or(given);
        let _turn = kind.turn(message.id(), reentry).await?;
        self.call_app(message, made.as_deref()).await
    }
}

/// How an attempt counts: only what looked in the wrong place is worth another one.
pub(super) fn outcome<T>(result: &Result<T, ActorError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(error) if error.is_about_place() => Outcome::Failure { code: None },
        Err(_) => Outcome::Final,
    }
}

/// Whether two addresses are of the same server: on one machine, ports tell them apart.
fn is_same(target: &str, own: &str) -> bool {
    if target == own {
        return true;
    }
    let split = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        Some((is_loopback(host), port.to_owned()))
    };
    match (split(target), split(own)) {
        (Some((true, target)), Some((true, own))) => target == own,
        _ => false,
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<std::net::IpAddr>();
    ip.map_or_else(|_| bare.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn an_address_on_this_machine_has_several_names() {
        for (target, own, same) in [
            ("10.0.0.1:1", "10.0.0.1:1", true),
            ("10.0.0.1:1", "10.0.0.1:2", false),
            ("localhost:1", "127.0.0.1:1", true),
            ("[::1]:1", "127.0.0.1:1", true),
            ("localhost:2", "127.0.0.1:1", false),
            ("localhost:1", "10.0.0.1:1", false),
        ] {
            assert_eq!(is_same(target, own), same, "{target} {own}");
        }
    }
}
