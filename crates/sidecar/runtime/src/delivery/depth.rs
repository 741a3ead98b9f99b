//! How full an engine is, for whoever watches the sidecar.

use outrigger_telemetry::metrics::Gauge;

use crate::metrics::SidecarMetrics;

/// The gauges of the engine of one topic. Several engines may add to the same ones; each takes back its part at its end.
pub struct Depth {
    in_flight: Gauge,
    waiting: Gauge,
    /// Its own part.
    shown: (i64, i64),
}

impl Depth {
    /// Of the events that a component has in a topic.
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

    /// `unsettled`: events in all, those in flight included.
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
    fn engines_of_one_topic_add_up() {
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
