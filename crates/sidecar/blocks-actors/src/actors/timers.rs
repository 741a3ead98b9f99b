//! Timers, held in the memory of the sidecar at which they were registered, and lost with it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use outrigger_accept::budget::{self, HeldPayload, Payloads};
use outrigger_actors::recurrence::Recurrence;
use outrigger_runtime::scheduler::DeliveryStarted;
use outrigger_wire::internals::v1::Reminder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::Message;
use super::reminders::data;
use super::{ActorError, Actors, LOG, check_for_app, check_name, spans};

/// Divisor: the share of the memory budget for timers.
const MEMORY_PART: usize = 4;
/// Overhead of a timer besides its names and data, bytes.
const OVERHEAD: usize = 512;

/// An app's timer request.
#[derive(Clone, Debug, Default)]
pub struct TimerRequest {
    /// Actor type.
    pub kind: String,
    /// Actor id.
    pub id: String,
    /// Name of the timer, unique for its actor.
    pub name: String,
    /// First due time.
    pub due_time: String,
    /// Period.
    pub period: String,
    /// Time to live.
    pub ttl: String,
    /// Opaque callback name, passed to the app.
    pub callback: String,
    /// JSON for the app; empty is none.
    pub data: Vec<u8>,
}

impl TimerRequest {
    /// Bytes held by a running timer: its names twice, and its data.
    fn memory(&self) -> usize {
        let names = self.kind.len() + self.id.len() + self.name.len();
        let times = self.due_time.len() + self.period.len() + self.ttl.len();
        OVERHEAD + 2 * names + times + self.callback.len() + 2 * self.data.len()
    }
}

type Key = (String, String, String);

/// The running timers.
pub(super) struct Timers {
    running: Mutex<Running>,
    memory: Arc<Payloads>,
    tasks: TaskTracker,
}

impl Default for Timers {
    fn default() -> Self {
        Self::within(Payloads::part(MEMORY_PART))
    }
}

#[derive(Default)]
struct Running {
    /// By name.
    timers: HashMap<Key, RunningTimer>,
    /// Number of the next timer; distinguishes timers of the same name.
    number: u64,
}

struct RunningTimer {
    number: u64,
    /// Cancelled to stop the timer.
    stop: CancellationToken,
    memory: HeldPayload,
}

impl Timers {
    fn within(memory: Arc<Payloads>) -> Self {
        Self {
            running: Mutex::default(),
            memory,
            tasks: TaskTracker::new(),
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a timer, replacing one of the same name. Returns its number, and whether it replaced one.
    fn put(&self, key: Key, bytes: usize, stop: CancellationToken) -> Result<(u64, bool), ActorError> {
        let mut running = self.running();
        let known = running.timers.contains_key(&key);
        let memory = match running.timers.get_mut(&key) {
            Some(old) => {
                let is_held = old.memory.try_replace(bytes);
                is_held.then(|| std::mem::replace(&mut old.memory, self.memory.hold(0)))
            }
            None => self.memory.try_hold(bytes),
        };
        let memory = memory.ok_or_else(|| {
            ActorError::Timer(format!(
                "the timers of this sidecar have reached the limit of {} bytes: reduce their data, unregister unused ones, \
                 or raise {}",
                self.memory.most(),
                budget::VARIABLE
            ))
        })?;
        running.number += 1;
        let number = running.number;
        let timer = RunningTimer { number, stop, memory };
        if let Some(old) = running.timers.insert(key, timer) {
            old.stop.cancel();
        }
        Ok((number, known))
    }

    /// Completes when no timer is running, after all were stopped.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Removes a timer; returns whether it existed. `number`: only this timer of the name.
    fn take(&self, key: &Key, number: Option<u64>) -> bool {
        let mut running = self.running();
        let is_meant = |known: &RunningTimer| number.is_none_or(|number| number == known.number);
        if !running.timers.get(key).is_some_and(is_meant) {
            return false;
        }
        if let Some(timer) = running.timers.remove(key) {
            timer.stop.cancel();
        }
        true
    }
}

impl Actors {
    /// Registers a timer, replacing one of the same name.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn register_timer(self: &Arc<Self>, request: TimerRequest) -> Result<(), ActorError> {
        check_for_app(&request.kind, &request.id)?;
        check_name("name", &request.name)?;
        let hosted = self.known(&request.kind).await?;
        let Some(kind) = hosted.get(&request.kind) else {
            return Err(ActorError::Timer(format!(
                "can't create timer for actor {}||{}: actor type not registered",
                request.kind, request.id
            )));
        };
        let TimerRequest {
            due_time,
            period,
            ttl,
            ..
        } = &request;
        let times = Recurrence::timer(due_time, period, ttl, Timestamp::now())
            .map_err(|error| ActorError::Timer(error.to_string()))?;
        let key = (request.kind.clone(), request.id.clone(), request.name.clone());
        let stop = CancellationToken::new();
        let (number, replaced) = self.timers.put(key.clone(), request.memory(), stop.clone())?;
        if !replaced {
            kind.metrics.timers.add(1);
        }
        let (timers, gauge) = (Arc::clone(self), kind.metrics.timers.clone());
        self.timers.tasks.spawn(async move {
            let ran = timers.run_timer(times, &request, &stop);
            // A removed or replaced timer is not found by its number.
            if timers.ended.run_until_cancelled(ran).await.is_some() && timers.timers.take(&key, Some(number))
            {
                gauge.add(-1);
            }
        });
        Ok(())
    }

    /// Unregisters a timer; succeeds if there is none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn unregister_timer(&self, kind: &str, id: &str, name: &str) -> Result<(), ActorError> {
        check_for_app(kind, id)?;
        check_name("name", name)?;
        let hosted = self.known(kind).await?;
        let key = (kind.to_owned(), id.to_owned(), name.to_owned());
        if self.timers.take(&key, None)
            && let Some(kind) = hosted.get(kind)
        {
            kind.metrics.timers.add(-1);
        }
        Ok(())
    }

