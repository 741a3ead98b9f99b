//! Virtual actors: hosting, calls, state, timers, reminders and deactivation. `outrigger_actors` makes the
//! decisions; this module performs the I/O.

mod admission;
mod app;
mod call;
mod durable;
mod error;
mod host;
pub mod internal;
mod lifecycle;
mod metrics;
mod old_reminders;
mod outage;
mod placement;
mod reminders;
mod remote;
mod replicas;
mod serve;
mod spans;
mod state;
mod store;
mod streams;
mod timers;
mod type_admission;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::HeaderName;
use outrigger_actors::routes::Routes;
use outrigger_actors::settings::{Settings, TypeSettings};
use outrigger_blocks::state::State;
use outrigger_policy::path::validate_name;
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::components::Components;
use outrigger_runtime::resilience::Resilience;
use outrigger_runtime::scheduler::Scheduler;
use outrigger_telemetry::trace::Tracer;
use outrigger_transport::peer::Peers;
use outrigger_wire::runtime::v1 as proto;
use outrigger_workflow::names::is_executor;
use tokio::sync::watch as channel;
use tokio_util::sync::CancellationToken;

pub use call::{ActorCall, Caller};
pub use error::ActorError;
pub use internal::{InternalActors, QueuedCall, Update, Watched};
pub use placement::Placement;
pub use reminders::{KnownReminder, ReminderCause, ReminderError, ReminderRequest};
pub use serve::Served;
pub use state::{StateOperation, StateStep};
pub use streams::HostStream;
pub use timers::TimerRequest;
pub use watch::ActorStream;

use admission::Admission;
use host::{Hosted, HostedType, IdleScan, Types};
use metrics::ActorMetrics;
use streams::AppStreams;
use timers::Timers;

use crate::workflow::access::WorkflowAccess;

const LOG: &str = "dapr.runtime.actor";

/// Maximum length of an actor type or id, and of a reminder or timer name, bytes: an active actor's are kept
/// in memory. The scheduler's limit for reminders is lower.
const MAX_NAME: usize = 1024;

/// Reentrancy id, shared by the calls of a turn.
pub const REENTRANCY_ID: HeaderName = HeaderName::from_static("dapr-reentrancy-id");
/// Marks a call that came through the API of a sidecar.
pub const API_CALL: HeaderName = HeaderName::from_static("dapr-api-call");
/// Names the app whose reminder a call passes on. It only takes rights away from a call.
pub(crate) const HANDED_BY: HeaderName = HeaderName::from_static("outrigger-handed-by");
/// Marks a call from another sidecar.
const REMOTE: HeaderName = HeaderName::from_static("x-dapr-remote");
/// Set in an actor's reply to cancel a reminder or timer.
const CANCEL: HeaderName = HeaderName::from_static("x-daprremindercancel");

/// The dependencies of [`Actors`].
pub struct Dependencies {
    /// The app's id, as placement and the scheduler know it.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Address of this sidecar's internal server, `host:port`.
    pub address: String,
    /// Whether a placement service is configured.
    pub placement: bool,
    /// Whether actors are handed over, if placement and all other sidecars support it.
    pub handover: bool,
    /// Maximum time between the orders `lock` and `update` of placement.
    pub disseminate_timeout: Duration,
    /// Whether a required namespace is missing.
    pub namespace_missing: bool,
    /// The app; `None` without an app port.
    pub app: Option<Arc<AppChannel>>,
    /// The other sidecars.
    pub peers: Arc<Peers>,
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// The state stores.
    pub state: Arc<State>,
    /// Names the actor state store.
    pub components: Arc<Components>,
    /// Stores reminders.
    pub scheduler: Arc<Scheduler>,
    /// Decides about calls of other apps to workflows.
    pub workflow_access: Arc<WorkflowAccess>,
    /// Starts spans of due timers and reminders.
    pub tracer: Tracer,
    /// Whether state may have a TTL.
    pub state_ttl: bool,
    /// Maximum message of a peer and maximum response of an app, bytes.
    pub max_message: usize,
}

