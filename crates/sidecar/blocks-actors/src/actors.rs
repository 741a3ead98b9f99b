//! Virtual actors: which sidecar hosts one, whose turn it is, its state, its timers, its end. The decisions are those of
//! `outrigger_actors`; this carries them out.

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
mod timers;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use http::header::HeaderName;
use outrigger_actors::routes::Routes;
use outrigger_actors::settings::Settings;
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

pub use call::ActorCall;
pub use error::ActorError;
pub use internal::{InternalActors, QueuedCall, Watched};
pub use placement::Placement;
pub use reminders::{KnownReminder, ReminderCause, ReminderError, ReminderRequest};
pub use serve::Served;
pub use state::{StateOperation, StateStep};
pub use timers::TimerRequest;
pub use watch::ActorStream;

use admission::Admission;
use host::{Hosted, HostedType, IdleScan, Types};
use metrics::ActorMetrics;
use timers::Timers;

const LOG: &str = "dapr.runtime.actor";

/// Bytes of a type, an id, and a name of a reminder or a timer: an actor's are kept as long as it is active. Those of an actor
/// that has reminders are shorter still, for the scheduler.
const MAX_NAME: usize = 1024;

/// The id that the calls of a turn share.
pub const REENTRANCY_ID: HeaderName = HeaderName::from_static("dapr-reentrancy-id");
/// Says that a call came through an API of a sidecar.
pub const API_CALL: HeaderName = HeaderName::from_static("dapr-api-call");
/// Says that a call came from another sidecar.
const REMOTE: HeaderName = HeaderName::from_static("x-dapr-remote");
/// An actor wants no more of a reminder or timer.
const CANCEL: HeaderName = HeaderName::from_static("x-daprremindercancel");

/// What actors are built from.
pub struct Dependencies {
    /// The app that hosts, as placement and the scheduler know it.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Where other sidecars reach this one, `host:port`.
    pub address: String,
    /// Whether there is a placement service.
    pub placement: bool,
    /// Whether actors are handed over to their new hosts, where placement and all other sidecars do so.
    pub handover: bool,
    /// Whether a namespace is missing that has to be there.
    pub namespace_missing: bool,
    /// The app beside us; `None` without app port.
    pub app: Option<Arc<AppChannel>>,
    /// The other sidecars.
    pub peers: Arc<Peers>,
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// State stores.
    pub state: Arc<State>,
    /// Knows which of them is that of actors.
    pub components: Arc<Components>,
    /// Keeps reminders.
    pub scheduler: Arc<Scheduler>,
    /// Starts spans of timers and reminders that are due.
    pub tracer: Tracer,
    /// Whether state may have a time to live.
    pub state_ttl: bool,
    /// Largest message of a peer and largest answer of an app, bytes.
    pub max_message: usize,
}

/// The actors of this app, and the way to those of others.
pub struct Actors {
    with: Dependencies,
    metrics: ActorMetrics,
    admission: Admission,
    routes: ArcSwap<Routes>,
    /// The same, for who waits for the next step of a round.
    steps: channel::Sender<Arc<Routes>>,
    /// What is hosted now is made from these.
    known_types: Mutex<Types>,
    hosted: ArcSwap<Hosted>,
    /// Whether it is known what the app hosts.
    app_known: channel::Sender<bool>,
    /// Names of the hosted types; `None` until there is anything to tell.
    types: channel::Sender<Option<Arc<[String]>>>,
    /// What placement told all others.
    announced: channel::Sender<Arc<[String]>>,
    looks: Arc<IdleScan>,
    is_connected: AtomicBool,
    timers: Timers,
    store: OnceLock<String>,
    ended: CancellationToken,
}

impl Actors {
    /// Actors that nobody is told of yet.
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
            looks: Arc::default(),
            is_connected: AtomicBool::new(false),
            timers: Timers::default(),
            store: OnceLock::new(),
            ended: CancellationToken::new(),
            with,
        }
    }

    /// Whether there can be actors at all.
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

    /// Whether actors can be called, and have a store for their state.
    ///
    /// # Errors
    /// [`ActorError`]: why not.
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

    /// A step of a round: what calls go by from now on.
    fn step(&self, routes: Routes) {
        let routes = Arc::new(routes);
        self.routes.store(Arc::clone(&routes));
        self.steps.send_replace(routes);
    }

    /// Changes what is hosted here.
    fn change_types(&self, change: impl FnOnce(&mut Types)) {
        let mut known = self.known_types.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        let hosted = Hosted::new(&known);
        let is_told = known.app.is_some() || !known.internal.is_empty();
        let names = is_told.then(|| Arc::clone(&hosted.names));
        self.hosted.store(Arc::new(hosted));
        self.types.send_replace(names);
    }

    /// Says what the app hosts.
    pub fn register(&self, settings: &Settings) {
        for warning in &settings.warnings {
            tracing::warn!(target: LOG, "{warning}");
        }
        let mut names: Vec<_> = settings.types.keys().collect();
        names.sort_unstable();
        if !names.is_empty() {
            tracing::info!(target: LOG, "Registering hosted actors: {names:?}");
        }
        let of_app = settings.types.iter().filter(|(name, _)| {
            let reserved = internal::is_reserved(name);
            if reserved {
                tracing::warn!(
                    target: LOG,
                    "the app hosts the actor type {name}, which is reserved: it is ignored"
                );
            }
            !reserved
        });
        let make = |(name, settings): (&String, &_)| {
            Arc::new(HostedType::new(
                name,
                *settings,
                self.metrics.of(name),
                &self.looks,
            ))
        };
        let types = of_app.map(make).collect();
        self.change_types(|known| {
            known.drain = settings.drain;
            known.app = Some(types);
        });
        self.app_known.send_replace(true);
    }

    /// The app cannot be called any more: its actors end, and it hosts none. Until they have ended, its types are kept, so
    /// that a table which gives them to others is not answered before.
    pub async fn unregister(&self) {
        tracing::info!(target: LOG, "Unregistering hosted actors");
        let mut going = Vec::new();
        self.change_types(|known| {
            going = known.app.replace(Vec::new()).unwrap_or_default();
            known.retire(&going);
        });
        self.app_known.send_replace(true);
        let drain = self.hosted.load().drain;
        self.end_within(drain, &going, |_, _| true).await;
        self.change_types(|known| known.forget(&going));
    }

    /// Takes reminders that are due from now on.
    pub fn take_reminders(self: &Arc<Self>) {
        let due = Arc::new(reminders::ReminderReceiver(Arc::downgrade(self)));
        self.with.scheduler.deliver_reminders_to(due);
        if self.with.scheduler.is_configured() {
            tracing::info!(target: LOG, "Using Scheduler service for reminders.");
        }
    }

    /// What the metadata API says.
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

/// Checks the names of an actor that an app asks for.
fn check_for_app(kind: &str, id: &str) -> Result<(), ActorError> {
    if internal::is_reserved(kind) {
        return Err(ActorError::Reserved(kind.to_owned()));
    }
    check(kind, id)
}

/// Checks the names of an actor, which become parts of a path. Ids of executors, which no path has, may be made of two.
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
            "invalid {what}: it has {length} bytes, and may have {MAX_NAME}"
        )));
    }
    validate_name(name).map_err(|error| ActorError::Illegal(format!("invalid {what}: {error}")))
}

#[cfg(test)]
mod tests;
