//! The charts: those of Dapr's published report, and what that one lacks.

use super::bars::{Bars, Series};
use super::figure::Figure;
use super::number;
use super::{ProtocolResults, Results};
use crate::plan::System;

mod compared;
mod drawn;

use compared::{COMPARED, Compared, Load};

/// Every chart of a protocol, by the name of its file. One without data is left out.
pub(super) fn all(results: &Results, found: &ProtocolResults) -> Vec<(&'static str, Figure)> {
    let page = Page { results, found };
    let mut charts: Vec<_> = COMPARED
        .iter()
        .filter_map(|chart| Some((chart.file, page.compared(chart)?)))
        .collect();
    charts.extend(page.drawn());
    if found.protocol.state().is_some() {
        charts.retain(|(file, _)| OF_STATE.contains(file));
    }
    charts
}

/// What is worth a chart where there are a dozen kinds of call; what compares them has charts of its own.
const OF_STATE: &[&str] = &[
    "summary",
    "tail_latency",
    "memory",
    "cpu",
    "histogram_percent",
    "duration_breakdown",
    "saturation_curve",
    "payload_sweep",
    "connection_sweep",
    "side_by_side",
];

struct Page<'a> {
    results: &'a Results,
    found: &'a ProtocolResults,
}

impl Page<'_> {
    fn title(&self, title: &str) -> String {
        format!("{title}: {}", self.found.protocol.title())
    }

    /// The load behind a chart, in words.
    fn load(&self, load: Load) -> String {
        let plan = &self.results.plan;
        let (payload, connections) = (number::bytes(plan.payload), plan.connections);
        match load {
            Load::Rate => format!(
                "{payload}, {connections} connections, {} requests/s, {} rounds of {} requests",
                number::tick(plan.qps),
                plan.rounds,
                number::tick(plan.requests as f64)
            ),
            Load::Full => format!("{payload}, {connections} connections, as fast as answers come"),
            Load::Start if self.found.protocol.state().is_some() => "median".to_owned(),
            Load::Start => "mTLS on, CA and callee running; median".to_owned(),
        }
    }

    /// Bars of all systems side by side; none when no system has a value.
    fn compared(&self, chart: &Compared) -> Option<Figure> {
        let series = self.found.systems.iter().map(|system| Series {
            name: system.system.title().to_owned(),
            colour: colour(system.system),
            values: chart.categories.iter().map(|(_, read)| read(system)).collect(),
        });
        // One without any value, as the direct call's memory, would only widen the groups.
        let series: Vec<_> = series
            .filter(|series| series.values.iter().any(Option::is_some))
            .collect();
        let bars = Bars {
            title: self.title(chart.title),
            subtitle: self.load(chart.load),
            label: chart.label.to_owned(),
            categories: chart
                .categories
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect(),
            series,
            kind: chart.kind,
            from: None,
        };
        (!bars.series.is_empty()).then(|| bars.grouped())
    }
}

pub(super) fn colour(system: System) -> &'static str {
    match system {
        System::Direct => "#9aa5b1",
        System::Outrigger => "#0b7a75",
        System::Reference => "#d9822b",
        System::Envoy => "#b5367a",
        System::Nginx => "#5b5bd6",
    }
}
