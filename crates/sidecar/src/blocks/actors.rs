//! Virtual actors: which sidecar hosts one, whose turn it is, its state, its timers, its end. The decisions are those of
//! `outrigger_actors`; this carries them out.

mod app;
mod call;
mod error;
mod gate;
mod host;
mod lifecycle;
mod metrics;
mod placement;
mod reminders;
mod remote;
mod serve;
mod state;
mod timers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::header::HeaderName;
use outrigger_actors::ring::Tables;
use outrigger_actors::settings::Settings;
use outrigger_policy::path::validate_name;
use outrigger_wire::runtime::v1 as proto;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use call::ActorCall;
pub use error::ActorError;
pub use placement::Placement;
pub use reminders::{KnownReminder, ReminderError, ReminderRequest};
pub use serve::Served;
pub use state::{StateOperation, StateStep};
pub use timers::TimerRequest;

use crate::app::AppChannel;
use crate::blocks::state::State;
use crate::components::Components;
use crate::peer::Peers;
use crate::resilience::Resilience;
use crate::scheduler::Scheduler;
use gate::Gate;
use host::Hosted;
use metrics::ActorMetrics;
use timers::Timers;

const LOG: &str = "dapr.runtime.actor";

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
    /// This app's id.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Where other sidecars reach this one, `host:port`.
    pub address: String,
    /// Whether there is a placement service.
    pub placement: bool,
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
    /// Whether state may have a time to live.
    pub state_ttl: bool,
    /// Largest message of a peer and largest answer of an app, bytes.
    pub max_message: usize,
}

/// The actors of this app, and the way to those of others.
pub struct Actors {
    with: Dependencies,
    metrics: ActorMetrics,
    gate: Gate,
    tables: ArcSwap<Tables>,
    /// `None` until it is known what the app hosts.
    hosted: ArcSwapOption<Hosted>,
    /// Names of the hosted types; `None` as above.
    types: watch::Sender<Option<Arc<[String]>>>,
    /// What placement told all others.
    announced: watch::Sender<Arc<[String]>>,
    is_connected: AtomicBool,
    timers: Timers,
    store: OnceLock<String>,
    ended: CancellationToken,
}

impl Actors {
    /// Actors that nobody is told of yet.
    pub fn new(with: Dependencies) -> Self {
        let metrics = ActorMetrics::new(&with.resilience.metrics.all().registry);
        Self {
            metrics,
            gate: Gate::new(),
            tables: ArcSwap::default(),
            hosted: ArcSwapOption::empty(),
            types: watch::channel(None).0,
            announced: watch::channel(Arc::default()).0,
            is_connected: AtomicBool::new(false),
            timers: Timers::default(),
            store: OnceLock::new(),
            ended: CancellationToken::new(),
            with,
        }
    }

    /// Waits until it is known what the app hosts.
    async fn known(&self) -> Result<Arc<Hosted>, ActorError> {
        if !self.with.placement {
            return Err(ActorError::NoPlacement);
        }
        if self.with.namespace_missing {
            return Err(ActorError::NoNamespace);
        }
        if self.ended.is_cancelled() {
            return Err(ActorError::Ended);
        }
        if let Some(hosted) = &*self.hosted.load() {
            return Ok(Arc::clone(hosted));
        }
        let mut types = self.types.subscribe();
        tokio::select! {
            _known = types.wait_for(Option::is_some) => {}
            () = self.ended.cancelled() => return Err(ActorError::Ended),
        }
        self.hosted.load_full().ok_or(ActorError::Ended)
    }

    /// Says what the app hosts.
    pub fn register(&self, settings: &Settings) {
        for warning in &settings.warnings {
            tracing::warn!(target: LOG, "{warning}");
        }
        let hosted = Hosted::new(settings, &self.metrics);
        if !hosted.names.is_empty() {
            tracing::info!(target: LOG, "Registering hosted actors: {:?}", hosted.names);
        }
        let names = Arc::clone(&hosted.names);
        self.hosted.store(Some(Arc::new(hosted)));
        self.types.send_replace(Some(names));
    }

    /// The app cannot be called any more: its actors end, and it hosts none.
    pub async fn unregister(&self) {
        let hosted = self.hosted.load_full();
        tracing::info!(target: LOG, "Unregistering hosted actors");
        self.register(&Settings::none());
        if let Some(hosted) = hosted {
            self.halt(&hosted, |_, _| true).await;
        }
    }

    /// Takes reminders that are due from now on.
    pub fn take_reminders(self: &Arc<Self>) {
        let due = Arc::new(reminders::Due(Arc::downgrade(self)));
        self.with.scheduler.deliver_reminders_to(due);
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
        let Some(hosted) = self.hosted.load_full() else {
            return proto::ActorRuntime {
                runtime_status: Status::Initializing.into(),
                ..proto::ActorRuntime::default()
            };
        };
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

/// Checks the names of an actor, which become parts of a path.
fn check(kind: &str, id: &str) -> Result<(), ActorError> {
    for (what, name) in [("actorType", kind), ("actorId", id)] {
        check_name(what, name)?;
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), ActorError> {
    validate_name(name).map_err(|error| ActorError::Illegal(format!("invalid {what}: {error}")))
}
