use std::time::Duration;

use jiff::Timestamp;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::metrics::{Counter, Family, Gauge, Histogram, Millis};

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    Retry,
    Drop,
}

impl Status {
    const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Retry => "retry",
            Self::Drop => "drop",
        }
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
                "Milliseconds from the publishing of the latest event to its delivery to the app.",
                ["component", "topic"],
            ),
        }
    }

    /// An event. `by_app`: the app itself asked for it to be dropped.
    pub(super) fn event(&self, pubsub: &str, topic: &str, status: Status, by_app: bool, elapsed: Duration) {
        let name = status.name();
        let values = [pubsub, name, if by_app { "success" } else { name }, topic];
        self.count.with(values).inc();
        if !elapsed.is_zero() {
            self.latencies.with(values).observe(elapsed);
        }
    }

    /// Events of one bulk to which the same happened.
    pub(super) fn bulk(&self, topic: &str, status: Status, elapsed: Duration) {
        // Dapr's label: the word, not the component.
        let values = ["pubsubName", status.name(), topic];
        self.bulk_count.with(values).inc();
        self.bulk_events.with(values).inc();
        self.bulk_latencies.with(values).observe(elapsed);
    }

    /// The app gets an event that was published then.
    pub(super) fn lag(&self, pubsub: &str, topic: &str, published: Timestamp) {
        let elapsed = Timestamp::now().as_millisecond() - published.as_millisecond();
        // Clocks of different machines differ.
        self.lag.with([pubsub, topic]).set(elapsed.max(0));
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
