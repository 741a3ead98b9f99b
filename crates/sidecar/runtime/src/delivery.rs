//! Taking events to the app, in the order and the number that [`outrigger_delivery`] decides: the I/O around it.
//!
//! A source (an input binding, a watched configuration store) gives its events to an [`Inbox`]; the [`Engine`] makes the
//! attempts, under one resiliency policy, and tells the source what came of each event.

mod depth;
mod intake;

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_component::pubsub::Receipt;
use outrigger_delivery::{AttemptEnd, Id, Limits, Queue, Settlement};
use outrigger_policy::resiliency::{Key, Outcome, Policy, PolicyRef};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::app::Health;
use crate::metrics::SidecarMetrics;
use crate::resilience::{Attempt, BreakerOpen, ComponentPolicy, Run};

pub use depth::Depth;
pub use intake::{Consumer, Order, StopTokens, take};

/// Where a source puts its events. `K` orders them: those with the same key are delivered one after the other.
pub struct Inbox<K, E, A> {
    offers: mpsc::Sender<Offer<K, E, A>>,
    notices: mpsc::Sender<Notice<K>>,
}

/// What the source did with keys.
struct Notice<K> {
    change: KeyChange<K>,
    /// Dropped when that is noted.
    _noted: oneshot::Sender<()>,
}

enum KeyChange<K> {
    /// It took them away.
    Revoked(IsRevoked<K>),
    /// It has all of this one that was returned.
    Reopened(K),
}

/// Whether a key was taken away.
pub type IsRevoked<K> = Box<dyn Fn(&K) -> bool + Send>;

struct Offer<K, E, A> {
    key: Option<K>,
    event: E,
    reply: oneshot::Sender<(Result<A, Undelivered>, PausedKey)>,
}

/// Why an event has no answer of the app.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered {
    /// A circuit breaker is open.
    #[error(transparent)]
    Refused(#[from] BreakerOpen),
    /// The source or the process ends, or the app is unhealthy and others may have the event: no attempt is made any more. Those
    /// that were made failed, and decide nothing.
    #[error(
        "no more events are delivered: the sidecar or the component is shutting down, or the app is unhealthy"
    )]
    Stopped,
    /// The source revoked the event's key before an attempt succeeded. The new owner of the key starts over, so the attempts
    /// made here decide nothing.
    #[error("the broker gave the event to another consumer before the app had handled it")]
    Revoked,
    /// An event of the same key was rejected. This one comes again after it.
    #[error("an event before it with the same key is not done")]
    Blocked,
}

/// An event that was offered to the engine.
pub struct Pending<A>(oneshot::Receiver<(Result<A, Undelivered>, PausedKey)>);

/// The ordering key of an event whose attempts are over, of an engine that [pauses keys](Engine::pausing_keys): the engine
/// attempts no other event of the key until this is used or dropped. Dropped, they follow.
#[derive(Debug)]
pub struct PausedKey {
    /// Whether the events behind go back to the source with this one.
    in_order: bool,
    /// `None`: the key is not paused.
    decide: Option<oneshot::Sender<oneshot::Sender<bool>>>,
}

impl PausedKey {
    /// No key is paused.
    pub const NONE: Self = Self {
        in_order: false,
        decide: None,
    };

    /// Rejects the event's message, with those of its key where they are in order.
    pub async fn reject(self, receipt: Receipt) {
        match self.in_order {
            // The engine has to know first: it attempts none of the key until the broker has all of it.
            true if self.return_key().await => receipt.reject_key(),
            true => receipt.release(false),
            false => receipt.reject(),
        }
    }

    /// Releases the event's message, with those of its key where they are in order.
    pub async fn release(self, receipt: Receipt) {
        let with_key = self.in_order && self.return_key().await;
        receipt.release(with_key);
    }

    /// Returns the events behind to the source too, as [`Undelivered::Blocked`], until [`Inbox::reopen`]. `false`: the source has
    /// revoked the key meanwhile. The engine has taken note when this returns.
    async fn return_key(self) -> bool {
        let Some(decide) = self.decide else { return true };
        let (noted, note) = oneshot::channel();
        match decide.send(noted) {
            Ok(()) => note.await.unwrap_or(false),
            // An engine that has ended attempts nothing.
            Err(_) => true,
        }
    }
}

impl<A> Pending<A> {
    /// Waits for the answer to the last attempt.
    ///
    /// # Errors
    /// [`Undelivered`].
    pub async fn settled(self) -> Result<A, Undelivered> {
        self.decided().await.0
    }

    /// The same, with the event's key, which may be paused.
    pub async fn decided(self) -> (Result<A, Undelivered>, PausedKey) {
        self.0
            .await
            .unwrap_or_else(|_| (Err(Undelivered::Stopped), PausedKey::NONE))
    }
}