/// The actors of this app, and routing to those of others.
pub struct Actors {
    with: Dependencies,
    metrics: ActorMetrics,
    admission: Admission,
    routes: ArcSwap<Routes>,
    /// The same, for calls that wait for the next step of a dissemination.
    steps: channel::Sender<Arc<Routes>>,
    /// The source of `hosted`.
    known_types: Mutex<Types>,
    hosted: ArcSwap<Hosted>,
    /// Whether the app's actor types are known.
    app_known: channel::Sender<bool>,
    /// Names of the hosted types; `None` before the first report.
    types: channel::Sender<Option<Arc<[String]>>>,
    /// The types that the current placement table lists.
    announced: channel::Sender<Arc<[String]>>,
    idle_scan: Arc<IdleScan>,
    is_connected: AtomicBool,
    timers: Timers,
    streams: AppStreams,
    ended: CancellationToken,
}

impl Actors {
    /// Actors without types, not yet reported to placement.
    pub fn new(with: Dependencies) -> Self {
        let metrics = ActorMetrics::new(&with.resilience.metrics.all().registry);
        let routes = Arc::new(Routes::new(&with.address));
        Self {
            metrics,
            admission: Admission::new(),
            routes: ArcSwap::new(Arc::clone(&routes)),
            steps: channel::Sender::new(routes),
            known_types: Mutex::default(),
            hosted: ArcSwap::default(),
            app_known: channel::Sender::new(false),
            types: channel::Sender::new(None),
            announced: channel::Sender::default(),
            idle_scan: Arc::default(),
            is_connected: AtomicBool::new(false),
            timers: Timers::default(),
            streams: AppStreams::default(),
            ended: CancellationToken::new(),
            with,
        }
    }

    /// Checks whether this sidecar can use actors.
    fn check_possible(&self) -> Result<(), ActorError> {
        if !self.with.placement {
            return Err(ActorError::NoPlacement);
        }
        if self.with.namespace_missing {
            return Err(ActorError::NoNamespace);
        }
        if self.ended.is_cancelled() {
            return Err(ActorError::Ended);
        }
        Ok(())
    }

    /// Checks whether actors can be called and have a state store.
    ///
    /// # Errors
    /// [`ActorError`] if not.
    pub fn check_available(&self) -> Result<(), ActorError> {
        self.check_possible()?;
        self.store(ActorError::StateSave).map(|_| ())
    }

    /// Waits until it is known whether the app hosts a type.
    async fn known(&self, kind: &str) -> Result<Arc<Hosted>, ActorError> {
        self.check_possible()?;
        if !internal::is_reserved(kind) && !*self.app_known.borrow() {
            let mut known = self.app_known.subscribe();
            tokio::select! {
                _known = known.wait_for(|known| *known) => {}
                () = self.ended.cancelled() => return Err(ActorError::Ended),
            }
        }
        Ok(self.hosted.load_full())
    }

    /// Publishes the routes of a dissemination step.
    fn step(&self, routes: Routes) {
        let routes = Arc::new(routes);
        self.routes.store(Arc::clone(&routes));
        self.steps.send_replace(routes);
    }

