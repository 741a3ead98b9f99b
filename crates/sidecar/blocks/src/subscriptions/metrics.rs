use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_delivery::Verdict;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::metrics::{Counter, Family, Gauge, Histogram, Millis};

/// Topics among which those that nobody subscribes to any more are not worth looking for.
const FEWEST_SWEPT: usize = 16;

/// The values of `process_status` and `status`.
pub(super) type Labels = [&'static str; 2];
pub(super) const SUCCESS: Labels = ["success"; 2];
pub(super) const RETRY: Labels = ["retry"; 2];
pub(super) const DROP: Labels = ["drop"; 2];

pub(super) fn labels(verdict: &Verdict) -> Labels {
    match verdict {
        Verdict::Acknowledge => SUCCESS,
        Verdict::Reject(_) => RETRY,
        Verdict::Drop { by_app: false, .. } => DROP,
        Verdict::Drop { by_app: true, .. } => ["drop", "success"],
    }
}

/// Counts deliveries.
pub(super) struct IngressMetrics {
    count: Family<Counter, 4>,
    latencies: Family<Histogram<Millis>, 4>,
    bulk_count: Family<Counter, 3>,
    bulk_events: Family<Counter, 3>,
    bulk_latencies: Family<Histogram<Millis>, 3>,
    dead_letters: Family<Counter, 3>,
    redelivered: Family<Counter, 2>,
    lag: Family<Gauge, 2>,
    lags: Mutex<Lags>,
}

/// Of the topics that are subscribed to, and of some that were.
#[derive(Default)]
struct Lags {
    /// By component and topic.
    by_topic: HashMap<[String; 2], Weak<Lag>>,
    /// How many there are when those that were are looked for.
    swept_at: usize,
}

/// How far the deliveries of one topic are behind, of all its subscriptions together.
pub(super) struct Lag {
    /// May be that of other topics too: those beyond the bound of series share one, and it has the sum.
    gauge: Gauge,
    state: Mutex<LagState>,
}

#[derive(Default)]
struct LagState {
    /// When each event was published, milliseconds since 1970; the number keeps those of one moment apart.
    published: BTreeSet<(i64, u64)>,
    next: u64,
    /// Its part of the gauge.
    shown: i64,
}

/// An event that the app is not done with. Dropped, it is.
pub(super) struct LagEntry {
    lag: Arc<Lag>,
    event: (i64, u64),
}

impl Lag {
    /// Counts an event that was published then.
    pub(super) fn add(self: &Arc<Self>, published: Timestamp) -> LagEntry {
        let mut state = self.state();
        let event = (published.as_millisecond(), state.next);
        state.next += 1;
        state.published.insert(event);
        LagEntry {
            lag: Arc::clone(self),
            event,
        }
    }

    /// Shows how old the oldest event is that the app is not done with.
    pub(super) fn show(&self) {
        let mut state = self.state();
        let oldest = state.published.first().map(|(at, _)| *at);
        // Clocks of different machines differ.
        let age = |at: i64| Timestamp::now().as_millisecond().saturating_sub(at).max(0);
        let lag = oldest.map_or(0, age);
        self.gauge.add(lag - state.shown);
        state.shown = lag;
    }

    fn state(&self) -> MutexGuard<'_, LagState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        let shown = self.state().shown;
        if shown != 0 {
            self.gauge.add(-shown);
        }
    }
}

impl Lags {
    fn get(&mut self, key: [String; 2], gauge: impl FnOnce() -> Gauge) -> Arc<Lag> {
        if let Some(lag) = self.by_topic.get(&key).and_then(Weak::upgrade) {
            return lag;
        }
        // Apps name topics as they like.
        if self.by_topic.len() >= self.swept_at {
            self.by_topic.retain(|_, lag| lag.strong_count() > 0);
            self.swept_at = FEWEST_SWEPT.max(2 * self.by_topic.len());
        }
        let lag = Arc::new(Lag {
            gauge: gauge(),
            state: Mutex::default(),
        });
        self.by_topic.insert(key, Arc::downgrade(&lag));
        lag
    }
}

impl Drop for LagEntry {
    fn drop(&mut self) {
        self.lag.state().published.remove(&self.event);
    }
}

impl IngressMetrics {
    pub(super) fn new(metrics: &SidecarMetrics) -> Self {
        let registry = metrics.all().registry.namespaced();
        let labels = ["component", "process_status", "status", "topic"];
        let bulk = ["component", "process_status", "topic"];
        Self {
            count: registry.counter(
                "component_pubsub_ingress_count",
                "Events handed to the app.",
                labels,
            ),
            latencies: registry.latency(
                "component_pubsub_ingress_latencies",
                "Duration of the app's handling of events.",
                labels,
            ),
            bulk_count: registry.counter(
                "component_pubsub_ingress_bulk_count",
                "Bulks of events handed to the app.",
                bulk,
            ),
            bulk_events: registry.counter(
                "component_pubsub_ingress_bulk_event_count",
                "Events in bulks that were handed to the app.",
                bulk,
            ),
            bulk_latencies: registry.latency(
                "component_pubsub_ingress_bulk_latencies",
                "Duration of the app's handling of bulks of events.",
                bulk,
            ),
            dead_letters: registry.counter(
                "component_pubsub_dead_letter_count",
                "Messages that were published to a dead-letter topic.",
                ["component", "success", "topic"],
            ),
            redelivered: registry.counter(
                "component_pubsub_redelivered_count",
                "Messages that a broker marked as delivered before.",
                ["component", "topic"],
            ),
            lag: registry.gauge(
                "component_pubsub_ingress_lag",
                "Milliseconds since the publishing of the oldest event that was received and is not settled.",
                ["component", "topic"],
            ),
            lags: Mutex::default(),
        }
    }

    /// An event.
    pub(super) fn event(&self, pubsub: &str, topic: &str, labels: Labels, elapsed: Duration) {
        let values = [pubsub, labels[0], labels[1], topic];
        self.count.with(values).inc();
        if !elapsed.is_zero() {
            self.latencies.with(values).observe(elapsed);
        }
    }

    /// Events of one bulk to which the same happened.
    pub(super) fn bulk(&self, topic: &str, labels: Labels, elapsed: Duration) {
        // Dapr's label: the word, not the component.
        let values = ["pubsubName", labels[0], topic];
        self.bulk_count.with(values).inc();
        self.bulk_events.with(values).inc();
        self.bulk_latencies.with(values).observe(elapsed);
    }

    /// How far a topic is behind.
    pub(super) fn lag(&self, pubsub: &str, topic: &str) -> Arc<Lag> {
        let mut lags = self.lags.lock().unwrap_or_else(PoisonError::into_inner);
        let key = [pubsub.to_owned(), topic.to_owned()];
        lags.get(key, || self.lag.with([pubsub, topic]))
    }

    /// A broker delivered a message again.
    pub(super) fn redelivered(&self, pubsub: &str, topic: &str) {
        self.redelivered.with([pubsub, topic]).inc();
    }

    /// A message was published to the dead-letter topic of a subscription, or not.
    pub(super) fn dead_letter(&self, pubsub: &str, topic: &str, success: bool) {
        let success = if success { "true" } else { "false" };
        self.dead_letters.with([pubsub, success, topic]).inc();
    }
}

#[cfg(test)]
mod tests;
