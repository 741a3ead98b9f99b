//! The actors that own the state of workflow instances.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::RerunWorkflowFromEventRequest;
use outrigger_wire::durabletask::backend::v1::{CreateWorkflowInstanceRequest, DurableTimer, WorkflowState};
use outrigger_workflow::error::{AddError, RerunError};
use outrigger_workflow::names::{self, Purpose};
use outrigger_workflow::{Added, Change, Creation, Instance, Rerun, create};
use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use super::engine::{Engine, RETENTION_CALL, decode, methods, new_id, now, plain};
use super::store::Loaded;
use super::watching::Watchers;
use crate::actors::{ActorCall, InternalActors, Watched};

/// Instances that stay in memory between their turns, at most. Others are read anew.
const MAX_KEPT: usize = 4096;

/// What is known of an instance between its turns.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) loaded: Option<Loaded>,
    /// Activities that were started and have not answered, as far as this sidecar knows.
    pub(super) awaited: HashSet<i32>,
    /// It cannot go on before it is hosted anew.
    pub(super) is_stalled: bool,
}

/// All instances that live here.
pub(super) struct Instances {
    pub(super) engine: Arc<Engine>,
    /// Only who has the turn of an instance takes its slot out.
    slots: Mutex<HashMap<String, Slot>>,
    watchers: Arc<Watchers>,
}

/// An instance in its turn. What is not put back is read anew: a turn that is cut off leaves nothing half done.
pub(super) struct Held<'a> {
    pub(super) all: &'a Instances,
    pub(super) id: &'a str,
    pub(super) slot: Slot,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let slot = std::mem::take(&mut self.slot);
        self.all.locked().insert(self.id.to_owned(), slot);
    }
}

impl Instances {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            slots: Mutex::default(),
            watchers: Arc::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hold<'a>(&'a self, id: &'a str) -> Held<'a> {
        let slot = self.locked().remove(id).unwrap_or_default();
        Held { all: self, id, slot }
    }
}

impl Held<'_> {
    /// Takes the instance, from memory or from the store. It is to be given back with [`Held::keep`].
    pub(super) async fn take(&mut self) -> Result<Option<Loaded>, Status> {
        match self.slot.loaded.take() {
            Some(loaded) => Ok(Some(loaded)),
            None => self.all.engine.load(self.id).await,
        }
    }

    pub(super) fn keep(&mut self, loaded: Loaded) {
        self.slot.loaded = Some(loaded);
    }

    /// Stores a change, keeps the instance, and tells who watches it.
    pub(super) async fn save(&mut self, mut loaded: Loaded, change: Change) -> Result<(), Status> {
        if !change.is_empty() {
            self.all.engine.save(&mut loaded, change).await?;
        }
        self.all.watchers.tell(self.id, || loaded.instance.metadata());
        self.keep(loaded);
        Ok(())
    }

    fn check_stalled(&self) -> Result<(), Status> {
        if self.slot.is_stalled {
            return Err(Status::failed_precondition("workflow is stalled"));
        }
        Ok(())
    }

    async fn create(&mut self, body: &Bytes) -> Result<(), Status> {
        let mut request: CreateWorkflowInstanceRequest =
            decode("the request to create a workflow", body.clone())?;
        let mut loaded = self.take().await?.unwrap_or_else(|| Loaded::new(self.id));
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
        if creation == Creation::Replace {
            engine.forget_instance(self.id, false).await?;
        }
        let name = names::start_reminder(random());
        let due = create::due(&start);
        engine
            .remind(&engine.types.workflow, self.id, &name, due, None)
            .await?;
        self.slot.awaited.clear();
        self.slot.is_stalled = false;
        let change = loaded.instance.start(start);
        self.save(loaded, change).await
    }

    async fn add_event(&mut self, body: &[u8]) -> Result<(), Status> {
        let event: HistoryEvent = decode("the event", body)?;
        let mut loaded = self
            .take()
            .await?
            .ok_or_else(|| Status::not_found(AddError::Unknown.to_string()))?;
        if let Some((outrigger_workflow::event::Awaited::Task, task)) =
            outrigger_workflow::event::ends(&event)
        {
            self.slot.awaited.remove(&task);
        }
        let instance = &loaded.instance;
        let checked = instance.check(&event);
        // Who has ended takes nothing in any more.
        let is_idle = instance.is_completed() || checked == Ok(Added::Foreign);
        if is_idle || checked.is_err() {
            self.keep(loaded);
            return checked.map(|_| ()).map_err(|error| match error {
                AddError::Unknown => Status::not_found(error.to_string()),
                AddError::Stalled => Status::failed_precondition(error.to_string()),
            });
        }
        let engine = Arc::clone(&self.all.engine);
        let due = instance.first_at().or(event.timestamp);
        let name = names::event_reminder(&event);
        engine
            .remind(&engine.types.workflow, self.id, &name, due, None)
            .await?;
        let change = match checked {
            Ok(Added::New) => loaded.instance.push(event),
            _ => Change::default(),
        };
        self.save(loaded, change).await
    }

    async fn purge(&mut self, by_retention: bool) -> Result<(), Status> {
        let loaded = self.take().await?;
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
        let Some(loaded) = loaded else { return Ok(()) };
        let engine = Arc::clone(&self.all.engine);
        engine.remove(&loaded).await?;
        self.slot = Slot::default();
        engine.forget_instance(self.id, !by_retention).await
    }

    async fn fork(&mut self, body: &Bytes) -> Result<(), Status> {
        let request: RerunWorkflowFromEventRequest = decode("the request to rerun a workflow", body.clone())?;
        let loaded = self.take().await?;
        let none = || RerunError::NoSource(self.id.to_owned());
        let forked = loaded
            .as_ref()
            .ok_or_else(none)
            .and_then(|loaded| loaded.instance.fork(&request));
        if let Some(loaded) = loaded {
            self.keep(loaded);
        }
        let state = forked.map_err(|error| rerun_status(&error))?;
        let engine = &self.all.engine;
        let target = request.new_instance_id.unwrap_or_default();
        let body = state.encode_to_vec().into();
        let kind = engine.types.workflow.clone();
        let sent = engine.call(&kind, &target, methods::RERUN, http::HeaderMap::new(), body);
        sent.await.map_err(|error| match error.said() {
            Some((code, text)) => Status::new(code, text),
            None => plain(error),
        })
    }

    async fn rerun(&mut self, body: &Bytes) -> Result<(), Status> {
        let state: WorkflowState = decode("the state of the workflow to rerun", body.clone())?;
        if let Some(loaded) = self.take().await? {
            self.keep(loaded);
            return Err(rerun_status(&RerunError::TargetExists(self.id.to_owned())));
        }
        let engine = Arc::clone(&self.all.engine);
        let app = &engine.app_id;
        let made = Instance::from_fork(self.id, state, app, now(), &mut new_id);
        let (instance, change, rerun) = made.map_err(|error| rerun_status(&error))?;
        let (generation, due) = (instance.generation, instance.first_at());
        self.save(Loaded::made(instance), change).await?;
        let Rerun {
            tasks,
            timers,
            children,
        } = rerun;
        self.slot.awaited.extend(tasks.iter().map(|task| task.event_id));
        engine.send(self.id, &children).await.into_result()?;
        engine
            .start(self.id, generation, due, &tasks)
            .await
            .into_result()?;
        engine.set_timers(self.id, generation, &timers).await
    }
}

