//! Routing of calls to actors.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use outrigger_actors::routes::{Origin, Route, Routes};
use outrigger_policy::resiliency::{Builtin, Key, Outcome, PolicyRef};
use outrigger_runtime::call::Reply;
use outrigger_runtime::resilience::{Attempts, Run};
use outrigger_runtime::scheduler::DeliveryStarted;
use outrigger_telemetry::trace::Parent;
use outrigger_wire::internals::v1::Reminder;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout, timeout_at};

use super::host::{Hosted, TurnRequest};
use super::internal::is_reserved;
use super::type_admission::{InFlight, TypeAdmission};
use super::{ActorError, Actors, REENTRANCY_ID, check, check_for_app};

/// How long a peer's call waits while calls are not admitted: longer than the election of a placement leader.
/// A host that is cut off from placement is the last to learn that an actor moved; the calling sidecar knows
/// or waits itself.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// A call of an actor method; the body is buffered so that it can be retried.
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
    /// Whether `metadata` is gRPC metadata.
    pub from_grpc: bool,
    /// The payload.
    pub body: Bytes,
    /// The current span.
    pub trace: Parent,
    /// The app that calls.
    pub caller: Caller,
}

/// The app that calls an actor, as certified. Headers say nothing about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Caller {
    /// This app.
    #[default]
    Own,
    /// Another app of the namespace.
    App(String),
    /// A peer without mTLS.
    Unknown,
}

/// A message for an actor.
pub(super) enum Message<'a> {
    Call(&'a ActorCall),
    /// A due timer or reminder, its span, and whether the actor may have started it.
    Due(&'a Reminder, &'a Parent, &'a DeliveryStarted),
}

impl Message<'_> {
    /// Records that the actor starts handling it or another host is called.
    pub(super) fn begins(&self) {
        if let Self::Due(.., begun) = self {
            begun.set();
        }
    }

    pub(super) fn kind(&self) -> &str {
        match self {
            Self::Call(call) => &call.kind,
            Self::Due(reminder, ..) => &reminder.actor_type,
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Call(call) => &call.id,
            Self::Due(reminder, ..) => &reminder.actor_id,
        }
    }

    fn reentry(&self) -> Option<&str> {
        match self {
            Self::Call(call) => call.metadata.get(REENTRANCY_ID)?.to_str().ok(),
            Self::Due(..) => None,
        }
    }
}

/// The outcome of a call to an actor of this sidecar.
#[expect(
    clippy::large_enum_variant,
    reason = "matched at once, and mostly the large variant"
)]
enum CallOutcome {
    Done(Reply),
    /// The actor has been deactivated here.
    Ended,
    /// The call did not begin and must be routed again.
    Retry,
}