impl<K, E, A> Inbox<K, E, A> {
    /// Gives an event to the engine; waits while there is no room. After the engine's end the event is
    /// [`Undelivered::Stopped`].
    pub async fn offer(&self, key: Option<K>, event: E) -> Pending<A> {
        let (reply, pending) = oneshot::channel();
        // A refused offer drops its reply, which ends the wait for it.
        let _stopped = self.offers.send(Offer { key, event, reply }).await;
        Pending(pending)
    }

    /// The source took keys away: their events that wait are not attempted any more, and those in flight are not tried
    /// again. Unless an attempt succeeds, they are [`Undelivered::Revoked`]. When this returns, the engine has taken note.
    pub async fn revoke(&self, is_revoked: IsRevoked<K>) {
        self.notice(KeyChange::Revoked(is_revoked)).await;
    }

    /// The source has all events of a key that were returned because one failed: what is offered from now on is in order again.
    pub async fn reopen(&self, key: K) {
        self.notice(KeyChange::Reopened(key)).await;
    }

    async fn notice(&self, change: KeyChange<K>) {
        let (noted, note) = oneshot::channel();
        let notice = Notice {
            change,
            _noted: noted,
        };
        // An engine that has ended attempts nothing.
        if self.notices.send(notice).await.is_ok() {
            let _noted = note.await;
        }
    }
}

/// What becomes of the events that were taken when the engine is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// They are delivered, retries included.
    DeliverAll,
    /// Attempts in flight end; nothing else is attempted.
    FinishAttempts,
}

/// Is called with the attempts in flight, and those unsettled in all, before the engine waits for what happens next.
pub type LoadObserver<'p> = Box<dyn Fn(usize, usize) + Send + 'p>;

/// Delivers the events of one source.
pub struct Engine<'p, K, E, A> {
    inbox: mpsc::Receiver<Offer<K, E, A>>,
    notices: mpsc::Receiver<Notice<K>>,
    queue: Queue<K, Arc<E>>,
    events: HashMap<Id, Event<'p, A>>,
    policy: Option<&'p Policy>,
    /// In its place.
    component: Option<&'p ComponentPolicy>,
    metrics: &'p SidecarMetrics,
    /// Attempts wait while the app is unhealthy.
    health: Option<Health>,
    /// Whether what waits goes back to the source meanwhile.
    returns_while_unhealthy: bool,
    /// Where it is shown how full it is.
    depth: Option<Depth>,
    /// Called with how full it is.
    observer: Option<LoadObserver<'p>>,
    /// Whether a failed event of this key takes those behind it along when it goes back to the source.
    in_order: Option<fn(&K) -> bool>,
    /// Which answers leave an event undecided, and pause its key.
    pauses_key: Option<fn(&A) -> bool>,
    /// Decisions that are outstanding.
    undecided: FuturesUnordered<BoxFuture<'static, (Id, Option<oneshot::Sender<bool>>)>>,
    /// No more events come.
    closed: bool,
}

/// What is kept of an event until it is settled.
struct Event<'p, A> {
    run: Run<'p>,
    /// Whether the events behind it go back to the source with it.
    in_order: bool,
    /// To the last attempt.
    answer: Option<A>,
    reply: oneshot::Sender<(Result<A, Undelivered>, PausedKey)>,
}

impl<A> Event<'_, A> {
    fn reject(&self) -> AttemptEnd {
        match self.in_order {
            true => AttemptEnd::RejectKey,
            false => AttemptEnd::Reject,
        }
    }
}

/// An engine and where to put its events.
pub fn engine<'p, K: Clone + Eq + Hash, E, A>(
    limits: Limits,
    policy: Option<&'p Policy>,
    metrics: &'p SidecarMetrics,
) -> (Inbox<K, E, A>, Engine<'p, K, E, A>) {
    // What waits here has been taken by nobody: the room is the queue's.
    let (offers, inbox) = mpsc::channel(1);
    let (noticing, notices) = mpsc::channel(1);
    let engine = Engine {
        inbox,
        notices,
        queue: Queue::new(limits),
        events: HashMap::new(),
        policy,
        component: None,
        metrics,
        health: None,
        returns_while_unhealthy: false,
        depth: None,
        observer: None,
        in_order: None,
        pauses_key: None,
        undecided: FuturesUnordered::new(),
        closed: false,
    };
    let inbox = Inbox {
        offers,
        notices: noticing,
    };
    (inbox, engine)
}

