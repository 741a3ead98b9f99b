//! The client of the schedulers, which store jobs and reminders and trigger them when due.
//!
//! A [`Scheduler`] knows all schedulers (`hosts`) and spreads calls over them. It keeps trigger streams
//! (`streams`) to each while there is a receiver: the jobs block while the app is healthy, the actors block
//! while it hosts actors.

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
    ConcurrencyLimit, JobMetadata, JobTargetMetadata, TargetActorReminder, TargetJob,
    WatchJobsRequestResultStatus,
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

/// Divisor of the memory budget: the share for payloads of triggers in flight.
const PAYLOADS_PART: usize = 2;

/// Settings of a [`Scheduler`].
pub struct Settings {
    /// The local app.
    pub app_id: Arc<str>,
    /// Namespace of the app.
    pub namespace: Arc<str>,
    /// `host:port` of schedulers; if empty, there is none.
    pub addresses: Vec<String>,
    /// Trigger streams to each scheduler; at least 1.
    pub streams: u32,
    /// Our identity and the expected identity of schedulers; without, connections are plain text.
    pub identity: Option<(Identity, SpiffeId)>,
    /// Longest message of the APIs, bytes.
    pub max_message: usize,
    /// Limits on triggers in flight, over all sidecars of the app.
    pub limits: Vec<ConcurrencyLimit>,
}

/// Whether the app may have received a trigger. If so, aborting the delivery does not stop the app.
#[derive(Clone, Debug, Default)]
pub struct DeliveryStarted(Arc<AtomicBool>);

impl DeliveryStarted {
    /// Marks the delivery as started; call before calling the app.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the app may have been called.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A due job or reminder.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Name of the job or reminder, unique for its app or actor.
    pub name: String,
    /// The data of the scheduled job.
    pub data: Option<Any>,
    /// The app that scheduled it, as the scheduler has verified; empty if unknown.
    pub creator: String,
    /// The actor of a reminder; `None` for a job.
    pub actor: Option<TargetActorReminder>,
    /// Set by the receiver.
    pub begun: DeliveryStarted,
}

/// The result of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The trigger was handled.
    Success,
    /// The trigger failed: its failure policy applies.
    Failed,
    /// The trigger was not attempted: it goes to another sidecar or is redelivered. This ends its stream.
    Undelivered,
}

impl Outcome {
    /// The status for the scheduler. Undelivered triggers have none; the end of the stream reports them.
    fn status(self) -> Option<WatchJobsRequestResultStatus> {
        match self {
            Self::Success => Some(WatchJobsRequestResultStatus::Success),
            Self::Failed => Some(WatchJobsRequestResultStatus::Failed),
            Self::Undelivered => None,
        }
    }
}

/// A handler of triggers.
pub trait Receiver: Send + Sync {
    /// Handles one trigger, concurrently with others.
    fn receive(&self, trigger: Trigger) -> BoxFuture<'_, Outcome>;
}

/// The triggers accepted now.
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

/// The client of all schedulers: a call goes to one of them, triggers come from each.
pub struct Scheduler {
    settings: Settings,
    /// All schedulers; `None` until the list is known.
    hosts: watch::Sender<Option<Hosts>>,
    /// Round-robin counter.
    turn: AtomicUsize,
    accepts: watch::Sender<Accepts>,
    jobs: OnceLock<Arc<dyn Receiver>>,
    reminders: OnceLock<Arc<dyn Receiver>>,
    /// The trigger streams, and triggers that outlive them.
    tasks: TaskTracker,
    /// Keys of the triggers that outlived their streams.
    detached: watch::Sender<HashSet<String>>,
    /// Memory of the payloads in flight.
    payloads: Arc<Payloads>,
    /// Cancelled to stop accepting triggers.
    ending: CancellationToken,
}

impl Scheduler {
    /// Dials nothing before [`Scheduler::follow_hosts`].
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

    /// The app that owns the jobs.
    pub fn app_id(&self) -> &str {
        &self.settings.app_id
    }

    /// Namespace of the app that this sidecar serves.
    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// Whether schedulers are configured.
    pub fn is_configured(&self) -> bool {
        !self.settings.addresses.is_empty()
    }

    /// The known schedulers, `host:port` each.
    pub fn addresses(&self) -> Vec<String> {
        let hosts = self.hosts.borrow();
        let hosts = hosts.iter().flat_map(|hosts| hosts.iter());
        hosts.map(|host| host.address().to_owned()).collect()
    }

    /// The metadata of this app's jobs.
    pub fn of_app(&self) -> JobMetadata {
        self.metadata(Type::Job(TargetJob {}))
    }

    /// The metadata of an actor's reminders. In calls for several, an empty id means all actors of the type.
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
            concurrency_key: None,
        }
    }

    /// Sets the receiver of jobs, once. They arrive while [`Scheduler::take_jobs`] is enabled.
    pub fn deliver_jobs_to(&self, receiver: Arc<dyn Receiver>) {
        // Later calls are ignored: there is one block of each kind.
        let _first = self.jobs.set(receiver);
    }

    /// Sets the receiver of reminders, once. They arrive for the types in [`Scheduler::take_reminders_of`].
    pub fn deliver_reminders_to(&self, receiver: Arc<dyn Receiver>) {
        let _first = self.reminders.set(receiver);
    }

    /// Whether the app accepts jobs. A change reopens the streams.
    pub fn take_jobs(&self, take: bool) {
        self.accept(|accepts| accepts.jobs = take);
    }

    /// Sets the actor types hosted here; if empty, no reminders arrive. A change reopens the streams.
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

    /// Keeps the list of schedulers up to date until `stop`; `known` is met once there is a list, or no
    /// scheduler.
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

    /// Keeps the trigger streams open until [`Scheduler::end_triggers`].
    pub fn begin_triggers(self: &Arc<Self>) {
        if self.is_configured() {
            self.tasks.spawn(streams::keep(Arc::clone(self)));
        }
    }

    /// Stops accepting triggers permanently.
    pub fn end_triggers(&self) {
        self.ending.cancel();
        self.tasks.close();
    }

    /// Waits until all accepted triggers are acknowledged, after [`Scheduler::end_triggers`].
    pub async fn triggers_ended(&self) {
        self.tasks.wait().await;
    }
}
