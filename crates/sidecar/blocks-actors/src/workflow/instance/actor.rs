//! The actors that own the state of workflow instances.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_wire::durabletask::backend::v1::{CreateWorkflowInstanceRequest, DurableTimer};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_workflow::error::AddError;
use outrigger_workflow::event::Awaited;
use outrigger_workflow::facts::Facts;
use outrigger_workflow::names::{self, Purpose};
use outrigger_workflow::{Added, Additions, Arrival, Change, Counts, Creation, Origin, create};
use prost_types::Any;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::cache::{CacheEntry, CachedWaits, Gauges, InstanceCache};
use super::inbox::{Inbox, QueuedEvent};
use super::run::RunOutcome;
use super::store::Loaded;
use super::watchers::Watchers;
use crate::actors::{ActorCall, InternalActors, QueuedCall, Watched};
use crate::workflow::LOG;
use crate::workflow::engine::{
    Engine, RETENTION_CALL, arrival, decode, is_broken, methods, now, plain, repeat_on_change, retry_later,
};

/// How long an instance without a turn stays in memory: what sleeps for longer costs nothing, and is read anew.
const IDLE: Duration = Duration::from_secs(30);

/// How long it may take to remove reminders of what was replaced.
const REMINDER_REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// All instances that live here.
pub(crate) struct Instances {
    pub(crate) engine: Arc<Engine>,
    /// Only who has the turn of an instance takes its slot out.
    cache: Mutex<InstanceCache>,
    pub(crate) inbox: Inbox,
    pub(crate) watchers: Arc<Watchers>,
}

/// An instance in its turn. What is not put back is read anew: a turn that is cut off leaves nothing half done.
pub(crate) struct Held<'a> {
    pub(crate) all: &'a Instances,
    pub(crate) id: &'a str,
    pub(crate) slot: CacheEntry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        self.all.locked().put(self.id, slot);
    }
}

impl Instances {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let gauges = Gauges {
            stalled: engine.metrics.stalled.clone(),
            bytes: engine.metrics.cached.clone(),
        };
        Self {
            engine,
            cache: Mutex::new(InstanceCache::with(gauges)),
            inbox: Inbox::default(),
            watchers: Arc::default(),
        }
    }

    /// What those in memory wait for, `most` of them, the one first whose turn was longest ago.
    pub(crate) fn waits(&self, most: usize) -> Vec<CachedWaits> {
        let ids = self.locked().ids(most);
        // Turns need the lock, too: it is held for one instance at a time.
        ids.iter().filter_map(|id| self.locked().waits(id)).collect()
    }

    fn locked(&self) -> MutexGuard<'_, InstanceCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold<'a>(&'a self, id: &'a str) -> Held<'a> {
        let slot = self.locked().take(id);
        Held { all: self, id, slot }
    }
}

