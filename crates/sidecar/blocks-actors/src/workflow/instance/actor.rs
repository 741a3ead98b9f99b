//! The actors of instances: dispatch of methods, reminders and watches.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _};
use outrigger_wire::durabletask::backend::v1::DurableTimer;
use outrigger_workflow::error::NO_INSTANCE;
use outrigger_workflow::event::is_timer;
use outrigger_workflow::names::{self, Purpose};
use outrigger_workflow::{Counts, Origin};
use prost_types::Any;
use tonic::{Code, Status};

use super::access::Access;
use super::events::QueuedEvent;
use super::run::RunOutcome;
use super::state::Instances;
use crate::actors::{ActorCall, HANDED_BY, InternalActors, QueuedCall, Watched};
use crate::workflow::error::{is_broken, repeat_on_change, retry_later};
use crate::workflow::protocol::{
    CHECK_SUBTREE, FETCH_ONLY, FORCE, LOG, RETENTION_CALL, decode, is_marked, methods,
};

/// Idle time after which an instance leaves memory; later it is read again.
const IDLE: Duration = Duration::from_secs(30);

impl InternalActors for Instances {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move { repeat_on_change(&call.id, || self.invoked(call)).await })
    }

    fn arrive<'a>(&'a self, call: &'a ActorCall) -> Option<Box<dyn QueuedCall + 'a>> {
        // A call that policies decide about needs its own turn.
        (call.method == methods::ADD_EVENT && self.engine.access.guard(call).is_none())
            .then(|| Box::new(QueuedEvent::new(self, call)) as Box<dyn QueuedCall>)
    }

    fn wait<'a>(&'a self, id: &'a str) -> Option<Box<dyn Send + 'a>> {
        Some(Box::new(self.inbox.wait(id)))
    }

    fn remind<'a>(
        &'a self,
        id: &'a str,
        name: &'a str,
        data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            match Box::pin(repeat_on_change(id, || self.reminded(id, name, data))).await {
                Ok(()) => Ok(()),
                Err(why) => self.postpone(id, name, data, why).await,
            }
        })
    }

    fn watch<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Watched, Status>> {
        Box::pin(async move {
            if call.method != methods::WATCH {
                return Err(Status::unimplemented(format!(
                    "unsupported stream method: {}",
                    call.method
                )));
            }
            let mut held = self.hold(&call.id);
            held.check_access(call).await?;
            if is_marked(call, CHECK_SUBTREE) {
                let answer = held.check_subtree().await;
                return Ok(stream::once(std::future::ready(Ok(answer))).boxed());
            }
            let loaded = held.take().await?;
            let known = loaded.as_ref().filter(|loaded| !loaded.instance.is_left_over());
            let now = known.map(|loaded| loaded.instance.metadata());
            if now.is_none() && is_marked(call, FETCH_ONLY) {
                return Err(Status::not_found(NO_INSTANCE));
            }
            if let Some(loaded) = loaded {
                held.keep(loaded);
            }
            Ok(self.watchers.watch(&call.id, now))
        })
    }

    fn halt<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            drop(self.locked().take(id));
            if self.failures.depart(id) {
                let (engine, id) = (Arc::clone(&self.engine), id.to_owned());
                // Spawned, so that other instances end concurrently.
                let tasks = engine.tasks.clone();
                tasks.spawn(async move { engine.run_now(&id).await });
            }
            self.watchers.end(id);
        })
    }

    fn is_kept(&self, id: &str) -> bool {
        self.locked().end_turn(id)
    }

    fn idle_after(&self) -> Duration {
        IDLE
    }

    /// Stays if it is watched or postponed: an inactive actor could neither end its watches nor be run at
    /// once on its next host.
    fn on_idle(&self, id: &str) -> bool {
        let (is_needed, history) = self.locked().on_idle(id);
        // Dropped outside of the lock: it may be large.
        drop(history);
        !is_needed && !self.watchers.has(id) && !self.failures.is_postponed(id)
    }
}

impl Instances {
    /// Handles a method call.
    async fn invoked(&self, call: &ActorCall) -> Result<Bytes, Status> {
        let mut held = self.hold(&call.id);
        if held.check_access(call).await? == Access::Answered {
            return Ok(Bytes::new());
        }
        match call.method.as_str() {
            methods::ADD_EVENT => {
                held.check_stalled()?;
                held.add_event(&call.body, call.metadata.contains_key(HANDED_BY))
                    .await?;
            }
            methods::CREATE => held.create(&call.body).await?,
            methods::PURGE => {
                held.check_stalled()?;
                held.purge(is_marked(call, RETENTION_CALL)).await?;
            }
            methods::PURGE_TREE => return held.purge_tree(is_marked(call, FORCE)).await,
            methods::FORK => held.fork(&call.body).await?,
            methods::RERUN => held.rerun(&call.body).await?,
            other => return Err(Status::unimplemented(format!("no such method: {other}"))),
        }
        Ok(Bytes::new())
    }

    /// Handles a due reminder.
    async fn reminded(&self, id: &str, name: &str, data: Option<&Any>) -> Result<(), Status> {
        let mut held = self.hold(id);
        held.check_stalled()?;
        let of = data.map_or_else(Origin::default, |data| Origin::read(&data.value));
        let fired = match names::purpose(name) {
            Some(Purpose::Run) => None,
            Some(Purpose::Timer) => {
                let data = data.map_or(&[][..], |data| &data.value);
                let timer: DurableTimer = decode("the data of the timer", data)?;
                if !timer.timer_event.as_ref().is_some_and(is_timer) {
                    return Err(Status::invalid_argument(format!(
                        "reminder '{name}' of workflow '{id}' carries another event than a fired timer"
                    )));
                }
                Some(timer)
            }
            Some(Purpose::Event) => {
                let added = held
                    .add_event(data.map_or(&[][..], |data| &data.value), true)
                    .await;
                return match added {
                    Err(error) if error.code() == Code::NotFound => {
                        tracing::warn!(target: LOG, "workflow '{id}' no longer exists: reminder '{name}' is dropped");
                        Ok(())
                    }
                    added => added.inspect_err(|error| self.note_broken(id, error)),
                };
            }
            Some(Purpose::Rerun) => {
                let data = data.map_or(&[][..], |data| &data.value);
                let made =
                    Counts::read(id, data).map_err(|error| Status::invalid_argument(error.to_string()))?;
                let begun = held.begin_rerun(made).await;
                return begun.inspect_err(|error| self.note_broken(id, error));
            }
            None => {
                return Err(Status::invalid_argument(format!(
                    "unable to handle reminder '{name}' for workflow actor '{id}': unknown reminder type"
                )));
            }
        };
        let failures = &self.failures;
        // If the last worker disconnects, the run that would have stored the stall is cancelled.
        held.stall_after(failures.losses_of(id)).await?;
        // A worker was asked already, and nothing has arrived since.
        if let Some(why) = failures.backoff_error(id) {
            return Err(retry_later(why));
        }
        let ran = Box::pin(held.run(fired, &of)).await;
        match &ran {
            // The failed step belongs to a timer's reminder, which is redelivered.
            Ok(RunOutcome::OnlyEarly) => {}
            Ok(_) => failures.clear(id),
            Err(error) => {
                self.note_broken(id, error);
                failures.failed(id, error.message());
            }
        }
        ran.map(|_| ())
    }

    /// Records unusable stored state, so that retries back off.
    fn note_broken(&self, id: &str, error: &Status) {
        if is_broken(error.code()) {
            drop(self.failures.reject(id, error.message()));
        }
    }
}
