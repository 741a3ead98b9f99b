//! The schedulers of the control plane: where jobs and reminders are kept, and what tells that they are due.
//!
//! One [`Scheduler`] knows all schedulers there are (`hosts`), spreads calls over them, and keeps streams of triggers
//! open to each (`streams`) while somebody takes triggers: the jobs block while the app is well, the actors block while
//! it hosts actors.

mod calls;
mod hosts;
mod streams;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;
use outrigger_accept::budget::Payloads;
use outrigger_identity::{Identity, SpiffeId};
use outrigger_wire::scheduler::v1::job_target_metadata::Type;
use outrigger_wire::scheduler::v1::{
    JobMetadata, JobTargetMetadata, TargetActorReminder, TargetJob, WatchJobsRequestResultStatus,
};
use prost_types::Any;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::life::Condition;
use hosts::Host;

pub use calls::{SchedulerError, WITHOUT};

const LOG: &str = "dapr.runtime.scheduler";
/// The app id of schedulers in the control plane.
pub const APP_ID: &str = "dapr-scheduler";

/// The part of the memory budget for the payloads of triggers that are being handled, one in so many.
const PAYLOADS_PART: usize = 2;

/// What a [`Scheduler`] is made of.
pub struct Settings {
    /// The app beside this sidecar.
    pub app_id: Arc<str>,
    /// Namespace of the app.
    pub namespace: Arc<str>,
    /// `host:port` of schedulers; none: there is nobody to ask.
    pub addresses: Vec<String>,
    /// Streams of triggers per scheduler; at least 1.
    pub streams: u32,
    /// Who we are, and who a scheduler has to prove to be; none: in clear text.
    pub identity: Option<(Identity, SpiffeId)>,
    /// Longest message of the APIs, bytes.
    pub max_message: usize,
}

/// Whether the app may have seen what is due: cut off then, it would go on beside whatever comes next.
#[derive(Clone, Debug, Default)]
pub struct DeliveryStarted(Arc<AtomicBool>);

impl DeliveryStarted {
    /// The app is called next.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was called, or may have been.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A job or a reminder that is due.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Name of the job or reminder, unique for its app or actor.
    pub name: String,
    /// The data of the job, as it was scheduled.
    pub data: Option<Any>,
    /// The actor whose reminder it is; none: a job of the app.
    pub actor: Option<TargetActorReminder>,
    /// Set by who takes it.
    pub begun: DeliveryStarted,
}

/// What came of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The tick is done.
    Success,
    /// The tick failed: its failure policy decides.
    Failed,
    /// Nothing was tried: it goes to another sidecar, or comes again. This ends the stream it came on.
    Undelivered,
}

impl Outcome {
    /// As the scheduler is told; it hears of what was not delivered by the end of the stream.
    fn status(self) -> Option<WatchJobsRequestResultStatus> {
        match self {
            Self::Success => Some(WatchJobsRequestResultStatus::Success),
            Self::Failed => Some(WatchJobsRequestResultStatus::Failed),
            Self::Undelivered => None,
        }
    }
}

/// Takes what is due.
pub trait Receiver: Send + Sync {
    /// Handles one trigger; others come meanwhile.
    fn receive(&self, trigger: Trigger) -> BoxFuture<'_, Outcome>;
}

/// What triggers are taken now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Accepts {
    jobs: bool,
    /// Sorted.
    actor_types: Vec<String>,
}

impl Accepts {
    fn is_nothing(&self) -> bool {
        !self.jobs && self.actor_types.is_empty()
    }
}

type Hosts = Arc<[Arc<Host>]>;

/// The client of all schedulers: calls go to one of them, triggers come from each.
pub struct Scheduler {
    settings: Settings,
    /// All there are; none: nobody has told yet.
    hosts: watch::Sender<Option<Hosts>>,
    /// Whose turn it is.
    turn: AtomicUsize,
    accepts: watch::Sender<Accepts>,
    jobs: OnceLock<Arc<dyn Receiver>>,
    reminders: OnceLock<Arc<dyn Receiver>>,
    /// The streams of triggers, and what goes on when they have ended.
    tasks: TaskTracker,
    /// The triggers that go on without their streams.
    detached: watch::Sender<HashSet<String>>,
    /// What triggers hold that are being handled.
    payloads: Arc<Payloads>,
    /// No triggers are taken any more.
    ending: CancellationToken,
}

