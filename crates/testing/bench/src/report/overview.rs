//! All calls of a store side by side.

use super::axis::Kind;
use super::number::{bytes, tick};
use super::plot::{Plot, Series};
use super::{ProtocolResults, Results, figure, ratios};
use crate::plan::{Store, System};

/// The charts by file.
const DRAWN: &[(&str, ratios::Figure)] = &[
    ("cpu", ratios::CPU),
    ("cpu_saturated", ratios::CPU_SATURATED),
    ("cpu_added", ratios::CPU_ADDED),
    ("latency_p50", ratios::P50),
    ("added_latency_p50", ratios::ADDED_P50),
    ("throughput", ratios::THROUGHPUT),
];

/// Subdirectory of a store's charts.
pub(super) fn folder(store: Store) -> String {
    format!("state-{}", store.name())
}

/// A chart for each measured figure, with its file name.
pub(super) fn charts(results: &Results, store: Store) -> Vec<(&'static str, figure::Figure)> {
    let plan = &results.plan;
    let (calls, categories): (Vec<&ProtocolResults>, Vec<String>) = results
        .protocols
        .iter()
        .filter_map(|found| Some((found, found.protocol.state()?)))
        .filter(|(_, call)| call.store == store)
        .map(|(found, call)| (found, format!("{} over {}", call.verb.name(), call.api.title())))
        .unzip();
    let chart = |(file, figure): &(&'static str, ratios::Figure)| {
        let systems = [System::Direct, System::Outrigger, System::Reference];
        let series = systems.map(|system| {
            let values = calls.iter().map(|found| figure.of(found, system));
            Series::of(system, values.collect())
        });
        let load = if figure.saturated {
            "at full load".to_owned()
        } else {
            format!("{} requests/s", tick(plan.qps))
        };
        let plot = Plot {
            title: format!("State {}: {}", store.title(), figure.name),
            subtitle: format!(
                "values of {}, {} connections, {load}",
                bytes(plan.payload),
                plan.connections
            ),
            label: figure.unit,
            kind: Kind::Linear,
            series: series.into(),
        };
        Some((*file, plot.grouped(&categories, None)?))
    };
    DRAWN.iter().filter_map(chart).collect()
}