impl Engine {
    /// Removes the reminders of an instance and its activities; `with_retention`: that of its purge too.
    pub(super) async fn forget_instance(&self, id: &str, with_retention: bool) -> Result<(), Status> {
        let types = &self.types;
        let activities = names::activity_prefix(id);
        tokio::try_join!(
            self.forget_all(&types.workflow, id, false),
            self.forget_all(&types.activity, &activities, true),
            async {
                match with_retention {
                    true => self.forget_all(&types.retentioner, id, false).await,
                    false => Ok(()),
                }
            }
        )?;
        Ok(())
    }
}

#[async_trait]
impl InternalActors for Instances {
    async fn invoke(&self, call: &ActorCall) -> Result<Bytes, Status> {
        let mut held = self.hold(&call.id);
        match call.method.as_str() {
            methods::CREATE => held.create(&call.body).await?,
            methods::ADD_EVENT => {
                held.check_stalled()?;
                held.add_event(&call.body).await?;
            }
            methods::PURGE => {
                held.check_stalled()?;
                let of_retention = call.metadata.get(RETENTION_CALL);
                held.purge(of_retention.is_some_and(|value| value == "true"))
                    .await?;
            }
            methods::FORK => held.fork(&call.body).await?,
            methods::RERUN => held.rerun(&call.body).await?,
            other => return Err(Status::unimplemented(format!("no such method: {other}"))),
        }
        Ok(Bytes::new())
    }

    async fn remind(&self, id: &str, name: &str, data: Option<&Any>) -> Result<(), Status> {
        let mut held = self.hold(id);
        held.check_stalled()?;
        let fired = match names::purpose(name) {
            Some(Purpose::Run) => None,
            Some(Purpose::Timer) => {
                let data = data.map_or(&[][..], |data| &data.value);
                Some(decode::<DurableTimer>("the data of the timer", data)?)
            }
            Some(Purpose::ActivityResult) => {
                return held.add_event(data.map_or(&[][..], |data| &data.value)).await;
            }
            None => {
                return Err(Status::invalid_argument(format!(
                    "unable to handle reminder '{name}' for workflow actor '{id}': unknown reminder type"
                )));
            }
        };
        held.run(fired).await
    }

    async fn watch(&self, call: &ActorCall) -> Result<Watched, Status> {
        if call.method != methods::WATCH {
            return Err(Status::unimplemented(format!(
                "unsupported stream method: {}",
                call.method
            )));
        }
        let mut held = self.hold(&call.id);
        let loaded = held.take().await?;
        let now = loaded.as_ref().map(|loaded| loaded.instance.metadata());
        if let Some(loaded) = loaded {
            held.keep(loaded);
        }
        Ok(self.watchers.watch(&call.id, now))
    }

    async fn halt(&self, id: &str) {
        self.locked().remove(id);
        self.watchers.end(id);
    }

    fn is_kept(&self, id: &str) -> bool {
        let mut slots = self.locked();
        let room = slots.len() <= MAX_KEPT;
        let kept = slots.get(id).is_some_and(|slot| {
            let active = slot
                .loaded
                .as_ref()
                .is_some_and(|loaded| !loaded.instance.is_completed());
            slot.is_stalled || !slot.awaited.is_empty() || (active && room)
        });
        if !kept {
            slots.remove(id);
        }
        kept
    }
}

fn rerun_status(error: &RerunError) -> Status {
    let code = match error {
        RerunError::NoSource(_) | RerunError::NoEvent(_) | RerunError::NotScheduled(..) => Code::NotFound,
        RerunError::TargetExists(_) => Code::AlreadyExists,
        _ => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}

/// A part of a name that tells reminders of one purpose apart.
pub(super) fn random() -> [u8; 6] {
    rand::random()
}