impl<'p, K: Clone + Eq + Hash, E, A> Engine<'p, K, E, A> {
    /// Delivers under the policy that a component has when an event comes.
    #[must_use]
    pub fn under(mut self, policy: &'p ComponentPolicy) -> Self {
        self.component = Some(policy);
        self
    }

    /// Begins no attempt while the app is unhealthy.
    #[must_use]
    pub fn while_healthy(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// While the app is unhealthy, what waits goes back to the source at once, as [`Undelivered::Stopped`], and so does what comes.
    #[must_use]
    pub fn returning_while_unhealthy(mut self, returns: bool) -> Self {
        self.returns_while_unhealthy = returns;
        self
    }

    /// Shows how full it is.
    #[must_use]
    pub fn showing(mut self, depth: Depth) -> Self {
        self.depth = Some(depth);
        self
    }

    /// An event of such a key that fails goes back to the source with those behind it, which are [`Undelivered::Blocked`],
    /// until [`Inbox::reopen`].
    #[must_use]
    pub fn in_order(mut self, is_in_order: fn(&K) -> bool) -> Self {
        self.in_order = Some(is_in_order);
        self
    }

    /// An event [in order](Self::in_order) that ends with such an answer, or that a breaker refuses, is undecided: its key is
    /// paused until the source has used its [`PausedKey`].
    #[must_use]
    pub fn pausing_keys(mut self, pauses_key: fn(&A) -> bool) -> Self {
        self.pauses_key = Some(pauses_key);
        self
    }

    /// Calls `observer` with how full it is, also where that has not changed.
    #[must_use]
    pub fn observed_by(mut self, observer: LoadObserver<'p>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Delivers with `attempt` until every inbox is dropped or `stop` is cancelled, and every event is settled.
    pub async fn run<F>(
        mut self,
        stop: &CancellationToken,
        on_stop: OnStop,
        attempt: impl Fn(Arc<E>, Attempt) -> F,
    ) where
        F: Future<Output = (A, Outcome)>,
    {
        let mut running = FuturesUnordered::new();
        let mut stopping = false;
        loop {
            let is_healthy = self.follow_health();
            while let Some((id, event, limit)) = self.begin() {
                let attempt = attempt(event, limit);
                running.push(async move { (id, attempt.await) });
            }
            if let Some(depth) = &mut self.depth {
                depth.show(self.queue.in_flight(), self.queue.unsettled());
            }
            if let Some(observe) = &self.observer {
                observe(self.queue.in_flight(), self.queue.unsettled());
            }
            if self.closed && self.queue.unsettled() == 0 {
                return;
            }
            let wake_at = self.queue.wake_at();
            tokio::select! {
                biased;
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    self.stop(on_stop);
                }
                Some((id, (answer, outcome))) = running.next(), if !running.is_empty() => {
                    self.finish(id, answer, outcome);
                }
                Some((id, decided)) = self.undecided.next(), if !self.undecided.is_empty() => {
                    self.decided(id, decided);
                }
                offer = self.inbox.recv(), if !self.closed && self.queue.free_capacity() > 0 => match offer {
                    Some(offer) => self.take(offer),
                    None => self.closed = true,
                },
                Some(notice) = self.notices.recv() => match notice.change {
                    KeyChange::Revoked(is_revoked) => self.revoke(&is_revoked),
                    KeyChange::Reopened(key) => self.queue.reopen(&key),
                },
                () = sleep_until(wake_at) => {}
                () = health_changes(self.health.as_ref(), is_healthy) => {}
            }
        }
    }

    /// Pauses while the app is unhealthy; whether it is healthy.
    fn follow_health(&mut self) -> bool {
        let is_healthy = self.health.as_ref().is_none_or(Health::is_healthy);
        if is_healthy {
            self.queue.resume();
        } else {
            self.queue.pause();
            if self.returns_while_unhealthy {
                for id in self.queue.release_waiting() {
                    self.settle(id, Some(Undelivered::Stopped));
                }
            }
        }
        is_healthy
    }

    fn take(&mut self, offer: Offer<K, E, A>) {
        let in_order = match (self.in_order, &offer.key) {
            (Some(in_order), Some(key)) => in_order(key),
            _ => false,
        };
        let Ok(id) = self.queue.offer(offer.key, Arc::new(offer.event)) else {
            // There is room, which is asked for first: its key waits to be reopened.
            let _unheard = offer.reply.send((Err(Undelivered::Blocked), PausedKey::NONE));
            return;
        };
        let policy = match self.component {
            Some(component) => component.current().map(PolicyRef::Shared),
            None => self.policy.map(PolicyRef::Borrowed),
        };
        let event = Event {
            run: Run::start(policy, Key::NONE, self.metrics),
            in_order,
            answer: None,
            reply: offer.reply,
        };
        self.events.insert(id, event);
    }

    fn revoke(&mut self, is_revoked: &IsRevoked<K>) {
        for id in self.queue.revoke(is_revoked) {
            self.settle(id, Some(Undelivered::Revoked));
        }
    }

    /// The next attempt that may be made now. An event whose breaker refuses it is settled.
    fn begin(&mut self) -> Option<(Id, Arc<E>, Attempt)> {
        loop {
            let next = self.queue.next(Instant::now())?;
            let Some(event) = self.events.get_mut(&next.id) else {
                self.queue.finish(next.id, AttemptEnd::Reject, Instant::now());
                continue;
            };
            match event.run.before() {
                Ok(timeout) => return Some((next.id, next.item, Attempt::new(next.number, timeout))),
                Err(refused) if event.in_order && self.pauses_key.is_some() => {
                    self.queue.finish(next.id, AttemptEnd::Undecided, Instant::now());
                    self.pause_key(next.id, Some(refused.into()));
                }
                Err(refused) => {
                    let (_, behind) = self.queue.finish(next.id, event.reject(), Instant::now());
                    self.settle(next.id, Some(refused.into()));
                    self.settle_behind(behind);
                }
            }
        }
    }

    fn finish(&mut self, id: Id, answer: A, outcome: Outcome) {
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        let pauses_key = self.pauses_key.is_some_and(|pauses_key| pauses_key(&answer));
        event.answer = Some(answer);
        let is_done = matches!(outcome, Outcome::Success);
        let end = match event.run.after(outcome) {
            Some(pause) => AttemptEnd::Retry(pause),
            None if pauses_key && event.in_order => AttemptEnd::Undecided,
            None if is_done => AttemptEnd::Acknowledge,
            None => event.reject(),
        };
        let (settlement, behind) = self.queue.finish(id, end, Instant::now());
        if let Some(settlement) = settlement {
            // The new owner of a revoked key does what is left to do: nothing is decided here.
            let is_lost = settlement == Settlement::Release && (pauses_key || !is_done);
            self.settle(id, is_lost.then_some(Undelivered::Revoked));
        } else if end == AttemptEnd::Undecided {
            self.pause_key(id, None);
        }
        self.settle_behind(behind);
    }

    /// Answers for an event, and leaves its key paused until the source decides.
    fn pause_key(&mut self, id: Id, undelivered: Option<Undelivered>) {
        let (decide, decision) = oneshot::channel();
        self.reply(id, undelivered, Some(decide));
        self.undecided
            .push(Box::pin(async move { (id, decision.await.ok()) }));
    }

    /// The source has decided; `return_key`: the events behind go back too, and this hears whether they do.
    fn decided(&mut self, id: Id, return_key: Option<oneshot::Sender<bool>>) {
        let end = match return_key {
            Some(_) => AttemptEnd::RejectKey,
            None => AttemptEnd::Reject,
        };
        let (settlement, behind) = self.queue.finish(id, end, Instant::now());
        self.settle_behind(behind);
        if let Some(noted) = return_key {
            let _unheard = noted.send(settlement != Some(Settlement::Release));
        }
    }

    fn settle_behind(&mut self, behind: Vec<Id>) {
        for id in behind {
            self.settle(id, Some(Undelivered::Blocked));
        }
    }

    /// Answers for an event: `undelivered`, else the app's last answer.
    fn settle(&mut self, id: Id, undelivered: Option<Undelivered>) {
        self.reply(id, undelivered, None);
    }

    fn reply(
        &mut self,
        id: Id,
        undelivered: Option<Undelivered>,
        decide: Option<oneshot::Sender<oneshot::Sender<bool>>>,
    ) {
        let Some(event) = self.events.remove(&id) else {
            return;
        };
        let answer = match (undelivered, event.answer) {
            (Some(undelivered), _) => Err(undelivered),
            (None, Some(answer)) => Ok(answer),
            // Nothing was attempted: the dropped reply says so.
            (None, None) => return,
        };
        let key = PausedKey {
            in_order: event.in_order,
            decide,
        };
        // A source that does not wait need not hear it.
        let _unheard = event.reply.send((answer, key));
    }

    fn stop(&mut self, on_stop: OnStop) {
        self.inbox.close();
        if on_stop == OnStop::FinishAttempts {
            self.closed = true;
            for id in self.queue.drain() {
                self.settle(id, None);
            }
        }
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until the app's health is another than `was_healthy`.
async fn health_changes(health: Option<&Health>, was_healthy: bool) {
    match health {
        Some(health) if was_healthy => health.until_unhealthy().await,
        Some(health) => health.until_healthy().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
