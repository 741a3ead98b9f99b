//! Delivery of events to the app: the I/O around [`outrigger_delivery`], which decides on order and
//! concurrency.
//!
//! A source (an input binding, a watched configuration store) offers its events to an [`Inbox`]. The
//! [`Engine`] makes the attempts under one resiliency policy and reports the result of each event to the
//! source.

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

/// The entry of a source's events. `K` orders them: events with the same key are delivered one after another.
pub struct Inbox<K, E, A> {
    offers: mpsc::Sender<Offer<K, E, A>>,
    notices: mpsc::Sender<Notice<K>>,
}

/// A change of keys by the source.
struct Notice<K> {
    change: KeyChange<K>,
    /// Dropped once the engine has processed the notice.
    _noted: oneshot::Sender<()>,
}

enum KeyChange<K> {
    /// Keys were revoked.
    Revoked(IsRevoked<K>),
    /// All returned events of this key have been offered again.
    Reopened(K),
}

/// Whether a key was revoked.
pub type IsRevoked<K> = Box<dyn Fn(&K) -> bool + Send>;

struct Offer<K, E, A> {
    key: Option<K>,
    event: E,
    reply: oneshot::Sender<(Result<A, Undelivered>, PausedKey)>,
}

/// Why an event has no result from the app.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered {
    /// A circuit breaker is open.
    #[error(transparent)]
    Refused(#[from] BreakerOpen),
    /// The source or the process ends, or the app is unhealthy and another consumer may take the event. No
    /// further attempt is made, and earlier failed attempts do not count.
    #[error("delivery stopped: the sidecar or the component is shutting down, or the app is unhealthy")]
    Stopped,
    /// The source revoked the event's key before an attempt succeeded. The new owner of the key starts over,
    /// so attempts made here do not count.
    #[error("the broker reassigned the event to another consumer before the app handled it")]
    Revoked,
    /// An event of the same key was rejected. This one is redelivered after it.
    #[error("an earlier event with the same ordering key is still being processed")]
    Blocked,
}

/// An event offered to the engine.
pub struct Pending<A>(oneshot::Receiver<(Result<A, Undelivered>, PausedKey)>);

/// The paused ordering key of an event whose attempts are over, for an engine that [pauses
/// keys](Engine::pausing_keys). The engine attempts no other event of the key until this is used. Dropping it
/// resumes the key.
#[derive(Debug)]
pub struct PausedKey {
    /// Whether later events of the key return to the source with this one.
    in_order: bool,
    /// `None` if the key is not paused.
    decide: Option<oneshot::Sender<oneshot::Sender<bool>>>,
}

impl PausedKey {
    /// No paused key.
    pub const NONE: Self = Self {
        in_order: false,
        decide: None,
    };

    /// Rejects the event's message, and later ones of its key if they are in order.
    pub async fn reject(self, receipt: Receipt) {
        match self.in_order {
            // Pause the key first: the engine must not attempt its events until the broker has all of them.
            true if self.return_key().await => receipt.reject_key(),
            true => receipt.release(false),
            false => receipt.reject(),
        }
    }

    /// Releases the event's message, and later ones of its key if they are in order.
    pub async fn release(self, receipt: Receipt) {
        let with_key = self.in_order && self.return_key().await;
        receipt.release(with_key);
    }

    /// Also returns later events of the key to the source, as [`Undelivered::Blocked`], until
    /// [`Inbox::reopen`]. Returns `false` if the source has revoked the key. The engine has processed this
    /// when it returns.
    async fn return_key(self) -> bool {
        let Some(decide) = self.decide else { return true };
        let (noted, note) = oneshot::channel();
        match decide.send(noted) {
            Ok(()) => note.await.unwrap_or(false),
            // An engine that has ended makes no attempts.
            Err(_) => true,
        }
    }
}

impl<A> Pending<A> {
    /// Waits for the result of the last attempt.
    ///
    /// # Errors
    /// [`Undelivered`].
    pub async fn settled(self) -> Result<A, Undelivered> {
        self.decided().await.0
    }

    /// Like `settled`, with the event's key, which may be paused.
    pub async fn decided(self) -> (Result<A, Undelivered>, PausedKey) {
        self.0
            .await
            .unwrap_or_else(|_| (Err(Undelivered::Stopped), PausedKey::NONE))
    }
}

impl<K, E, A> Inbox<K, E, A> {
    /// Offers an event to the engine; waits for room. After the engine's end the event is
    /// [`Undelivered::Stopped`].
    pub async fn offer(&self, key: Option<K>, event: E) -> Pending<A> {
        let (reply, pending) = oneshot::channel();
        // If the offer is refused, its reply is dropped, which ends the wait.
        let _stopped = self.offers.send(Offer { key, event, reply }).await;
        Pending(pending)
    }

    /// Revokes keys: their queued events are not attempted, and those in flight are not retried. Unless an
    /// attempt succeeds, they are [`Undelivered::Revoked`]. The engine has processed this when it returns.
    pub async fn revoke(&self, is_revoked: IsRevoked<K>) {
        self.notice(KeyChange::Revoked(is_revoked)).await;
    }

    /// Resumes a key after the source has taken back all its returned events: later offers are in order
    /// again.
    pub async fn reopen(&self, key: K) {
        self.notice(KeyChange::Reopened(key)).await;
    }

    async fn notice(&self, change: KeyChange<K>) {
        let (noted, note) = oneshot::channel();
        let notice = Notice {
            change,
            _noted: noted,
        };
        // An engine that has ended makes no attempts.
        if self.notices.send(notice).await.is_ok() {
            let _noted = note.await;
        }
    }
}

/// How the engine treats events that it has when it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Deliver all, with retries.
    DeliverAll,
    /// Finish attempts in flight only.
    FinishAttempts,
}

