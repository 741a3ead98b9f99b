//! The performance targets: ratios to peers in the same run, and absolute limits.

use super::ProtocolResults;
use super::number::short;
use super::ratios::{
    ADDED_MEAN, ADDED_P50, ADDED_P99, CPU, CPU_ADDED, CPU_SATURATED, FIRST_CALL, Figure, MEMORY_IDLE,
    MEMORY_LOADED, THROUGHPUT,
};
use crate::plan::{Protocol, Store, System};

/// A limit on a figure of Outrigger.
pub(super) struct Target(&'static Figure, Limit);

#[derive(Clone, Copy)]
enum Limit {
    /// A multiple of a peer's figure: a maximum, or a minimum if larger is better.
    Ratio(System, f64),
    /// A maximum in the figure's unit.
    Most(f64),
}

use Limit::{Most, Ratio};
use System::{Nginx, Reference};

/// The targets of a protocol.
pub(super) fn of(protocol: Protocol) -> &'static [Target] {
    match protocol.state().map(|call| call.store) {
        None => INVOCATION,
        Some(Store::Memory) => MEMORY,
        Some(Store::Redis | Store::Postgres) => SERVER,
    }
}

/// State in memory: the sidecar does all the work.
const MEMORY: &[Target] = &[
    Target(&CPU, Ratio(Reference, 0.30)),
    Target(&CPU_SATURATED, Ratio(Reference, 0.15)),
    Target(&THROUGHPUT, Ratio(Reference, 5.0)),
];

/// State in a server: the sidecar's overhead over the driver's call.
const SERVER: &[Target] = &[
    Target(&CPU_ADDED, Ratio(Reference, 0.4)),
    Target(&ADDED_MEAN, Ratio(Reference, 0.4)),
    Target(&ADDED_P50, Ratio(Reference, 0.4)),
];

/// Targets relative to nginx apply to HTTP.
const INVOCATION: &[Target] = &[
    Target(&CPU, Ratio(Reference, 0.25)),
    Target(&CPU, Ratio(Nginx, 1.5)),
    Target(&CPU_SATURATED, Ratio(Reference, 0.12)),
    Target(&CPU_SATURATED, Ratio(Nginx, 1.5)),
    Target(&ADDED_MEAN, Ratio(Reference, 0.20)),
    Target(&ADDED_MEAN, Ratio(Nginx, 1.5)),
    Target(&ADDED_P50, Ratio(Reference, 0.20)),
    Target(&ADDED_P50, Ratio(Nginx, 1.5)),
    Target(&ADDED_P99, Ratio(Reference, 0.25)),
    Target(&THROUGHPUT, Ratio(Reference, 5.0)),
    Target(&THROUGHPUT, Ratio(Nginx, 0.8)),
    Target(&MEMORY_IDLE, Most(10.0)),
    Target(&MEMORY_LOADED, Most(20.0)),
    Target(&FIRST_CALL, Ratio(Reference, 0.1)),
];

impl Target {
    /// The cells of a table: figure, target, measured value, verdict. `None` if the figure or the peer was
    /// not measured.
    pub(super) fn row(&self, found: &ProtocolResults) -> Option<Vec<String>> {
        let measured = match self.1 {
            Ratio(Nginx, _) if found.protocol != Protocol::Http => None,
            Ratio(peer, _) => self.0.ratio(found, peer),
            Most(_) => self.0.of(found, System::Outrigger),
        }?;
        let met = if self.met(measured) { "met" } else { "missed" };
        Some(vec![
            self.0.name.to_owned(),
            self.wording(),
            short(measured),
            met.to_owned(),
        ])
    }

    fn met(&self, measured: f64) -> bool {
        match self.1 {
            Ratio(_, limit) if self.0.more_is_better => measured >= limit,
            Ratio(_, limit) | Most(limit) => measured <= limit,
        }
    }

    fn wording(&self) -> String {
        match self.1 {
            Ratio(peer, limit) => {
                let bound = if self.0.more_is_better { "least" } else { "most" };
                format!("at {bound} {} times that of {}", short(limit), peer.title())
            }
            Most(limit) => format!("at most {} {}", short(limit), self.0.unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{INVOCATION, MEMORY, SERVER};

    #[test]
    fn targets_respect_figure_direction() {
        for target in INVOCATION.iter().chain(MEMORY).chain(SERVER) {
            let figure = target.0;
            assert_eq!(target.wording().starts_with("at least"), figure.more_is_better);
            assert_eq!(target.met(f64::MAX), figure.more_is_better, "{}", figure.name);
        }
    }
}