impl Held<'_> {
    /// Takes the instance, from memory or from the store. It is to be given back with [`Held::keep`].
    pub(crate) async fn take(&mut self) -> Result<Option<Loaded>, Status> {
        match self.slot.loaded.take() {
            Some(loaded) => Ok(Some(loaded)),
            None => self.all.engine.load(self.id).await,
        }
    }

    /// As [`Held::take`], but what is in memory is read anew where it is not what is stored any more: an instance that was
    /// purged by force is not in the way of another.
    pub(crate) async fn take_current(&mut self) -> Result<Option<Loaded>, Status> {
        if self.slot.loaded.is_some() {
            self.forget_if_changed().await?;
        }
        self.take().await
    }

    /// Whether the store has another state than the one in memory, which is dropped then.
    pub(crate) async fn forget_if_changed(&mut self) -> Result<bool, Status> {
        let found = self.all.engine.find(self.id).await?;
        let known = self.slot.loaded.as_ref().zip(found.as_ref());
        let is_current = known.is_some_and(|(loaded, found)| loaded.is(found));
        if !is_current {
            self.slot = CacheEntry::default();
        }
        Ok(!is_current)
    }

    pub(crate) fn keep(&mut self, loaded: Loaded) {
        self.slot.loaded = Some(loaded);
    }

    /// Stores a change, keeps the instance, and tells who watches it.
    pub(crate) async fn save(&mut self, mut loaded: Loaded, change: Change) -> Result<(), Status> {
        if !change.is_empty() {
            self.all.engine.save(&mut loaded, change).await?;
        }
        self.all.watchers.publish(self.id, || loaded.instance.metadata());
        self.keep(loaded);
        Ok(())
    }

    pub(crate) fn check_stalled(&self) -> Result<(), Status> {
        if self.slot.is_stalled {
            return Err(stalled_status());
        }
        Ok(())
    }

    async fn create(&mut self, body: &Bytes) -> Result<(), Status> {
        let mut request: CreateWorkflowInstanceRequest =
            decode("the request to create a workflow", body.clone())?;
        let mut loaded = self.take_current().await?.unwrap_or_else(|| Loaded::new(self.id));
        let awaits = !self.slot.awaited.is_empty();
        let creation = match loaded.instance.creation(&request, awaits) {
            Ok(creation) => creation,
            Err(error) => {
                self.keep(loaded);
                return Err(plain(error));
            }
        };
        let Some(start) = request
            .start_event
            .take()
            .filter(|_| creation != Creation::Nothing)
        else {
            self.keep(loaded);
            return Ok(());
        };
        let engine = Arc::clone(&self.all.engine);
        // A child is made, and stalls: its parent is told of neither, and both are seen.
        let is_child = matches!(&start.event_type, Some(EventType::ExecutionStarted(started)) if started.parent_instance.is_some());
        let too_much = || {
            let room = engine.queue.has_memory();
            room.err()
                .map(|why| format!("the workflow is not started: {why}"))
        };
        if !is_child && let Some(why) = engine.limit.refuses_start(&start).or_else(too_much) {
            self.keep(loaded);
            return Err(Status::resource_exhausted(why));
        }
        // What was there goes with the change that stores what takes its place: whatever is cut off before leaves it whole.
        let replaced = match creation {
            Creation::Replace => loaded.instance.activities(),
            _ => Vec::new(),
        };
        let due = create::due(&start);
        let change = loaded.instance.start(start);
        let (execution, later) = (loaded.instance.execution(), loaded.instance.begins_later(now()));
        engine
            .remind_start(self.id, execution, due, later.is_some())
            .await?;
        self.save(loaded, change).await?;
        engine.instance_failures.clear(self.id);
        self.slot.awaited.clear();
        self.slot.is_stalled = false;
        self.forget_replaced(replaced).await;
        Ok(())
    }

    /// Removes the reminders of activities that nobody waits for any more: they would be run for nothing. Other reminders of
    /// what was replaced find another execution and do nothing, and a removal that is late might take one of this execution.
    async fn forget_replaced(&self, activities: Vec<String>) {
        let forgotten = timeout(
            REMINDER_REMOVAL_TIMEOUT,
            self.all.engine.forget_activities(activities),
        )
        .await;
        let forgotten = forgotten.unwrap_or_else(|_| Err(retry_later("the scheduler takes long")));
        if let Err(error) = forgotten {
            let why = error.message();
            tracing::warn!(
                target: LOG,
                "workflow '{}' was replaced; activities of the one before may be run once more, for nothing: {why}",
                self.id
            );
        }
    }

    /// Adds events; what becomes of each. One reminder has all of them taken in.
    ///
    /// # Errors
    /// The store did not take them: one of them may be the reason.
    pub(crate) async fn add_events(
        &mut self,
        events: Vec<Arrival>,
    ) -> Result<Vec<Result<(), Status>>, Status> {
        let count = events.len();
        let all = |error: Status| Ok(vec![Err(error); count]);
        let mut loaded = match self.take().await {
            Ok(Some(loaded)) => loaded,
            Ok(None) => return all(Status::not_found(AddError::Unknown.to_string())),
            Err(error) => return all(error),
        };
        self.note_arrivals(loaded.instance.facts(), &events);
        let Additions { added, run, change } = loaded.instance.add(events, self.all.engine.limit);
        if let Some(run) = run {
            let engine = Arc::clone(&self.all.engine);
            let kind = &engine.types.workflow;
            // Who fails here reads the instance anew: nothing was added then.
            if let Err(error) = engine.remind(kind, self.id, &run.reminder, run.due, None).await {
                return all(error);
            }
            if let Err(error) = self.save(loaded, change).await {
                // It was purged by force, and was only in memory still: who sends an event is not to send it again.
                if matches!(engine.find(self.id).await, Ok(None)) {
                    self.slot = CacheEntry::default();
                    return all(Status::not_found(AddError::Unknown.to_string()));
                }
                return Err(error);
            }
        } else {
            self.keep(loaded);
        }
        Ok(added.into_iter().map(answer).collect())
    }

    /// What is known of an instance whatever becomes of events that have come for it. `facts` say what it waits for.
    pub(crate) fn note_arrivals(&mut self, facts: &Facts, events: &[Arrival]) {
        for Arrival { event, .. } in events {
            if let Some((Awaited::Task, task)) = outrigger_workflow::event::ends(event) {
                self.slot.awaited.remove(&task);
            }
        }
        // The result of what a turn began that could not be stored would have that turn repeated at once, and bring the next.
        if events.iter().any(|arrival| !facts.ends_nothing(&arrival.event)) {
            self.all.engine.instance_failures.wake(self.id);
        }
    }

    async fn add_event(&mut self, body: &[u8]) -> Result<(), Status> {
        let answers = self.add_events(vec![arrival(body)?]).await?;
        answers.into_iter().collect()
    }

    async fn purge(&mut self, by_retention: bool) -> Result<(), Status> {
        // What is removed is what the store has now.
        self.slot.loaded = None;
        let loaded = self.all.engine.load_rest(self.id).await?;
        let instance = loaded.as_ref().map(|loaded| &loaded.instance);
        let purged = instance.map_or(Err(outrigger_workflow::error::PurgeError::Unknown), |instance| {
            instance.purge()
        });
        if let Err(error) = purged {
            let code = match error {
                outrigger_workflow::error::PurgeError::Unknown => Code::NotFound,
                _ => Code::FailedPrecondition,
            };
            if let Some(loaded) = loaded {
                self.keep(loaded);
            }
            return Err(Status::new(code, error.to_string()));
        }
        let Some(mut loaded) = loaded else { return Ok(()) };
        let engine = Arc::clone(&self.all.engine);
        engine.remove(&mut loaded).await?;
        self.slot = CacheEntry::default();
        engine
            .forget_instance(self.id, loaded.instance.activities(), !by_retention)
            .await
    }
}

