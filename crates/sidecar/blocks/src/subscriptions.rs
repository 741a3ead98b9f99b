//! Subscriptions: messages of brokers on their way to the app.
//!
//! What is wanted comes from resources, from the app itself, and from streams that the app opens. Each wanted
//! subscription whose broker is there has a [`target`] that takes messages and delivers them; [`Subscriptions`] starts
//! and ends targets as what is wanted, the brokers and the app's health change.

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
/// How long a broker may take to pause.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(5);

/// What deliveries use.
pub struct Dependencies {
    /// The app that the subscriptions are for.
    pub app_id: Arc<str>,
    /// The brokers.
    pub pubsubs: Arc<PubSubs>,
    /// Policies and metrics.
    pub resilience: Arc<Resilience>,
    /// The app, where there is one.
    pub app: Option<Arc<AppChannel>>,
    /// Starts the spans of deliveries.
    pub tracer: Tracer,
    /// Whether the app may be asked for its subscriptions.
    pub ask_app: bool,
    /// Longest answer of the app, bytes.
    pub max_answer: usize,
}

/// Every subscription of the sidecar.
pub struct Subscriptions {
    dependencies: Dependencies,
    metrics: IngressMetrics,
    state: Mutex<State>,
    /// What takes messages and delivers them.
    tasks: TaskTracker,
    /// No message is taken any more.
    ended: CancellationToken,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    declared: Vec<Arc<AppSubscription>>,
    programmatic: Vec<Arc<AppSubscription>>,
    streams: Vec<Arc<Stream>>,
    next_stream: u64,
    /// The app is there and well.
    active: bool,
    /// The app has been asked what it wants.
    asked: bool,
    running: HashMap<Slot, Running>,
}

/// The place of a subscription: there is one target in it at most.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Slot {
    /// Of the app: the broker, the topic.
    App(String, String),
    /// A stream that the app opened; numbered in the order of their opening.
    Stream(u64),
}

/// A target at work.
struct Running {
    wanted: Arc<AppSubscription>,
    broker: Weak<Broker>,
    stop: CancellationToken,
    /// Its broker has been asked for the subscription once.
    asked: CancellationToken,
    /// It has ended, and so have those before it in its place.
    ended: CancellationToken,
    /// Its broker keeps messages only while somebody consumes them.
    needs_consumer: Arc<AtomicBool>,
    failure: LastFailure,
}

/// Why the broker refused the last attempt to subscribe; `None` since one was accepted.
type LastFailure = Arc<Mutex<Option<String>>>;

/// What becomes of a subscription that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubscriptionState {
    /// The broker was asked for it, and has not refused.
    Active,
    /// The app is not there or not well, or the sidecar ends.
    Paused,
    /// No pub/sub component of its name is loaded.
    NoBroker,
    /// The broker refuses it: it is tried again.
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

/// A target that ought to run.
struct PlannedTarget {
    wanted: Arc<AppSubscription>,
    broker: Arc<Broker>,
    sink: Sink,
    /// Hears how the first attempt to subscribe went.
    first: Option<oneshot::Sender<Result<(), String>>>,
}

impl Subscriptions {
    /// Without subscriptions. Those of the app are served between [`Subscriptions::follow`] finding it well and
    /// [`Subscriptions::end_reading`].
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

    /// Takes `resources` as all the declared subscriptions. One that stays as it was is not disturbed.
    ///
    /// # Errors
    /// What is wrong with some of them, each with its place: those are left out, or stay as they were.
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

    /// Says which of `resources` have no broker, or no app: they get nothing, as in Dapr. Asked once all components are
    /// loaded, and then of what is new; `reloads`: others may come while the sidecar runs.
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
        // One without a name is told where it is read.
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

    /// Serves the app's subscriptions while it is well, and follows the brokers, until `stop`.
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
                    // With each broker that comes the app may be asked for the first time.
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

    /// Serves the app's subscriptions if it is well; when this returns, each has been asked of its broker once.
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

    /// Asks the app what it wants, once, as soon as there is a broker.
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

    /// Starts what ought to run and does not, ends what runs and ought not.
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

    /// What ought to run now, or would if the app were well.
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
            // Its predecessor hands over what it has taken first.
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

    /// Lets the brokers of all subscriptions fetch no more messages, where they can: before [`Subscriptions::end_reading`] at
    /// a shutdown that leaves the app time.
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
                "failed to pause the subscriptions of pubsub {}: {failed}; they end all the same",
                broker.name()
            );
        });
        futures::future::join_all(pausing).await;
    }

    /// Takes no messages any more, for good. Those that the app is handling are finished.
    pub fn end_reading(&self) {
        self.ended.cancel();
        for running in self.state().running.values() {
            running.stop.cancel();
        }
    }

    /// Waits until the app has finished with all messages, and the brokers know, after
    /// [`Subscriptions::end_reading`].
    pub async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What becomes of all subscriptions that are wanted.
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

    /// All subscriptions that are wanted, whether their broker is there or not.
    pub fn list(&self) -> Vec<Arc<AppSubscription>> {
        let state = self.state();
        let mut all = merged(&state.declared, &state.programmatic);
        all.extend(state.streams.iter().map(|stream| Arc::clone(&stream.wanted)));
        all
    }
}

/// Subscriptions that stayed as they were come first, in their order; what is new or changed follows.
fn in_order_of_age(declared: &mut [Arc<AppSubscription>], before: &[Arc<AppSubscription>]) {
    declared.sort_by_cached_key(|wanted| {
        let place = before.iter().position(|known| known == wanted);
        place.unwrap_or(usize::MAX)
    });
}

/// What the app's subscriptions come to: of declared ones to the same topic the first counts, and the app's own word
/// replaces it.
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
    fn a_changed_subscription_goes_behind_those_that_stay() {
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
    fn the_apps_word_wins_over_the_first_resource() {
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
