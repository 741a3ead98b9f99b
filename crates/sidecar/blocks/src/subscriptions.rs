//! Subscriptions: delivery of broker messages to the app.
//!
//! Subscriptions come from resources, from the app itself, and from streams that the app opens. Each
//! subscription whose broker is loaded has a `target` that consumes and delivers messages. [`Subscriptions`]
//! starts and stops targets as subscriptions, brokers and the app's health change.

mod attempt;
mod bulk;
mod hops;
mod incoming;
mod message;
mod metrics;
mod programmatic;
mod spec;
mod stream;
mod target;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use outrigger_nearest::hint;
use outrigger_resources::Subscription;
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::resilience::Resilience;
use outrigger_telemetry::trace::Tracer;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::metrics::IngressMetrics;
use self::target::{Sink, Target};
use super::pubsub::{Broker, PubSubs};

pub use self::spec::{AppSubscription, SubscriptionType};
pub use self::stream::{Opened, Stream, StreamError};

const LOG: &str = "dapr.runtime.processor.subscription";
/// Timeout of pausing a broker.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Dependencies of deliveries.
pub struct Dependencies {
    /// The app that the subscriptions are for.
    pub app_id: Arc<str>,
    /// The brokers.
    pub pubsubs: Arc<PubSubs>,
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// The app, if there is one.
    pub app: Option<Arc<AppChannel>>,
    /// Starts the spans of deliveries.
    pub tracer: Tracer,
    /// Whether the app may be asked for its subscriptions.
    pub ask_app: bool,
    /// Longest response of the app, bytes.
    pub max_answer: usize,
}

/// All subscriptions of the sidecar.
pub struct Subscriptions {
    dependencies: Dependencies,
    metrics: IngressMetrics,
    state: Mutex<State>,
    /// The targets.
    tasks: TaskTracker,
    /// Cancelled when consumption has stopped.
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    /// In order of declaration.
    declared: Vec<Arc<AppSubscription>>,
    programmatic: Vec<Arc<AppSubscription>>,
    streams: Vec<Arc<Stream>>,
    next_stream: u64,
    /// Whether the app is connected and healthy.
    active: bool,
    /// Whether the app has been asked for its subscriptions.
    asked: bool,
    running: HashMap<Slot, Running>,
}

/// Identifies a subscription; each slot has at most one target.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Slot {
    /// A subscription of the app: broker and topic.
    App(String, String),
    /// A stream, numbered in order of opening.
    Stream(u64),
}

/// An active target.
struct Running {
    wanted: Arc<AppSubscription>,
    broker: Weak<Broker>,
    stop: CancellationToken,
    /// Cancelled after the first attempt to subscribe.
    asked: CancellationToken,
    /// Cancelled once it and its predecessors have ended.
    ended: CancellationToken,
    /// Whether its broker keeps messages only while there is a consumer.
    needs_consumer: Arc<AtomicBool>,
    failure: LastFailure,
}

/// The error of the last attempt to subscribe; `None` if it succeeded.
type LastFailure = Arc<Mutex<Option<String>>>;

/// The state of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionState {
    /// The broker has accepted it or has not responded yet.
    Active,
    /// The app is not connected or is unhealthy, or the sidecar is shutting down.
    Paused,
    /// The pub/sub component is not loaded.
    NoBroker,
    /// The broker refuses it; the sidecar retries.
    Failed(String),
}

impl Running {
    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serves(&self, wanted: &AppSubscription, broker: &Arc<Broker>) -> bool {
        *self.wanted == *wanted && std::ptr::eq(self.broker.as_ptr(), Arc::as_ptr(broker))
    }
}

/// A target that should run.
struct PlannedTarget {
    wanted: Arc<AppSubscription>,
    broker: Arc<Broker>,
    sink: Sink,
    /// Receives the result of the first attempt to subscribe.
    first: Option<oneshot::Sender<Result<(), String>>>,
}

