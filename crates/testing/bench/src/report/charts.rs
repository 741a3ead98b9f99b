//! The charts: those of Dapr's published report, and others.

use super::axis::Kind;
use super::figure::Figure;
use super::number::{bytes, tick};
use super::plot::{Plot, Series};
use super::{ProtocolResults, Results};

mod compared;
mod drawn;

use compared::{COMPARED, Compared, Load};

/// The charts of a protocol with their file names. Charts without data are omitted.
pub(super) fn all(results: &Results, found: &ProtocolResults) -> Vec<(&'static str, Figure)> {
    let page = Page { results, found };
    let compared = COMPARED.iter().map(|chart| (chart.file, page.compared(chart)));
    let charts = compared.chain(page.drawn());
    charts
        .filter(|(file, _)| found.protocol.state().is_none() || OF_STATE.contains(file))
        .filter_map(|(file, figure)| Some((file, figure?)))
        .collect()
}

/// The charts of a state call. There are a dozen such calls, and charts that compare them.
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
    fn plot<T>(
        &self,
        title: &str,
        subtitle: String,
        label: &'static str,
        kind: Kind,
        series: impl Iterator<Item = Series<T>>,
    ) -> Plot<T> {
        Plot {
            title: format!("{title}: {}", self.found.protocol.title()),
            subtitle,
            label,
            kind,
            series: series.collect(),
        }
    }

    /// A description of the load of a chart.
    fn load(&self, load: Load) -> String {
        let plan = &self.results.plan;
        let (payload, connections) = (bytes(plan.payload), plan.connections);
        match load {
            Load::Rate => format!(
                "{payload}, {connections} connections, {} requests/s, {} rounds of {} requests",
                tick(plan.qps),
                plan.rounds,
                tick(plan.requests as f64)
            ),
            Load::Full => format!("{payload}, {connections} connections, at full load"),
            Load::Start if self.found.protocol.state().is_some() => "median".to_owned(),
            Load::Start => "mTLS on, CA and callee running; median".to_owned(),
        }
    }

    /// Bars of all systems side by side.
    fn compared(&self, chart: &Compared) -> Option<Figure> {
        let series = self.found.systems.iter().map(|system| {
            let values = chart.categories.iter().map(|(_, read)| read(system));
            Series::of(system.system, values.collect())
        });
        let categories: Vec<_> = chart
            .categories
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        self.plot(
            chart.title,
            self.load(chart.load),
            chart.label,
            chart.kind,
            series,
        )
        .grouped(&categories, None)
    }
}