impl Actors {
    /// Calls an actor method for an app, under the policy of the actor type. `Ok` is a 200 response or the
    /// app's own error response.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn invoke(&self, call: &ActorCall) -> Result<Reply, ActorError> {
        check_for_app(&call.kind, &call.id)?;
        self.known(&call.kind).await?;
        let resilience = &self.with.resilience;
        let rules = resilience.policies.load().actor(&call.kind);
        let attempts = Attempts::new(
            rules.before_lock.as_deref(),
            Key::actor(&call.id),
            &resilience.metrics,
        );
        let sent = attempts.until(&self.ended).run(async |_| {
            let result = self
                .send_with_retries(&Message::Call(call), rules.has_target)
                .await;
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

    /// As [`Actors::invoke`] for the sidecar's own callers, without the type's policy: workflows retry their
    /// calls themselves.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn invoke_plain(&self, call: &ActorCall) -> Result<Reply, ActorError> {
        check(&call.kind, &call.id)?;
        self.send(&Message::Call(call)).await
    }

    /// Sends a message without the type's policy: timers and reminders have their own retries.
    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Reply, ActorError> {
        self.known(message.kind()).await?;
        self.send_with_retries(message, false).await
    }

    /// Routes a message to its actor. If the host does not have the actor yet, the built-in retries apply,
    /// unless the type has a policy. A new table interrupts a pause with an attempt that does not count as a
    /// retry: the tables of a starting fleet would use them up.
    async fn send_with_retries(&self, message: &Message<'_>, has_policy: bool) -> Result<Reply, ActorError> {
        let resilience = &self.with.resilience;
        let builtin = (!has_policy).then(|| {
            let policies = resilience.policies.load();
            PolicyRef::Shared(Arc::clone(policies.builtin(Builtin::ActorNotFoundRetries)))
        });
        let mut run = Run::start(builtin, Key::NONE, &resilience.metrics);
        let mut steps = self.steps.subscribe();
        // Set for an attempt that a new table started before the pause was over.
        let mut pause_end = None;
        loop {
            if pause_end.is_none() {
                run.before()
                    .map_err(|refused| ActorError::Invoke(refused.to_string()))?;
            }
            // Boxed: the future of an app call is large.
            let result = Box::pin(self.route_once(message, Origin::Own, &mut steps)).await;
            let next = match (outcome(&result), pause_end) {
                (Outcome::Failure { .. }, Some(end)) => end,
                (outcome, _) => match run.after(outcome) {
                    Some(pause) => Instant::now() + pause,
                    None => return result,
                },
            };
            pause_end = match timeout_at(next, self.next_step(&mut steps)).await {
                Err(_) => None,
                Ok(Ok(())) => Some(next),
                Ok(Err(_)) => return result,
            };
        }
    }

    /// Waits for admission of a call to this actor.
    pub(super) async fn admit_call(&self, kind: &str, id: &str) -> Result<InFlight, ActorError> {
        let hosted = self.hosted.load();
        let (admission, shard) = self.admission_of(&hosted, kind, id);
        if let Some(guard) = admission.try_admit(shard) {
            return Ok(guard);
        }
        let admission = Arc::clone(admission);
        drop(hosted);
        tokio::select! {
            guard = admission.admit(shard) => Ok(guard),
            () = self.ended.cancelled() => Err(ActorError::Ended),
        }
    }

    /// As [`Actors::admit_call`] for a peer's call, with a timeout.
    pub(super) async fn admit_from_peer(&self, kind: &str, id: &str) -> Result<InFlight, ActorError> {
        let hosted = self.hosted.load();
        let (admission, shard) = self.admission_of(&hosted, kind, id);
        if let Some(guard) = admission.try_admit(shard) {
            return Ok(guard);
        }
        drop(hosted);
        let waited = Box::pin(timeout(PEER_TIMEOUT, self.admit_call(kind, id))).await;
        waited.unwrap_or(Err(ActorError::Disseminating))
    }

    /// The admission and the shard of an actor's calls.
    fn admission_of<'a>(
        &'a self,
        hosted: &'a Hosted,
        kind: &str,
        id: &str,
    ) -> (&'a Arc<TypeAdmission>, usize) {
        match hosted.with_actors(kind) {
            Some(kind) => (&kind.admission, kind.shard_of(id)),
            None => (&self.admission.common, 0),
        }
    }

    /// Routes a message once. Afterwards `steps` has changed if there is a newer table than the one used.
    async fn route_once(
        &self,
        message: &Message<'_>,
        origin: Origin,
        steps: &mut Receiver<Arc<Routes>>,
    ) -> Result<Reply, ActorError> {
        let (kind, id) = (message.kind(), message.id());
        loop {
            let guard = match origin {
                Origin::Own => self.admit_call(kind, id).await?,
                Origin::Peer | Origin::Handed(_) => self.admit_from_peer(kind, id).await?,
            };
            steps.mark_unchanged();
            let routes = self.routes.load_full();
            match routes.route(origin, kind, id) {
                Route::Local => {
                    if let CallOutcome::Done(reply) =
                        self.call_admitted(guard, message, &routes, true).await?
                    {
                        return Ok(reply);
                    }
                }
                Route::Remote(host) => {
                    drop(guard);
                    return Box::pin(self.call_remote(host, message, None)).await;
                }
                Route::Forward(host, stamp) => {
                    match self.call_admitted(guard, message, &routes, false).await? {
                        CallOutcome::Done(reply) => return Ok(reply),
                        CallOutcome::Ended => {
                            return Box::pin(self.call_remote(host, message, Some(stamp))).await;
                        }
                        CallOutcome::Retry => {}
                    }
                }
                Route::Wait => {
                    drop(guard);
                    self.next_step(steps).await?;
                }
                Route::Moved => return Err(ActorError::Moved),
                Route::NoHost => return Err(no_address(kind, id)),
            }
        }
    }

    /// Waits for the next step of the dissemination.
    pub(super) async fn next_step(&self, steps: &mut Receiver<Arc<Routes>>) -> Result<(), ActorError> {
        tokio::select! {
            _changed = steps.changed() => Ok(()),
            () = self.ended.cancelled() => Err(ActorError::Ended),
        }
    }

    /// The address of the sidecar that hosts an actor by the table; `None` if no host has its type.
    pub fn host_of(&self, kind: &str, id: &str) -> Option<String> {
        let routes = self.routes.load();
        match routes.route(Origin::Own, kind, id) {
            Route::Local => Some(self.with.address.clone()),
            Route::Remote(host) | Route::Forward(host, _) => Some(host.address.to_string()),
            Route::Wait | Route::Moved | Route::NoHost => None,
        }
    }

