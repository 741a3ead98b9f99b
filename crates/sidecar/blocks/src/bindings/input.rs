use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, Method};
use outrigger_component::InputBinding;
use outrigger_policy::resiliency::{ComponentKind, Direction};
use outrigger_runtime::app::AppChannel;
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::delivery::{self, OnStop};
use outrigger_runtime::resilience::{ComponentPolicy, Resilience};
use outrigger_telemetry::metrics::{Counter, Histogram, Millis};
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1::ListInputBindingsResponse;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::deliver::{self, Delivery};
use super::{Bindings, LOG, NewInput};

const LIST: &str = "/dapr.proto.runtime.v1.AppCallback/ListInputBindings";
/// Largest response to `OPTIONS` that is read to keep the connection reusable, bytes.
const MAX_OPTIONS: usize = 64 * 1024;

/// The phase of all input bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The app is not connected or is unhealthy.
    Suspended,
    /// Bindings read events.
    Reading,
    /// Bindings have stopped permanently.
    Ended,
}

/// The phase, and the number of bindings that are reading.
#[derive(Clone)]
pub(super) struct Phases {
    phase: Arc<watch::Sender<Phase>>,
    reading: Arc<watch::Sender<usize>>,
}

impl Default for Phases {
    fn default() -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(Phase::Suspended)),
            reading: Arc::new(watch::Sender::new(0)),
        }
    }
}

impl Phases {
    /// Changes the phase; `Ended` is final.
    pub(super) fn set(&self, next: Phase) {
        self.phase.send_if_modified(|phase| {
            let changes = *phase != Phase::Ended && *phase != next;
            if changes {
                *phase = next;
            }
            changes
        });
    }

    /// Waits until no binding reads.
    pub(super) async fn idle(&self) {
        // We hold the sender, so the channel stays open.
        let mut reading = self.reading.subscribe();
        let _idle = reading.wait_for(|reading| *reading == 0).await;
    }

    async fn until(&self, wanted: impl FnMut(&Phase) -> bool) {
        let mut phase = self.phase.subscribe();
        let _reached = phase.wait_for(wanted).await;
    }

    /// Registers a reader, unless the phase forbids reading.
    fn enter(&self) -> Option<Entered<'_>> {
        self.reading.send_modify(|reading| *reading += 1);
        let entered = Entered(self);
        (*self.phase.borrow() == Phase::Reading).then_some(entered)
    }
}

struct Entered<'a>(&'a Phases);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.reading.send_modify(|reading| *reading -= 1);
    }
}

/// An input binding with its policy and metrics.
pub(super) struct Input {
    pub(super) name: String,
    component: Arc<dyn InputBinding>,
    pub(super) route: String,
    declared: bool,
    pub(super) policy: ComponentPolicy,
    succeeded: Series,
    failed: Series,
    /// Cancelled to stop it.
    end: CancellationToken,
    /// Cancelled once it has stopped.
    ended: CancellationToken,
}

type Series = (Counter, Histogram<Millis>);

impl Input {
    pub(super) fn new(new: NewInput, resilience: &Resilience) -> Self {
        let registry = resilience.metrics.all().registry.namespaced();
        let labels = ["component", "success"];
        let count = registry.counter(
            "component_input_binding_count",
            "Events of input bindings.",
            labels,
        );
        let latency = registry.latency(
            "component_input_binding_latencies",
            "Duration of handling events of input bindings.",
            labels,
        );
        let series = |success| {
            let values = [new.name.as_str(), success];
            (count.with(values), latency.with(values))
        };
        Self {
            succeeded: series("true"),
            failed: series("false"),
            policy: resilience
                .policies
                .component(&new.name, ComponentKind::Binding, Direction::Inbound),
            name: new.name,
            component: new.component,
            route: new.route,
            declared: new.declared,
            end: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// The token that stops it.
    pub(super) fn ending(&self) -> CancellationToken {
        self.end.clone()
    }

    /// Stops the binding. The returned token is cancelled once it has stopped.
    pub(super) fn end(&self) -> CancellationToken {
        self.end.cancel();
        self.ended.clone()
    }

    /// Counts a handled event.
    pub(super) fn handled(&self, success: bool, elapsed: Duration) {
        let (count, latency) = if success { &self.succeeded } else { &self.failed };
        count.inc();
        latency.observe(elapsed);
    }

    /// Whether the app wants the events.
    async fn is_wanted(&self, app: &AppChannel, limit: Duration) -> bool {
        if self.declared {
            return true;
        }
        let asked = async {
            if app.is_grpc() {
                self.is_listed(app).await
            } else {
                self.has_route(app).await
            }
        };
        let answer = tokio::time::timeout(limit, asked).await;
        match answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}"))) {
            Ok(true) => return true,
            Ok(false) => {
                tracing::info!(target: LOG, "app has not subscribed to binding {}.", self.name);
            }
            Err(error) => tracing::warn!(
                target: LOG,
                "failed to ask the app whether it wants events of binding {}: {error}; it gets none (set direction: \
                 input in the component to skip this question)",
                self.name
            ),
        }
        false
    }

