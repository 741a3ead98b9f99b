//! Gauges of an engine's load.

use outrigger_telemetry::metrics::Gauge;

use crate::metrics::SidecarMetrics;

/// The gauges of one topic. Several engines may share them; each removes its share when it ends.
pub struct Depth {
    in_flight: Gauge,
    waiting: Gauge,
    /// The share of this engine.
    shown: (i64, i64),
}

impl Depth {
    /// Gauges of a component's topic.
    pub fn of_topic(metrics: &SidecarMetrics, component: &str, topic: &str) -> Self {
        let registry = metrics.all().registry.namespaced();
        let gauge = |name, help| {
            registry
                .gauge(name, help, ["component", "topic"])
                .with([component, topic])
        };
        Self {
            in_flight: gauge(
                "component_pubsub_ingress_in_flight",
                "Events that the app is handling.",
            ),
            waiting: gauge(
                "component_pubsub_ingress_waiting",
                "Events received from the broker that wait for an earlier one, or for their next attempt.",
            ),
            shown: (0, 0),
        }
    }

    /// `unsettled` includes events in flight.
    pub(super) fn show(&mut self, in_flight: usize, unsettled: usize) {
        let count = |events: usize| i64::try_from(events).unwrap_or(i64::MAX);
        let now = (count(in_flight), count(unsettled.saturating_sub(in_flight)));
        for (gauge, now, before) in [
            (&self.in_flight, now.0, self.shown.0),
            (&self.waiting, now.1, self.shown.1),
        ] {
            if now != before {
                gauge.add(now - before);
            }
        }
        self.shown = now;
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        self.show(0, 0);
    }
}

#[cfg(test)]
mod tests {
    use outrigger_telemetry::metrics::Metrics;

    use super::*;

    #[test]
    fn gauges_of_topic_add_up() {
        let metrics = SidecarMetrics::new(Metrics::new(&Default::default()).unwrap());
        let mut one = Depth::of_topic(&metrics, "broker", "orders");
        let mut two = Depth::of_topic(&metrics, "broker", "orders");
        one.show(2, 5);
        two.show(1, 1);
        assert_eq!((one.in_flight.get(), one.waiting.get()), (3, 3));
        one.show(0, 1);
        assert_eq!((two.in_flight.get(), two.waiting.get()), (1, 1));
        drop(one);
        assert_eq!((two.in_flight.get(), two.waiting.get()), (1, 0));
    }
}
