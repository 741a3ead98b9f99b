//! All calls of a store side by side.

use super::axis::Kind;
use super::bars::{Bars, Series};
use super::charts::colour;
use super::figure::Figure;
use super::number;
use super::ratios::{self, FIGURES};
use super::{ProtocolResults, Results};
use crate::plan::{Store, System};

/// Figures that are drawn, by file.
const DRAWN: &[(&str, usize)] = &[
    ("cpu", ratios::CPU),
    ("cpu_saturated", ratios::CPU_SATURATED),
    ("cpu_added", ratios::CPU_ADDED),
    ("latency_p50", ratios::P50),
    ("added_latency_p50", ratios::ADDED_P50),
    ("throughput", ratios::THROUGHPUT),
];

/// Where the charts are, in the folder of charts.
pub(super) fn folder(store: Store) -> String {
    format!("state-{}", store.name())
}

/// What was measured of a store.
pub(super) fn found(results: &Results, store: Store) -> Vec<&ProtocolResults> {
    let of_store = |found: &&ProtocolResults| {
        let call = found.protocol.state();
        call.is_some_and(|call| call.store == store)
    };
    results.protocols.iter().filter(of_store).collect()
}

/// A chart for each figure that was measured, by the name of its file.
pub(super) fn charts(results: &Results, store: Store) -> Vec<(&'static str, Figure)> {
    let calls = found(results, store);
    let chart = |&(file, at): &(&'static str, usize)| {
        let figure = FIGURES.get(at)?;
        let systems = [System::Direct, System::Outrigger, System::Reference];
        let series = systems.into_iter().map(|system| Series {
            name: system.title().to_owned(),
            colour: colour(system),
            values: calls.iter().map(|found| figure.of(found, system)).collect(),
        });
        let series: Vec<_> = series
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect();
        let categories = calls.iter().filter_map(|found| {
            let call = found.protocol.state()?;
            Some(format!("{} over {}", call.verb.name(), call.api.title()))
        });
        let plan = &results.plan;
        let bars = Bars {
            title: format!("State {}: {}", store.title(), figure.name),
            subtitle: format!(
                "values of {}, {} connections, {}",
                number::bytes(plan.payload),
                plan.connections,
                if figure.saturated {
                    "as fast as answers come".to_owned()
                } else {
                    format!("{} requests/s", number::tick(plan.qps))
                }
            ),
            label: figure.unit.to_owned(),
            categories: categories.collect(),
            series,
            kind: Kind::Linear,
            from: None,
        };
        (!bars.series.is_empty()).then(|| (file, bars.grouped()))
    };
    DRAWN.iter().filter_map(chart).collect()
}
