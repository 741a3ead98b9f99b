use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use jiff::Timestamp;
use outrigger_delivery::Verdict;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::metrics::{Counter, Family, Gauge, Histogram, Millis};

/// Number of topics below which unsubscribed ones are not swept.
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

/// Metrics of deliveries.
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

/// The lags of subscribed topics, and of some that are no longer subscribed.
#[derive(Default)]
struct Lags {
    /// By component and topic.
    by_topic: HashMap<[String; 2], Weak<Lag>>,
    /// Number of topics at which the next sweep happens.
    swept_at: usize,
}

/// The delivery lag of one topic, over all its subscriptions.
pub(super) struct Lag {
    /// Shared with other topics beyond the series limit; it then shows their sum.
    gauge: Gauge,
    state: Mutex<LagState>,
}

#[derive(Default)]
struct LagState {
    /// Publish times, milliseconds since 1970, with a number that makes them unique.
    published: BTreeSet<(i64, u64)>,
    next: u64,
    /// This topic's share of the gauge.
    shown: i64,
}

/// An event that the app has not finished. Dropping it removes it from the lag.
pub(super) struct LagEntry {
    lag: Arc<Lag>,
    event: (i64, u64),
}

impl Lag {
    /// Adds an event by its publish time.
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

    /// Updates the gauge to the age of the oldest unfinished event.
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
        // Topic names are unbounded, because apps choose them.
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

    /// Counts an event.
    pub(super) fn event(&self, pubsub: &str, topic: &str, labels: Labels, elapsed: Duration) {
        let values = [pubsub, labels[0], labels[1], topic];
        self.count.with(values).inc();
        if !elapsed.is_zero() {
            self.latencies.with(values).observe(elapsed);
        }
    }

    /// Counts the events of a bulk with the same result.
    pub(super) fn bulk(&self, topic: &str, labels: Labels, elapsed: Duration) {
        // Dapr's label value: the literal word, not the component name.
        let values = ["pubsubName", labels[0], topic];
        self.bulk_count.with(values).inc();
        self.bulk_events.with(values).inc();
        self.bulk_latencies.with(values).observe(elapsed);
    }

    /// The lag of a topic.
    pub(super) fn lag(&self, pubsub: &str, topic: &str) -> Arc<Lag> {
        let mut lags = self.lags.lock().unwrap_or_else(PoisonError::into_inner);
        let key = [pubsub.to_owned(), topic.to_owned()];
        lags.get(key, || self.lag.with([pubsub, topic]))
    }

    /// Counts a redelivered message.
    pub(super) fn redelivered(&self, pubsub: &str, topic: &str) {
        self.redelivered.with([pubsub, topic]).inc();
    }

    /// Counts a message that was published to a dead-letter topic, or failed to be.
    pub(super) fn dead_letter(&self, pubsub: &str, topic: &str, success: bool) {
        let success = if success { "true" } else { "false" };
        self.dead_letters.with([pubsub, success, topic]).inc();
    }
}

#[cfg(test)]
mod tests;
