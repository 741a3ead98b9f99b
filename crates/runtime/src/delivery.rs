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

use futures::stream::{FuturesUnordered, StreamExt};
use outrigger_delivery::{Finish, Id, Limits, Queue};
use outrigger_policy::resiliency::{Key, Outcome, Policy};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::app::Health;
use crate::metrics::SidecarMetrics;
use crate::resilience::{Attempt, Refused, Run};

pub use depth::Depth;
pub use intake::{Consumer, StopTokens, take};

/// Where a source puts its events. `K` orders them: those with the same key are delivered one after the other.
pub struct Inbox<K, E, A> {
    offers: mpsc::Sender<Offer<K, E, A>>,
    revocations: mpsc::Sender<Revocation<K>>,
}

/// The source took keys away.
struct Revocation<K> {
    is_revoked: IsRevoked<K>,
    /// Dropped when that is noted.
    _noted: oneshot::Sender<()>,
}

/// Whether a key was taken away.
pub type IsRevoked<K> = Box<dyn Fn(&K) -> bool + Send>;

struct Offer<K, E, A> {
    key: Option<K>,
    event: E,
    reply: oneshot::Sender<Result<A, Refused>>,
}

/// Why there is no answer of the app to an event.
#[derive(Debug, thiserror::Error)]
pub enum Undelivered {
    /// A circuit breaker is open.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The source or the process ends: no attempt was made.
    #[error("no more events are delivered: the sidecar or the component is shutting down")]
    Stopped,
}

/// An event that the engine has taken.
pub struct Pending<A>(oneshot::Receiver<Result<A, Refused>>);

impl<A> Pending<A> {
    /// Waits for what came of the last attempt.
    ///
    /// # Errors
    /// [`Undelivered`].
    pub async fn settled(self) -> Result<A, Undelivered> {
        match self.0.await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Undelivered::Stopped),
        }
    }
}

impl<K, E, A> Inbox<K, E, A> {
    /// Gives an event to the engine; waits while there is no room.
    ///
    /// # Errors
    /// [`Undelivered::Stopped`].
    pub async fn offer(&self, key: Option<K>, event: E) -> Result<Pending<A>, Undelivered> {
        let (reply, pending) = oneshot::channel();
        let offer = Offer { key, event, reply };
        self.offers.send(offer).await.map_err(|_| Undelivered::Stopped)?;
        Ok(Pending(pending))
    }

    /// The source took keys away: their events that wait are not attempted any more, and nobody waits for their answers.
    /// When this returns, the engine has taken note.
    pub async fn revoke(&self, is_revoked: IsRevoked<K>) {
        let (noted, note) = oneshot::channel();
        let revocation = Revocation {
            is_revoked,
            _noted: noted,
        };
        // An engine that has ended attempts nothing.
        if self.revocations.send(revocation).await.is_ok() {
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

/// Delivers the events of one source.
pub struct Engine<'p, K, E, A> {
    inbox: mpsc::Receiver<Offer<K, E, A>>,
    revocations: mpsc::Receiver<Revocation<K>>,
    queue: Queue<K, Arc<E>>,
    events: HashMap<Id, Event<'p, A>>,
    policy: Option<&'p Policy>,
    metrics: &'p SidecarMetrics,
    /// Attempts wait while the app is unwell.
    health: Option<Health>,
    /// Where it is shown how full it is.
    depth: Option<Depth>,
    /// No more events come.
    closed: bool,
}

/// What is kept of an event until it is settled.
struct Event<'p, A> {
    run: Run<'p>,
    /// What came of the last attempt.
    answer: Option<A>,
    reply: oneshot::Sender<Result<A, Refused>>,
}

/// An engine and where to put its events.
pub fn engine<'p, K: Clone + Eq + Hash, E, A>(
    limits: Limits,
    policy: Option<&'p Policy>,
    metrics: &'p SidecarMetrics,
) -> (Inbox<K, E, A>, Engine<'p, K, E, A>) {
    // What waits here has been taken by nobody: the room is the queue's.
    let (offers, inbox) = mpsc::channel(1);
    let (revoking, revocations) = mpsc::channel(1);
    let engine = Engine {
        inbox,
        revocations,
        queue: Queue::new(limits),
        events: HashMap::new(),
        policy,
        metrics,
        health: None,
        depth: None,
        closed: false,
    };
    let inbox = Inbox {
        offers,
        revocations: revoking,
    };
    (inbox, engine)
}