    /// Handles a message from another sidecar, whose table says that the actor lives or lived here.
    pub(super) async fn received(&self, message: &Message<'_>, origin: Origin) -> Result<Reply, ActorError> {
        self.known(message.kind()).await?;
        self.route_once(message, origin, &mut self.steps.subscribe())
            .await
    }

    /// Calls an actor on this sidecar while its guard is held. If the actor is not `owned` any longer, only
    /// messages of the running turn join it; all others wait for its deactivation.
    async fn call_admitted(
        &self,
        guard: InFlight,
        message: &Message<'_>,
        routes: &Arc<Routes>,
        owned: bool,
    ) -> Result<CallOutcome, ActorError> {
        let (name, id) = (message.kind(), message.id());
        let hosted = self.hosted.load_full();
        let kind = hosted.with_actors(name);
        if kind.is_some() && guard.is_common() {
            // The type was registered in between.
            return Ok(CallOutcome::Retry);
        }
        let stays = || {
            let now = self.routes.load();
            owned && (Arc::ptr_eq(&now, routes) || now.route(Origin::Own, name, id) == Route::Local)
        };
        let turn_request = TurnRequest::new(&stays);
        let tried = |reply: Option<Reply>| reply.map_or(CallOutcome::Ended, CallOutcome::Done);
        let internal = kind.and_then(|kind| kind.internal.as_ref());
        if internal.is_some_and(|internal| internal.is_free(message)) {
            drop(guard);
            return self.call_local(&hosted, message, &turn_request).await.map(tried);
        }
        let turn_request = turn_request.within(&guard);
        let evicted = || {
            let begun = turn_request.begun.load(Ordering::SeqCst);
            // A call that waits for the deactivation is not rerouted while no other host has the actor.
            kind.is_some_and(|kind| (begun || (owned && !kind.is_retiring())) && kind.is_evicted(id))
        };
        let local = pin!(self.call_local(&hosted, message, &turn_request));
        tokio::select! {
            biased;
            result = local => result.map(tried),
            () = guard.cancelled_or(evicted) => match turn_request.begun.load(Ordering::SeqCst) {
                true => Err(self.interrupted(message)),
                false => Ok(CallOutcome::Retry),
            },
        }
    }

    /// The error of a turn that was interrupted after it had begun. The contract retries the call even if the
    /// app has executed it. With handover only the caller decides that, as for a broken connection; reminders
    /// are redelivered, and internal actors are idempotent.
    fn interrupted(&self, message: &Message<'_>) -> ActorError {
        match message {
            Message::Call(call) if self.with.handover && !is_reserved(&call.kind) => {
                ActorError::Invoke(format!(
                    "the call of actor {}||{} was interrupted: the actor moves and the call exceeded \
                     drainOngoingCallTimeout; the app may have executed it, so retry only if it is idempotent",
                    call.kind, call.id
                ))
            }
            _ => ActorError::Disseminating,
        }
    }

    /// Waits for a turn and calls the app or the internal actor. `None` if the actor has been deactivated.
    async fn call_local(
        &self,
        hosted: &Hosted,
        message: &Message<'_>,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Reply>, ActorError> {
        // The table may predate the current set of types.
        let Some(kind) = hosted.with_actors(message.kind()) else {
            return match (turn_request.is_local)() {
                true => Err(no_address(message.kind(), message.id())),
                false => Ok(None),
            };
        };
        // If the table does not know yet that the type is being unregistered, there is no other host.
        let ended = || match kind.is_retiring() && (turn_request.is_local)() {
            true => Err(no_address(message.kind(), message.id())),
            false => Ok(None),
        };
        if let Some(internal) = &kind.internal {
            return match internal.send(kind, message, turn_request).await? {
                Some(reply) => Ok(Some(reply)),
                None => ended(),
            };
        }
        let given = message.reentry().filter(|id| !id.is_empty());
        let made = match (given, kind.settings.reentrancy) {
            (None, Some(_)) => Some(uuid::Uuid::new_v4().to_string()),
            _ => None,
        };
        let reentry = made.as_deref().or(given);
        let Some(_turn) = kind.turn(message.id(), reentry, turn_request).await? else {
            return ended();
        };
        self.call_app(message, made.as_deref()).await.map(Some)
    }
}

pub(super) fn no_address(kind: &str, id: &str) -> ActorError {
    ActorError::NoAddress {
        kind: kind.to_owned(),
        id: id.to_owned(),
    }
}

/// Classifies an attempt: only a routing error is retried.
pub(super) fn outcome<T>(result: &Result<T, ActorError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(error) if error.is_about_place() => Outcome::Failure { code: None },
        Err(_) => Outcome::Final,
    }
}