    /// Changes the hosted types.
    fn change_types<T>(&self, change: impl FnOnce(&mut Types) -> T) -> T {
        let mut known = self.known_types.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut known);
        let hosted = Hosted::new(&known);
        let is_told = known.app.is_some() || !known.streamed.is_empty() || !known.internal.is_empty();
        let names = is_told.then(|| Arc::clone(&hosted.names));
        self.hosted.store(Arc::new(hosted));
        self.types.send_replace(names);
        changed
    }

    fn hosted_type(&self, name: &str, settings: TypeSettings) -> HostedType {
        let name: Arc<str> = name.into();
        let (metrics, admission) = (self.metrics.of(&name), self.admission.of_type(&name));
        HostedType::new(name, settings, metrics, admission, &self.idle_scan)
    }

    /// Registers the app's actor types, besides those of its streams.
    pub fn register(&self, settings: &Settings) {
        let mut settings = settings.clone();
        self.announce_settings(&mut settings);
        let make = |(name, settings): (&String, &_)| Arc::new(self.hosted_type(name, *settings));
        let types = settings.types.iter().map(make).collect();
        self.change_types(|known| {
            known.drain = settings.drain;
            known.app = Some(types);
            known.is_unhealthy = false;
            // None ends.
            let _none = self.restream(known);
        });
        self.app_known.send_replace(true);
        if !settings.types.is_empty() {
            self.log_dormant();
        }
    }

    /// Deactivates the app's actors and unregisters its types, because the app cannot be called any longer.
    pub async fn unregister(&self) {
        tracing::info!(target: LOG, "Unregistering hosted actors");
        let going = self.change_types(|known| {
            let mut going = known.app.replace(Vec::new()).unwrap_or_default();
            known.retire(&going);
            known.is_unhealthy = true;
            going.extend(self.restream(known));
            going
        });
        self.app_known.send_replace(true);
        self.end_types(going).await;
    }

    /// Ends the actors of unregistered types. The types stay known until then, so that a table which reassigns
    /// them is not acknowledged earlier.
    async fn end_types(&self, mut going: Vec<Arc<HostedType>>) {
        while !going.is_empty() {
            self.end_within(&going, |_, _| true).await;
            going = self.change_types(|known| {
                known.forget(&going);
                self.restream(known)
            });
        }
    }

    /// Starts receiving due reminders.
    pub fn take_reminders(self: &Arc<Self>) {
        let due = Arc::new(reminders::ReminderReceiver(Arc::downgrade(self)));
        self.with.scheduler.deliver_reminders_to(due);
        if self.with.scheduler.is_configured() {
            tracing::info!(target: LOG, "Using Scheduler service for reminders.");
        }
    }

    /// The actor part of the metadata API.
    pub fn status(&self) -> proto::ActorRuntime {
        use proto::actor_runtime::ActorRuntimeStatus as Status;
        const DISCONNECTED: &str = "placement: disconnected";
        if !self.with.placement {
            return proto::ActorRuntime {
                runtime_status: Status::Disabled.into(),
                placement: DISCONNECTED.to_owned(),
                ..proto::ActorRuntime::default()
            };
        }
        if !*self.app_known.borrow() {
            return proto::ActorRuntime {
                runtime_status: Status::Initializing.into(),
                ..proto::ActorRuntime::default()
            };
        }
        let hosted = self.hosted.load_full();
        let connected = self.is_connected.load(Ordering::Acquire);
        let count = |kind: &Arc<host::HostedType>| proto::ActiveActorsCount {
            r#type: kind.name.to_string(),
            count: i32::try_from(kind.count()).unwrap_or(i32::MAX),
        };
        proto::ActorRuntime {
            runtime_status: Status::Running.into(),
            active_actors: hosted.types().map(count).collect(),
            host_ready: connected,
            placement: if connected {
                "placement: connected"
            } else {
                DISCONNECTED
            }
            .to_owned(),
        }
    }
}

/// Validates an actor that an app addresses.
fn check_for_app(kind: &str, id: &str) -> Result<(), ActorError> {
    if internal::is_reserved(kind) {
        return Err(ActorError::Reserved(kind.to_owned()));
    }
    check(kind, id)
}

/// Validates an actor's type and id, which become parts of a path. Executor ids, which are in no path, may
/// consist of two parts.
fn check(kind: &str, id: &str) -> Result<(), ActorError> {
    check_name("actorType", kind)?;
    let (id, task) = match is_executor(kind) {
        true => id.rsplit_once('/').unwrap_or((id, "")),
        false => (id, ""),
    };
    check_name("actorId", id)?;
    check_name("actorId", task)
}

fn check_name(what: &str, name: &str) -> Result<(), ActorError> {
    if name.len() > MAX_NAME {
        let length = name.len();
        return Err(ActorError::Illegal(format!(
            "invalid {what}: {length} bytes, the maximum is {MAX_NAME}"
        )));
    }
    validate_name(name).map_err(|error| ActorError::Illegal(format!("invalid {what}: {error}")))
}

#[cfg(test)]
mod tests;