    /// Runs a timer until its last tick or until `stop`. A tick that the actor has started runs to its end,
    /// because the actor itself may unregister the timer in that turn.
    async fn run_timer(&self, times: Recurrence, request: &TimerRequest, stop: &CancellationToken) {
        let reminder = Reminder {
            actor_id: request.id.clone(),
            actor_type: request.kind.clone(),
            name: request.name.clone(),
            data: data(&request.data),
            period: request.period.clone(),
            due_time: request.due_time.clone(),
            callback: request.callback.clone(),
            is_timer: true,
            ..Reminder::default()
        };
        let mut next = Some(times);
        while let Some(times) = next {
            let wait = tokio::time::sleep(times.wait(Timestamp::now()));
            stop.run_until_cancelled(wait).await;
            if stop.is_cancelled() {
                return;
            }
            let mut span = spans::due(&self.with.tracer, &reminder);
            let trace = span.as_parent();
            let begun = DeliveryStarted::default();
            let due = Message::Due(&reminder, &trace, &begun);
            let mut sent = pin!(self.send(&due));
            let fired = tokio::select! {
                biased;
                fired = &mut sent => fired,
                () = stop.cancelled() => match begun.is_set() {
                    true => sent.await,
                    false => return,
                },
            };
            spans::note(&mut span, &fired);
            drop(span);
            if let Some(kind) = self.hosted.load_full().get(&request.kind) {
                kind.metrics.timer_fired(fired.is_ok());
            }
            match fired {
                Ok(reply) if super::app::is_cancelled(&reply) => break,
                Ok(_) => {}
                Err(error) => tracing::error!(
                    target: LOG,
                    "timer {} of actor {}||{} failed: {error}",
                    request.name,
                    request.kind,
                    request.id
                ),
            }
            next = times.passed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{OnceLock, Weak};
    use std::time::Duration;

    use bytes::Bytes;
    use futures::future::BoxFuture;
    use prost_types::Any;
    use tonic::Status;

    use super::*;
    use crate::actors::tests::{OPEN_KIND, actors};
    use crate::actors::{ActorCall, InternalActors};

    /// Actors that end their timer in its first turn: unregistered, or registered again for one more tick.
    struct Ticking {
        actors: OnceLock<Weak<Actors>>,
        is_renewed: bool,
        begun: AtomicUsize,
        answered: AtomicUsize,
    }

    fn once(id: &str, name: &str) -> TimerRequest {
        TimerRequest {
            kind: OPEN_KIND.to_owned(),
            id: id.to_owned(),
            name: name.to_owned(),
            due_time: "0s".to_owned(),
            ..TimerRequest::default()
        }
    }

    impl InternalActors for Ticking {
        fn invoke<'a>(&'a self, _: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Bytes::new())
            })
        }

        fn remind<'a>(
            &'a self,
            id: &'a str,
            name: &'a str,
            _: Option<&'a Any>,
        ) -> BoxFuture<'a, Result<(), Status>> {
            Box::pin(async move {
                let before = self.begun.fetch_add(1, Ordering::SeqCst);
                assert_eq!(before, self.answered.load(Ordering::SeqCst), "one turn at a time");
                if before == 0 {
                    let actors = self.actors.get().and_then(Weak::upgrade).unwrap();
                    let ended = match self.is_renewed {
                        true => actors.register_timer(once(id, name)).await,
                        false => actors.unregister_timer(OPEN_KIND, id, name).await,
                    };
                    ended.unwrap();
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                self.answered.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
        }

        fn halt<'a>(&'a self, _: &'a str) -> BoxFuture<'a, ()> {
            Box::pin(async move {})
        }

        fn is_kept(&self, _: &str) -> bool {
            true
        }
    }

    fn ticking(actors: &Arc<Actors>, is_renewed: bool) -> Arc<Ticking> {
        let ticking = Arc::new(Ticking {
            actors: OnceLock::from(Arc::downgrade(actors)),
            is_renewed,
            begun: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
        });
        actors.app_known.send_replace(true);
        actors.host_internal([(OPEN_KIND.to_owned(), ticking.clone() as Arc<dyn InternalActors>)]);
        ticking
    }

    /// Invariant: a timer that ends in its own turn completes that turn, and has no other.
    #[tokio::test(start_paused = true)]
    async fn timer_may_end_in_its_turn() {
        for (is_renewed, turns) in [(false, 1), (true, 2)] {
            let actors = Arc::new(actors());
            let ticking = ticking(&actors, is_renewed);
            let timer = TimerRequest {
                period: "10ms".to_owned(),
                ..once("a", "t")
            };
            actors.register_timer(timer).await.unwrap();
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(ticking.answered.load(Ordering::SeqCst), turns, "{is_renewed}");
            assert_eq!(ticking.begun.load(Ordering::SeqCst), turns, "{is_renewed}");
            assert!(actors.timers.running().timers.is_empty());
        }
    }

    /// Invariant: the memory of all timers is bounded, whatever their number, and an ended timer frees its
    /// share.
    #[tokio::test(start_paused = true)]
    async fn rejects_timers_beyond_memory_limit() {
        let timer = |name: &str| TimerRequest {
            due_time: "1h".to_owned(),
            data: vec![b'1'; 1000],
            ..once("a", name)
        };
        let mut actors = actors();
        actors.timers = Timers::within(Payloads::up_to(3 * timer("1").memory()));
        let actors = Arc::new(actors);
        let _ticking = ticking(&actors, false);
        for name in ["1", "2", "3"] {
            actors.register_timer(timer(name)).await.unwrap();
        }
        // In place of one of the same name.
        actors.register_timer(timer("3")).await.unwrap();
        let larger = TimerRequest {
            data: vec![b'1'; 1001],
            ..timer("3")
        };
        actors.register_timer(larger).await.unwrap();
        actors.register_timer(timer("3")).await.unwrap();
        let refused = actors.register_timer(timer("4")).await.unwrap_err().to_string();
        assert!(refused.contains(budget::VARIABLE), "{refused}");
        actors.unregister_timer(OPEN_KIND, "a", "2").await.unwrap();
        actors.register_timer(timer("4")).await.unwrap();
        assert_eq!(actors.timers.running().timers.len(), 3);
    }

    /// Invariant: a tick that waits for its turn is dropped when its timer is unregistered.
    #[tokio::test(start_paused = true)]
    async fn unregistering_drops_waiting_tick() {
        let actors = Arc::new(actors());
        let ticking = ticking(&actors, false);
        let call = ActorCall {
            kind: OPEN_KIND.to_owned(),
            id: "a".to_owned(),
            ..ActorCall::default()
        };
        let unregistering = async {
            actors.register_timer(once("a", "t")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            actors.unregister_timer(OPEN_KIND, "a", "t").await.unwrap();
        };
        let (called, ()) = futures::join!(actors.invoke_plain(&call), unregistering);
        called.map(drop).unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(ticking.begun.load(Ordering::SeqCst), 0);
    }
}