/// Called with the number of attempts in flight and of unsettled events, before the engine waits.
pub type LoadObserver<'p> = Box<dyn Fn(usize, usize) + Send + 'p>;

/// Delivers the events of one source.
pub struct Engine<'p, K, E, A> {
    inbox: mpsc::Receiver<Offer<K, E, A>>,
    notices: mpsc::Receiver<Notice<K>>,
    queue: Queue<K, Arc<E>>,
    events: HashMap<Id, Event<'p, A>>,
    policy: Option<&'p Policy>,
    /// Used instead of `policy`.
    component: Option<&'p ComponentPolicy>,
    metrics: &'p SidecarMetrics,
    /// Attempts wait while the app is unhealthy.
    health: Option<Health>,
    /// Whether queued events return to the source while the app is unhealthy.
    returns_while_unhealthy: bool,
    /// Gauges of the load.
    depth: Option<Depth>,
    /// Observer of the load.
    observer: Option<LoadObserver<'p>>,
    /// Whether a failed event of this key returns to the source together with later events of the key.
    in_order: Option<fn(&K) -> bool>,
    /// Which results leave an event undecided and pause its key.
    pauses_key: Option<fn(&A) -> bool>,
    /// Outstanding decisions of the source.
    undecided: FuturesUnordered<BoxFuture<'static, (Id, Option<oneshot::Sender<bool>>)>>,
    /// Whether all inboxes are closed.
    closed: bool,
}

/// State of an unsettled event.
struct Event<'p, A> {
    run: Run<'p>,
    /// Whether later events of its key return to the source with it.
    in_order: bool,
    /// The result of the last attempt.
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

/// An engine and its inbox.
pub fn engine<'p, K: Clone + Eq + Hash, E, A>(
    limits: Limits,
    policy: Option<&'p Policy>,
    metrics: &'p SidecarMetrics,
) -> (Inbox<K, E, A>, Engine<'p, K, E, A>) {
    // Events in this channel are not taken yet: the queue has the room.
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
    /// Applies the policy that the component has when an event arrives.
    #[must_use]
    pub fn under(mut self, policy: &'p ComponentPolicy) -> Self {
        self.component = Some(policy);
        self
    }

    /// Makes no attempts while the app is unhealthy.
    #[must_use]
    pub fn while_healthy(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Returns queued and new events at once, as [`Undelivered::Stopped`], while the app is unhealthy.
    #[must_use]
    pub fn returning_while_unhealthy(mut self, returns: bool) -> Self {
        self.returns_while_unhealthy = returns;
        self
    }

    /// Reports the load to gauges.
    #[must_use]
    pub fn showing(mut self, depth: Depth) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Failed events of such a key return to the source together with later ones, which are
    /// [`Undelivered::Blocked`], until [`Inbox::reopen`].
    #[must_use]
    pub fn in_order(mut self, is_in_order: fn(&K) -> bool) -> Self {
        self.in_order = Some(is_in_order);
        self
    }

    /// Makes an event [in order](Self::in_order) undecided if it ends with such a result or a breaker refuses
    /// it: its key is paused until the source uses its [`PausedKey`].
    #[must_use]
    pub fn pausing_keys(mut self, pauses_key: fn(&A) -> bool) -> Self {
        self.pauses_key = Some(pauses_key);
        self
    }

    /// Calls `observer` with the load, even if it has not changed.
    #[must_use]
    pub fn observed_by(mut self, observer: LoadObserver<'p>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Delivers with `attempt` until all inboxes are dropped or `stop` is cancelled, and every event is
    /// settled.
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

    /// Pauses the queue while the app is unhealthy; returns whether it is healthy.
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
            // Room was checked before, so the key is waiting to be reopened.
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

    /// The next attempt that is due. Events refused by their breaker are settled.
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
                    self.settle_following(behind);
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
            // The new owner of a revoked key continues, so nothing is decided here.
            let is_lost = settlement == Settlement::Release && (pauses_key || !is_done);
            self.settle(id, is_lost.then_some(Undelivered::Revoked));
        } else if end == AttemptEnd::Undecided {
            self.pause_key(id, None);
        }
        self.settle_following(behind);
    }

    /// Replies for an event and keeps its key paused until the source decides.
    fn pause_key(&mut self, id: Id, undelivered: Option<Undelivered>) {
        let (decide, decision) = oneshot::channel();
        self.reply(id, undelivered, Some(decide));
        self.undecided
            .push(Box::pin(async move { (id, decision.await.ok()) }));
    }

    /// Applies the source's decision. With `return_key`, later events return too, and the sender gets whether
    /// they do.
    fn decided(&mut self, id: Id, return_key: Option<oneshot::Sender<bool>>) {
        let end = match return_key {
            Some(_) => AttemptEnd::RejectKey,
            None => AttemptEnd::Reject,
        };
        let (settlement, behind) = self.queue.finish(id, end, Instant::now());
        self.settle_following(behind);
        if let Some(noted) = return_key {
            let _unheard = noted.send(settlement != Some(Settlement::Release));
        }
    }

    fn settle_following(&mut self, behind: Vec<Id>) {
        for id in behind {
            self.settle(id, Some(Undelivered::Blocked));
        }
    }

    /// Replies for an event: with `undelivered`, else with the app's last result.
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
            // No attempt was made: dropping the reply says so.
            (None, None) => return,
        };
        let key = PausedKey {
            in_order: event.in_order,
            decide,
        };
        // The source may have stopped waiting.
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

/// Waits until the app's health differs from `was_healthy`.
async fn health_changes(health: Option<&Health>, was_healthy: bool) {
    match health {
        Some(health) if was_healthy => health.until_unhealthy().await,
        Some(health) => health.until_healthy().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