impl Engine {
    /// Removes the reminders of an instance and of these of its activities; `with_retention`: that of its purge too. No
    /// prefix of ids is removed: another instance's id may begin as this one's activities' do.
    pub(crate) async fn forget_instance(
        &self,
        id: &str,
        activities: Vec<String>,
        with_retention: bool,
    ) -> Result<(), Status> {
        let types = &self.types;
        tokio::try_join!(
            self.forget_all(&types.workflow, id),
            self.forget_activities(activities),
            async {
                match with_retention {
                    true => self.forget_all(&types.retentioner, id).await,
                    false => Ok(()),
                }
            }
        )?;
        Ok(())
    }
}

impl InternalActors for Instances {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move {
            repeat_on_change(&call.id, || self.invoked(call)).await?;
            Ok(Bytes::new())
        })
    }

    fn arrive<'a>(&'a self, call: &'a ActorCall) -> Option<Box<dyn QueuedCall + 'a>> {
        (call.method == methods::ADD_EVENT)
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
                Err(why) => self.engine.postpone(id, name, data, why).await,
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
            let loaded = held.take().await?;
            let known = loaded.as_ref().filter(|loaded| !loaded.instance.is_left_over());
            let now = known.map(|loaded| loaded.instance.metadata());
            if let Some(loaded) = loaded {
                held.keep(loaded);
            }
            Ok(self.watchers.watch(&call.id, now))
        })
    }

    fn halt<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            drop(self.locked().take(id));
            if self.engine.instance_failures.depart(id) {
                let (engine, id) = (Arc::clone(&self.engine), id.to_owned());
                // Others are to end meanwhile.
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

    /// Those who watch it would not hear that it moves if it were not active, nor would it be run at once elsewhere.
    fn on_idle(&self, id: &str) -> bool {
        let (is_needed, history) = self.locked().on_idle(id);
        // Freed when others have their turn again: it may be large.
        drop(history);
        !is_needed && !self.watchers.has(id) && !self.engine.instance_failures.is_postponed(id)
    }
}