    async fn is_listed(&self, app: &AppChannel) -> Result<bool, String> {
        match app
            .callback::<ListInputBindingsResponse>(LIST, &(), &Parent::default())
            .await
        {
            Ok(answer) => Ok(answer.bindings.contains(&self.name)),
            // An app without the callback wants none.
            Err(status) if status.code() == tonic::Code::Unimplemented => Ok(false),
            Err(status) => Err(status.message().to_owned()),
        }
    }

    async fn has_route(&self, app: &AppChannel) -> Result<bool, String> {
        let (metadata, trace) = (HeaderMap::new(), Parent::default());
        let call = Call::own(Method::OPTIONS, self.route.clone(), metadata, Body::Empty, trace);
        let reply = app.invoke(call).await.map_err(|error| error.to_string())?;
        let _rest = reply.body.collect_up_to(MAX_OPTIONS).await;
        Ok(matches!(reply.status, AppStatus::Http(200..=299 | 405)))
    }
}

/// Runs an input binding: it reads in each phase of reading, once the binding that it replaces has stopped.
pub(super) async fn live(
    bindings: Weak<Bindings>,
    input: Arc<Input>,
    phases: Phases,
    before: Option<CancellationToken>,
) {
    let _ended = input.ended.clone().drop_guard();
    if let Some(before) = before {
        before.cancelled().await;
    }
    loop {
        tokio::select! {
            () = input.end.cancelled() => return,
            () = phases.until(|phase| *phase != Phase::Suspended) => {}
        }
        if *phases.phase.borrow() == Phase::Ended {
            return;
        }
        let Some(bindings) = bindings.upgrade() else {
            return;
        };
        let Some(entered) = phases.enter() else {
            continue;
        };
        let stopped = read(&bindings, &input, &phases).await;
        drop(entered);
        drop(bindings);
        if stopped {
            // The next phase of reading may have begun while the last events were handled.
            continue;
        }
        // The binding itself gave up; it may succeed in the next phase.
        tokio::select! {
            () = input.end.cancelled() => return,
            () = phases.until(|phase| *phase != Phase::Reading) => {}
        }
    }
}

/// Reads until the phase changes or the binding is stopped; then returns `true` after the last events are
/// handled. Returns `false` if the app wants no events or the binding gave up.
async fn read(bindings: &Arc<Bindings>, input: &Arc<Input>, phases: &Phases) -> bool {
    let Some(app) = &bindings.dependencies.app else {
        return false;
    };
    let stop = async {
        tokio::select! {
            () = input.end.cancelled() => {}
            () = phases.until(|phase| *phase != Phase::Reading) => {}
        }
    };
    let mut stop = std::pin::pin!(stop);
    tokio::select! {
        () = &mut stop => return true,
        wanted = input.is_wanted(app, bindings.dependencies.asking) => if !wanted {
            return false;
        },
    }
    let drain = CancellationToken::new();
    let dependencies = &bindings.dependencies;
    let metrics = &dependencies.resilience.metrics;
    let (inbox, engine) = delivery::engine(deliver::LIMITS, None, metrics);
    let engine = engine.under(&input.policy);
    let handler = Arc::new(Delivery {
        bindings: Arc::clone(bindings),
        input: Arc::clone(input),
        inbox,
        grpc: app.is_grpc(),
        followed: Arc::new(Semaphore::new(deliver::MAX_FOLLOWED)),
    });
    // Events that were read are delivered even if the binding drops its handler.
    let read = CancellationToken::new();
    let reading = async {
        let result = input.component.read(handler, drain.clone()).await;
        read.cancel();
        result
    };
    let delivering = engine.run(&read, OnStop::DeliverAll, |event, limit| {
        deliver::attempt(input, app, dependencies.max_answer, event, limit)
    });
    let reading = async { tokio::join!(reading, delivering).0 };
    let mut reading = std::pin::pin!(reading);
    let (stopped, result) = tokio::select! {
        () = &mut stop => {
            drain.cancel();
            (true, reading.await)
        }
        result = &mut reading => (false, result),
    };
    if let Err(error) = result {
        tracing::error!(target: LOG, "error reading from input binding {}: {error}", input.name);
    }
    stopped
}