impl Scheduler {
    /// Nothing is dialled before [`Scheduler::follow_hosts`].
    pub fn new(settings: Settings) -> Arc<Self> {
        Self::within(settings, Payloads::part(PAYLOADS_PART))
    }

    fn within(settings: Settings, payloads: Arc<Payloads>) -> Arc<Self> {
        Arc::new(Self {
            settings,
            hosts: watch::Sender::new(None),
            turn: AtomicUsize::new(0),
            accepts: watch::Sender::default(),
            jobs: OnceLock::new(),
            reminders: OnceLock::new(),
            tasks: TaskTracker::new(),
            detached: watch::Sender::default(),
            payloads,
            ending: CancellationToken::new(),
        })
    }

    /// The app whose jobs these are.
    pub fn app_id(&self) -> &str {
        &self.settings.app_id
    }

    /// Namespace of the app that this sidecar serves.
    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// Whether there are schedulers at all.
    pub fn is_configured(&self) -> bool {
        !self.settings.addresses.is_empty()
    }

    /// The schedulers that are known, `host:port` each.
    pub fn addresses(&self) -> Vec<String> {
        let hosts = self.hosts.borrow();
        let hosts = hosts.iter().flat_map(|hosts| hosts.iter());
        hosts.map(|host| host.address().to_owned()).collect()
    }

    /// The metadata that names the jobs of this app.
    pub fn of_app(&self) -> JobMetadata {
        self.metadata(Type::Job(TargetJob {}))
    }

    /// Whose reminders: an actor's. An empty id stands for all actors of the type where calls take several.
    pub fn of_actor(&self, actor_type: &str, id: &str) -> JobMetadata {
        self.metadata(Type::Actor(TargetActorReminder {
            id: id.to_owned(),
            r#type: actor_type.to_owned(),
        }))
    }

    fn metadata(&self, target: Type) -> JobMetadata {
        JobMetadata {
            app_id: self.settings.app_id.to_string(),
            namespace: self.settings.namespace.to_string(),
            target: Some(JobTargetMetadata { r#type: Some(target) }),
        }
    }

    /// Who handles jobs of the app, for good; they come while [`Scheduler::take_jobs`] says so.
    pub fn deliver_jobs_to(&self, receiver: Arc<dyn Receiver>) {
        // The first stays: there is one block of each kind.
        let _first = self.jobs.set(receiver);
    }

    /// Who handles reminders, for good; they come for the types that [`Scheduler::take_reminders_of`] names.
    pub fn deliver_reminders_to(&self, receiver: Arc<dyn Receiver>) {
        let _first = self.reminders.set(receiver);
    }

    /// Whether the app takes jobs. A change opens the streams anew.
    pub fn take_jobs(&self, take: bool) {
        self.accept(|accepts| accepts.jobs = take);
    }

    /// The types of actors that are hosted here now; none: no reminders come. A change opens the streams anew.
    pub fn take_reminders_of(&self, mut actor_types: Vec<String>) {
        actor_types.sort_unstable();
        actor_types.dedup();
        self.accept(|accepts| accepts.actor_types = actor_types);
    }

    fn accept(&self, change: impl FnOnce(&mut Accepts)) {
        self.accepts.send_if_modified(|accepts| {
            let before = accepts.clone();
            change(accepts);
            *accepts != before
        });
    }

    /// Keeps the list of schedulers, until `stop`; `known` is met when there is one, or nobody to ask.
    pub async fn follow_hosts(self: Arc<Self>, known: Condition, stop: CancellationToken) {
        if !self.is_configured() {
            tracing::info!(target: LOG, "No scheduler host addresses provided. Scheduler disabled: {WITHOUT}");
            known.met();
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = hosts::follow(&self, &known) => {}
        }
    }

    /// Keeps the streams of triggers, until [`Scheduler::end_triggers`].
    pub fn begin_triggers(self: &Arc<Self>) {
        if self.is_configured() {
            self.tasks.spawn(streams::keep(Arc::clone(self)));
        }
    }

    /// Takes no more triggers, for good.
    pub fn end_triggers(&self) {
        self.ending.cancel();
        self.tasks.close();
    }

    /// Waits until all triggers that were taken are answered, after [`Scheduler::end_triggers`].
    pub async fn triggers_ended(&self) {
        self.tasks.wait().await;
    }
}