impl Instances {
    /// A method is called.
    async fn invoked(&self, call: &ActorCall) -> Result<(), Status> {
        let mut held = self.hold(&call.id);
        match call.method.as_str() {
            methods::CREATE => held.create(&call.body).await,
            methods::PURGE => {
                held.check_stalled()?;
                let of_retention = call.metadata.get(RETENTION_CALL);
                held.purge(of_retention.is_some_and(|value| value == "true"))
                    .await
            }
            methods::FORK => held.fork(&call.body).await,
            methods::RERUN => held.rerun(&call.body).await,
            other => Err(Status::unimplemented(format!("no such method: {other}"))),
        }
    }

    /// A reminder is due.
    async fn reminded(&self, id: &str, name: &str, data: Option<&Any>) -> Result<(), Status> {
        let mut held = self.hold(id);
        held.check_stalled()?;
        let of = data.map_or_else(Origin::default, |data| Origin::read(&data.value));
        let fired = match names::purpose(name) {
            Some(Purpose::Run) => None,
            Some(Purpose::Timer) => {
                let data = data.map_or(&[][..], |data| &data.value);
                Some(decode::<DurableTimer>("the data of the timer", data)?)
            }
            Some(Purpose::ActivityResult) => {
                let added = held.add_event(data.map_or(&[][..], |data| &data.value)).await;
                return added.inspect_err(|error| self.note_broken(id, error));
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
        let failures = &self.engine.instance_failures;
        // The end of the last worker ends the run too that would have stored it.
        held.stall_after(failures.losses_of(id)).await?;
        // It was asked already, and nothing has come since.
        if let Some(why) = failures.pauses(id) {
            return Err(retry_later(why));
        }
        let ran = Box::pin(held.run(fired, &of)).await;
        match &ran {
            // The turn that failed has a timer's reminder, which comes again.
            Ok(RunOutcome::OnlyEarly) => {}
            Ok(_) => failures.clear(id),
            Err(error) => {
                self.note_broken(id, error);
                failures.failed(id, error.message());
            }
        }
        ran.map(|_| ())
    }

    /// What is stored of an instance does not mend itself: it comes ever more seldom.
    fn note_broken(&self, id: &str, error: &Status) {
        if is_broken(error.code()) {
            drop(self.engine.refused(id, error.message()));
        }
    }
}

/// What a stalled instance says to all that comes.
pub(crate) fn stalled_status() -> Status {
    Status::failed_precondition("workflow is stalled")
}

/// What the sender of an event is told.
pub(crate) fn answer(added: Result<Added, AddError>) -> Result<(), Status> {
    match added {
        Ok(_) => Ok(()),
        Err(error @ AddError::Unknown) => Err(Status::not_found(error.to_string())),
        Err(error @ (AddError::Full | AddError::TooLarge { .. })) => {
            Err(Status::resource_exhausted(error.to_string()))
        }
        Err(error @ AddError::Stalled) => Err(Status::failed_precondition(error.to_string())),
    }
}

/// A part of a name that tells reminders of one purpose apart.
pub(crate) fn random() -> [u8; 6] {
    rand::random()
}