impl<K: Clone + Eq + Hash, E, A> Engine<'_, K, E, A> {
    /// Begins no attempt while the app is unwell.
    #[must_use]
    pub fn while_healthy(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Shows how full it is.
    #[must_use]
    pub fn showing(mut self, depth: Depth) -> Self {
        self.depth = Some(depth);
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
            self.follow_health();
            while let Some((id, event, limit)) = self.begin() {
                let attempt = attempt(event, limit);
                running.push(async move { (id, attempt.await) });
            }
            if let Some(depth) = &mut self.depth {
                depth.show(self.queue.in_flight(), self.queue.held());
            }
            if self.closed && self.queue.held() == 0 {
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
                offer = self.inbox.recv(), if !self.closed && self.queue.room() > 0 => match offer {
                    Some(offer) => self.take(offer),
                    None => self.closed = true,
                },
                Some(revocation) = self.revocations.recv() => self.revoke(&revocation.is_revoked),
                () = sleep_until(wake_at) => {}
                () = health_changes(self.health.as_ref()) => {}
            }
        }
    }

    fn follow_health(&mut self) {
        match &self.health {
            Some(health) if !health.is_healthy() => self.queue.pause(),
            _ => self.queue.resume(),
        }
    }

    fn take(&mut self, offer: Offer<K, E, A>) {
        // There is room, and nothing is drained: it is asked for first. A refused offer would answer by its end.
        if let Ok(id) = self.queue.offer(offer.key, Arc::new(offer.event)) {
            let event = Event {
                run: Run::start(self.policy, Key::NONE, self.metrics),
                answer: None,
                reply: offer.reply,
            };
            self.events.insert(id, event);
        }
    }

    fn revoke(&mut self, is_revoked: &IsRevoked<K>) {
        for settled in self.queue.revoke(is_revoked) {
            self.settle(settled.id, None);
        }
    }

    /// The next attempt that may be made now. An event whose breaker refuses it is settled.
    fn begin(&mut self) -> Option<(Id, Arc<E>, Attempt)> {
        loop {
            let next = self.queue.next(Instant::now())?;
            let Some(event) = self.events.get_mut(&next.id) else {
                self.queue.finish(next.id, Finish::Return, Instant::now());
                continue;
            };
            match event.run.before() {
                Ok(timeout) => return Some((next.id, next.item, Attempt::new(next.number, timeout))),
                Err(refused) => {
                    self.queue.finish(next.id, Finish::Return, Instant::now());
                    self.settle(next.id, Some(refused));
                }
            }
        }
    }

    fn finish(&mut self, id: Id, answer: A, outcome: Outcome) {
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        event.answer = Some(answer);
        let is_done = matches!(outcome, Outcome::Success);
        let finish = match event.run.after(outcome) {
            Some(pause) => Finish::Retry(pause),
            None if is_done => Finish::Done,
            None => Finish::Return,
        };
        if self.queue.finish(id, finish, Instant::now()).is_some() {
            self.settle(id, None);
        }
    }

    /// Tells the source what came of an event.
    fn settle(&mut self, id: Id, refused: Option<Refused>) {
        let Some(event) = self.events.remove(&id) else {
            return;
        };
        let answer = match (refused, event.answer) {
            (Some(refused), _) => Err(refused),
            (None, Some(answer)) => Ok(answer),
            // Nothing was attempted: the source hears of it by the end of the reply.
            (None, None) => return,
        };
        // A source that does not wait need not hear it.
        let _unheard = event.reply.send(answer);
    }

    fn stop(&mut self, on_stop: OnStop) {
        self.inbox.close();
        if on_stop == OnStop::FinishAttempts {
            self.closed = true;
            for settled in self.queue.drain() {
                self.settle(settled.id, None);
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

async fn health_changes(health: Option<&Health>) {
    match health {
        Some(health) if health.is_healthy() => health.until_unhealthy().await,
        Some(health) => health.until_healthy().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use outrigger_policy::resiliency::{ComponentKind, Direction, Resiliency};
    use outrigger_resources::load::text;
    use outrigger_telemetry::metrics::Metrics;

    use super::*;

    const FAILURE: Outcome = Outcome::Failure { code: None };
    const LIMITS: Limits = Limits {
        in_flight: 1,
        held: 2,
    };

    /// Retries twice, at once.
    fn policy() -> Arc<Policy> {
        let yaml = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                    retries:\n      twice:\n        policy: constant\n        duration: 1ms\n        maxRetries: 2\n  \
                    targets:\n    components:\n      source:\n        inbound:\n          retry: twice\n";
        let resources = text(yaml, "app").unwrap().resiliency;
        let policies = Resiliency::build(&resources, "app").0;
        let found = policies.component("source", ComponentKind::Binding, Direction::Inbound);
        found.unwrap()
    }

    fn metrics() -> SidecarMetrics {
        SidecarMetrics::new(Metrics::disabled())
    }

    #[tokio::test]
    async fn the_answer_of_the_last_attempt_is_the_answer() {
        let (policy, metrics) = (policy(), metrics());
        let (inbox, engine) = engine::<(), _, _>(LIMITS, Some(&policy), &metrics);
        let stop = CancellationToken::new();
        let source = async {
            let fine = inbox.offer(None, 2).await.unwrap().settled().await;
            let never = inbox.offer(None, 9).await.unwrap().settled().await;
            drop(inbox);
            (fine.unwrap(), never.unwrap())
        };
        // An event succeeds at the attempt that it names.
        let delivering = engine.run(&stop, OnStop::DeliverAll, |event, attempt: Attempt| async move {
            let outcome = if attempt.number >= *event {
                Outcome::Success
            } else {
                FAILURE
            };
            (attempt.number, outcome)
        });
        let (answers, ()) = tokio::join!(source, delivering);
        assert_eq!(answers, (2, 3), "the first retry, and the end of all retries");
    }

    #[tokio::test]
    async fn a_retry_holds_back_its_own_key_alone() {
        let (policy, metrics) = (policy(), metrics());
        let limits = Limits { held: 3, ..LIMITS };
        let (inbox, mut engine) = engine(limits, Some(&policy), &metrics);
        drop(inbox);
        for event in ["a1", "b1", "a2"] {
            let (reply, _unheard) = oneshot::channel();
            let key = event.chars().next();
            engine.take(Offer { key, event, reply });
        }
        let (seen, stop) = (Mutex::new(Vec::new()), CancellationToken::new());
        let delivering = engine.run(&stop, OnStop::DeliverAll, |event, attempt: Attempt| {
            seen.lock().unwrap().push(*event);
            async move {
                let fails = *event == "a1" && attempt.number == 1;
                ((), if fails { FAILURE } else { Outcome::Success })
            }
        });
        delivering.await;
        let seen = seen.into_inner().unwrap();
        let of_a: Vec<_> = seen.iter().filter(|event| event.starts_with('a')).collect();
        assert_eq!(of_a, [&"a1", &"a1", &"a2"]);
        assert_eq!((seen.len(), seen[1]), (4, "b1"), "b does not wait for a");
    }

    #[tokio::test]
    async fn what_waits_when_the_engine_stops_is_not_attempted() {
        let metrics = metrics();
        let (inbox, engine) = engine::<(), _, _>(LIMITS, None, &metrics);
        let (stop, open) = (CancellationToken::new(), CancellationToken::new());
        let source = async {
            let first = inbox.offer(None, "first").await.unwrap();
            let second = inbox.offer(None, "second").await.unwrap();
            let third = inbox.offer(None, "third");
            let third = tokio::time::timeout(Duration::from_millis(50), third).await;
            stop.cancel();
            let second = second.settled().await;
            open.cancel();
            (first.settled().await, second, third)
        };
        let delivering = engine.run(&stop, OnStop::FinishAttempts, |event, _| {
            let open = open.clone();
            async move {
                open.cancelled().await;
                (*event, Outcome::Success)
            }
        });
        let ((first, second, third), ()) = tokio::join!(source, delivering);
        assert_eq!(first.unwrap(), "first", "it was in flight");
        assert!(matches!(second, Err(Undelivered::Stopped)));
        if let Ok(third) = third {
            let third = third.unwrap().settled().await;
            assert!(
                matches!(third, Err(Undelivered::Stopped)),
                "it was in nobody's hands"
            );
        }
    }

    #[tokio::test]
    async fn nothing_is_attempted_while_the_app_is_unwell() {
        let metrics = metrics();
        let (set_health, health) = Health::new(false);
        let (inbox, engine) = engine::<(), _, _>(LIMITS, None, &metrics);
        let engine = engine.while_healthy(health.clone());
        let stop = CancellationToken::new();
        let source = async {
            let pending = inbox.offer(None, ()).await.unwrap();
            tokio::task::yield_now().await;
            set_health.send_replace(true);
            let was_healthy = pending.settled().await.unwrap();
            drop(inbox);
            was_healthy
        };
        let delivering = engine.run(&stop, OnStop::DeliverAll, |_, _| {
            let was_healthy = health.is_healthy();
            async move { (was_healthy, Outcome::Success) }
        });
        let (was_healthy, ()) = tokio::join!(source, delivering);
        assert!(was_healthy);
    }
}
