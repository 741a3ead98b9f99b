//! Timers: in the memory of the sidecar that they were registered with, and gone with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use outrigger_actors::recurrence::Recurrence;
use outrigger_wire::internals::v1::Reminder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::Message;
use super::reminders::data;
use super::{ActorError, Actors, LOG, check, check_name, spans};

/// Timers of one sidecar at most.
const MAX_TIMERS: usize = 1 << 18;

/// A timer as an app asks for it.
#[derive(Clone, Debug, Default)]
pub struct TimerRequest {
    /// Actor type.
    pub kind: String,
    /// Actor id.
    pub id: String,
    /// Its name; of the timers of one actor.
    pub name: String,
    /// When it is due first.
    pub due_time: String,
    /// The time between two.
    pub period: String,
    /// When it ends.
    pub ttl: String,
    /// What the app is to call; told to it as it is.
    pub callback: String,
    /// JSON that the app is told; empty = none.
    pub data: Vec<u8>,
}

type Key = (String, String, String);

/// The timers that run.
#[derive(Default)]
pub(super) struct Timers {
    running: Mutex<Running>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Running {
    timers: HashMap<Key, (u64, CancellationToken)>,
    /// Of the next one: tells those of one name apart.
    number: u64,
}

impl Timers {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a timer into the place of one with its name; whether there was one.
    fn put(&self, key: Key, stop: CancellationToken) -> Result<(u64, bool), ActorError> {
        let mut running = self.running();
        let known = running.timers.contains_key(&key);
        if running.timers.len() >= MAX_TIMERS && !known {
            return Err(ActorError::Timer(format!(
                "this sidecar has {MAX_TIMERS} timers, as many as it may have; unregister those that are not needed"
            )));
        }
        running.number += 1;
        let number = running.number;
        if let Some((_, old)) = running.timers.insert(key, (number, stop)) {
            old.cancel();
        }
        Ok((number, known))
    }

    /// Completes when no timer runs any more, once all were told to end.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Takes a timer out; whether there was one. `number`: only this one of its name.
    fn take(&self, key: &Key, number: Option<u64>) -> bool {
        let mut running = self.running();
        let is_meant = |(known, _): &(u64, _)| number.is_none_or(|number| number == *known);
        if !running.timers.get(key).is_some_and(is_meant) {
            return false;
        }
        if let Some((_, stop)) = running.timers.remove(key) {
            stop.cancel();
        }
        true
    }
}

impl Actors {
    /// Registers a timer, in the place of one with its name.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn register_timer(self: &Arc<Self>, request: TimerRequest) -> Result<(), ActorError> {
        check(&request.kind, &request.id)?;
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
        let stop = self.ended.child_token();
        let (number, replaced) = self.timers.put(key.clone(), stop.clone())?;
        if !replaced {
            kind.metrics.timers.add(1);
        }
        let (timers, gauge) = (Arc::clone(self), kind.metrics.timers.clone());
        self.timers.tasks.spawn(async move {
            let ran = timers.run_timer(times, &request);
            if stop.run_until_cancelled(ran).await.is_some() && timers.timers.take(&key, Some(number)) {
                gauge.add(-1);
            }
        });
        Ok(())
    }

    /// Ends a timer, if there is one of this name.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn unregister_timer(&self, kind: &str, id: &str, name: &str) -> Result<(), ActorError> {
        check(kind, id)?;
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

    async fn run_timer(&self, times: Recurrence, request: &TimerRequest) {
        let reminder = Reminder {
            actor_id: request.id.clone(),
            actor_type: request.kind.clone(),
            name: request.name.clone(),
            data: data(&request.data),
            period: request.period.clone(),
            due_time: request.due_time.clone(),
            is_timer: true,
            ..Reminder::default()
        };
        let mut next = Some(times);
        while let Some(times) = next {
            tokio::time::sleep(times.wait(Timestamp::now())).await;
            let mut span = spans::due(&self.with.tracer, &reminder);
            let trace = span.as_parent();
            let due = Message::Due(&reminder, &request.callback, &trace);
            let fired = self.send(&due).await;
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