impl Subscriptions {
    /// No subscriptions yet. Those of the app are served from [`Subscriptions::follow`] while it is healthy
    /// until [`Subscriptions::end_reading`].
    pub fn new(dependencies: Dependencies) -> Arc<Self> {
        Arc::new(Self {
            metrics: IngressMetrics::new(&dependencies.resilience.metrics),
            dependencies,
            state: Mutex::default(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all declared subscriptions by `resources`. Unchanged ones are not interrupted.
    ///
    /// # Errors
    /// The invalid ones, each with its location. They are skipped, or keep their previous version.
    pub fn declare(self: &Arc<Self>, resources: &[Subscription]) -> Result<(), Vec<String>> {
        let mut problems = Vec::new();
        {
            let mut state = self.state();
            let mut declared = Vec::with_capacity(resources.len());
            for resource in resources {
                match AppSubscription::declared(resource) {
                    Ok(wanted) => declared.push(Arc::new(wanted)),
                    Err(problem) => {
                        problems.push(problem);
                        let before = state.declared.iter().find(|known| known.name == resource.name);
                        declared.extend(before.cloned());
                    }
                }
            }
            in_order_of_age(&mut declared, &state.declared);
            state.declared = declared;
        }
        self.reconcile();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// Warns about `resources` without a broker or app, which get no events, as in Dapr. Called once all
    /// components are loaded, and then for new resources; `reloads`: components may still be added at
    /// runtime.
    pub fn show_missing<'a>(&self, resources: impl IntoIterator<Item = &'a Subscription>, reloads: bool) {
        let resources: Vec<_> = resources.into_iter().collect();
        for text in self.missing(resources.iter().copied(), reloads) {
            tracing::warn!(target: LOG, "{text}");
        }
        if self.dependencies.app.is_some() {
            return;
        }
        for Subscription { name, source, .. } in resources {
            tracing::warn!(
                target: LOG,
                "{source}: subscription {name:?} gets no events: the app has no port (give --app-port, in Kubernetes the \
                 annotation dapr.io/app-port)"
            );
        }
    }

    fn missing<'a>(
        &self,
        resources: impl IntoIterator<Item = &'a Subscription>,
        reloads: bool,
    ) -> Vec<String> {
        let brokers = self.dependencies.pubsubs.names();
        let until = match reloads {
            true => "it gets no events until one comes",
            false => "it gets no events",
        };
        // A resource without a name is reported when it is parsed.
        let missing = resources
            .into_iter()
            .filter(|resource| !resource.pubsub.is_empty() && !brokers.contains(&resource.pubsub));
        missing
            .map(|resource| {
                let Subscription {
                    name, pubsub, source, ..
                } = resource;
                format!(
                    "{source}: subscription {name:?}: no pub/sub component {pubsub:?} is loaded: {until} ({}add it, or \
                     correct spec.pubsubname)",
                    hint(pubsub, brokers.iter().map(String::as_str))
                )
            })
            .collect()
    }

    /// Serves the app's subscriptions while it is healthy, and follows changes of brokers, until `stop`.
    pub async fn follow(self: Arc<Self>, health: Health, stop: CancellationToken) {
        let mut brokers = self.dependencies.pubsubs.changes();
        let following = async {
            let mut well = None;
            loop {
                let now = health.is_healthy();
                if well != Some(now) {
                    well = Some(now);
                    self.set_active(now).await;
                } else {
                    // A new broker may be the first, so the app may have to be asked now.
                    self.ask().await;
                    self.reconcile();
                }
                let changes = async {
                    if now {
                        health.until_unhealthy().await;
                    } else {
                        health.until_healthy().await;
                    }
                };
                tokio::select! {
                    () = changes => {}
                    changed = brokers.changed() => if changed.is_err() { return },
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = following => {}
        }
    }

    /// Serves the app's subscriptions if it is healthy. Returns after the first attempt to subscribe of each.
    pub async fn begin(self: &Arc<Self>, health: &Health) {
        self.set_active(health.is_healthy()).await;
        let asked: Vec<_> = {
            let state = self.state();
            state
                .running
                .values()
                .map(|running| running.asked.clone())
                .collect()
        };
        for asked in asked {
            asked.cancelled().await;
        }
    }

    async fn set_active(self: &Arc<Self>, active: bool) {
        if active && self.dependencies.app.is_some() {
            self.state().active = true;
            self.ask().await;
        } else {
            self.state().active = false;
        }
        self.reconcile();
    }

    /// Asks the app for its subscriptions, once, as soon as there is a broker.
    async fn ask(&self) {
        let Some(app) = &self.dependencies.app else { return };
        {
            let mut state = self.state();
            if !state.active || state.asked || self.dependencies.pubsubs.is_empty() {
                return;
            }
            state.asked = true;
        }
        if !self.dependencies.ask_app {
            tracing::info!(
                target: LOG,
                "Skipping programmatic subscription loading (see --disable-init-endpoints)"
            );
            return;
        }
        let found = programmatic::ask(app, &self.dependencies).await;
        self.state().programmatic = found.into_iter().map(Arc::new).collect();
    }

    /// Starts missing targets and stops obsolete ones.
    fn reconcile(self: &Arc<Self>) {
        let mut state = self.state();
        let mut due = self.due(&state);
        if self.ended.is_cancelled() {
            due.clear();
        }
        let is_paused = |slot: &Slot| matches!(slot, Slot::App(..)) && !state.active;
        for (slot, running) in &state.running {
            let serves = |due: &PlannedTarget| running.serves(&due.wanted, &due.broker);
            let goes_on = !is_paused(slot) || running.needs_consumer.load(Ordering::Relaxed);
            if !goes_on || !due.get(slot).is_some_and(serves) {
                running.stop.cancel();
            }
        }
        due.retain(|slot, _| {
            let runs = || {
                state
                    .running
                    .get(slot)
                    .is_some_and(|running| !running.stop.is_cancelled())
            };
            !is_paused(slot) || runs()
        });
        state
            .running
            .retain(|slot, running| due.contains_key(slot) || !running.ended.is_cancelled());
        for (slot, due) in due {
            let before = state.running.get(&slot);
            if before.is_some_and(|before| !before.stop.is_cancelled()) {
                continue;
            }
            let before = before.map(|before| before.ended.clone());
            let running = self.start(due, before);
            state.running.insert(slot, running);
        }
    }

    /// The targets that should run, or would if the app were healthy.
    fn due(&self, state: &State) -> HashMap<Slot, PlannedTarget> {
        let mut due = HashMap::new();
        let pubsubs = &self.dependencies.pubsubs;
        if let Some(app) = &self.dependencies.app {
            for wanted in merged(&state.declared, &state.programmatic) {
                let Some(broker) = pubsubs.broker(&wanted.pubsub) else {
                    continue;
                };
                let slot = Slot::App(wanted.pubsub.clone(), wanted.topic.clone());
                due.insert(
                    slot,
                    PlannedTarget {
                        wanted,
                        broker,
                        sink: Sink::App(Arc::clone(app)),
                        first: None,
                    },
                );
            }
        }
        for stream in &state.streams {
            let Some(broker) = pubsubs.broker(&stream.wanted.pubsub) else {
                continue;
            };
            let stream_due = PlannedTarget {
                wanted: Arc::clone(&stream.wanted),
                broker,
                first: stream.take_first(),
                sink: Sink::Stream(Arc::clone(stream)),
            };
            due.insert(Slot::Stream(stream.id), stream_due);
        }
        due
    }

    fn start(self: &Arc<Self>, due: PlannedTarget, before: Option<CancellationToken>) -> Running {
        let (wanted, broker) = (Arc::clone(&due.wanted), Arc::downgrade(&due.broker));
        let target = Target::new(Arc::clone(self), due.wanted, due.broker, due.sink);
        let running = Running {
            wanted,
            broker,
            stop: CancellationToken::new(),
            asked: CancellationToken::new(),
            ended: CancellationToken::new(),
            needs_consumer: target.needs_consumer(),
            failure: target.failure(),
        };
        let (stop, asked, ended) = (running.stop.clone(), running.asked.clone(), running.ended.clone());
        self.tasks.spawn(async move {
            // The predecessor first hands over the messages that it has taken.
            if let Some(before) = before {
                before.cancelled().await;
            }
            if !stop.is_cancelled() {
                target.run(&stop, &asked, due.first).await;
            }
            drop(target);
            asked.cancel();
            ended.cancel();
        });
        running
    }

    /// Pauses the brokers of all subscriptions, if they support it. Called before
    /// [`Subscriptions::end_reading`] at a graceful shutdown.
    pub async fn pause(&self) {
        let mut brokers: Vec<Arc<Broker>> = {
            let state = self.state();
            let running = state.running.values();
            running.filter_map(|running| running.broker.upgrade()).collect()
        };
        brokers.sort_by_key(Arc::as_ptr);
        brokers.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let pausing = brokers.into_iter().map(|broker| async move {
            let paused = tokio::time::timeout(PAUSE_TIMEOUT, broker.component().pause()).await;
            let failed = match paused {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {PAUSE_TIMEOUT:?}"),
            };
            tracing::warn!(
                target: LOG,
                "failed to pause the subscriptions of pubsub {}: {failed}; the subscriptions end without a pause",
                broker.name()
            );
        });
        futures::future::join_all(pausing).await;
    }

    /// Stops consuming messages permanently. Messages in flight are finished.
    pub fn end_reading(&self) {
        self.ended.cancel();
        for running in self.state().running.values() {
            running.stop.cancel();
        }
    }

    /// Waits until the app has finished all messages and they are settled, after
    /// [`Subscriptions::end_reading`].
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The states of all subscriptions.
    pub fn status(&self) -> Vec<(Arc<AppSubscription>, SubscriptionState)> {
        let state = self.state();
        let of_app = merged(&state.declared, &state.programmatic).into_iter();
        let of_app = of_app.map(|wanted| {
            let slot = Slot::App(wanted.pubsub.clone(), wanted.topic.clone());
            (wanted, slot)
        });
        let streams = state.streams.iter();
        let streams = streams.map(|stream| (Arc::clone(&stream.wanted), Slot::Stream(stream.id)));
        let all = of_app.chain(streams).map(|(wanted, slot)| {
            let now = self.state_of(&state, &wanted, &slot);
            (wanted, now)
        });
        all.collect()
    }

    fn state_of(&self, state: &State, wanted: &AppSubscription, slot: &Slot) -> SubscriptionState {
        if self.dependencies.pubsubs.broker(&wanted.pubsub).is_none() {
            return SubscriptionState::NoBroker;
        }
        let running = state.running.get(slot);
        let running = running.filter(|running| !running.stop.is_cancelled());
        match running {
            Some(running) => match &*running.failure() {
                Some(error) => SubscriptionState::Failed(error.clone()),
                None => SubscriptionState::Active,
            },
            None => SubscriptionState::Paused,
        }
    }

    /// All subscriptions, whether or not their broker is loaded.
    pub fn list(&self) -> Vec<Arc<AppSubscription>> {
        let state = self.state();
        let mut all = merged(&state.declared, &state.programmatic);
        all.extend(state.streams.iter().map(|stream| Arc::clone(&stream.wanted)));
        all
    }
}

/// Sorts unchanged subscriptions first, in their order; new or changed ones follow.
fn in_order_of_age(declared: &mut [Arc<AppSubscription>], before: &[Arc<AppSubscription>]) {
    declared.sort_by_cached_key(|wanted| {
        let place = before.iter().position(|known| known == wanted);
        place.unwrap_or(usize::MAX)
    });
}

/// Merges the app's subscriptions: of declared ones for the same topic the first wins, and programmatic ones
/// override both.
fn merged(
    declared: &[Arc<AppSubscription>],
    programmatic: &[Arc<AppSubscription>],
) -> Vec<Arc<AppSubscription>> {
    let mut merged: Vec<Arc<AppSubscription>> = Vec::with_capacity(declared.len() + programmatic.len());
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for (wanted, replaces) in declared
        .iter()
        .map(|wanted| (wanted, false))
        .chain(programmatic.iter().map(|wanted| (wanted, true)))
    {
        match places.get(&(wanted.pubsub.as_str(), wanted.topic.as_str())) {
            Some(place) if replaces => merged[*place] = Arc::clone(wanted),
            Some(_) => {}
            None => {
                places.insert((&wanted.pubsub, &wanted.topic), merged.len());
                merged.push(Arc::clone(wanted));
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(topic: &str, path: &str) -> Arc<AppSubscription> {
        Arc::new(AppSubscription::to_path("broker", topic, path))
    }

    #[test]
    fn changed_subscription_moves_to_end() {
        let before = [wanted("a", "/a"), wanted("b", "/b"), wanted("c", "/c")];
        let mut declared = [
            wanted("d", "/d"),
            wanted("a", "/changed"),
            wanted("c", "/c"),
            wanted("b", "/b"),
        ];
        in_order_of_age(&mut declared, &before);
        let topics: Vec<_> = declared.iter().map(|wanted| wanted.topic.as_str()).collect();
        assert_eq!(topics, ["b", "c", "d", "a"]);
    }

    #[test]
    fn programmatic_overrides_declared() {
        let declared = [wanted("a", "/first"), wanted("a", "/second"), wanted("b", "/b")];
        let programmatic = [wanted("a", "/own"), wanted("c", "/c")];
        let merged = merged(&declared, &programmatic);
        let paths: Vec<_> = merged
            .iter()
            .flat_map(|wanted| wanted.routes.shown().map(|(_, path)| path.to_owned()))
            .collect();
        assert_eq!(paths, ["/own", "/b", "/c"]);
        assert_eq!(
            super::merged(&declared, &[])[0].routes.shown().next(),
            Some(("", "/first"))
        );
    }
}
