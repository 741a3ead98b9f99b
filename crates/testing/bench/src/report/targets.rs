//! What this project wants to reach: ratios to peers in the same run, and limits of its own.

use super::ProtocolResults;
use super::number::short;
use super::ratios::{self, FIGURES};
use crate::plan::{Protocol, Store, System};

/// A limit on a figure of Outrigger's.
pub(super) struct Target {
    /// Which of [`FIGURES`].
    figure: usize,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    /// At most so many times the figure of a peer, or at least where more is better.
    Ratio(System, f64),
    /// At most this, in the figure's unit.
    Most(f64),
}

use Limit::{Most, Ratio};
use System::{Nginx, Reference};

/// What a call of the protocol is held to.
pub(super) fn of(protocol: Protocol) -> &'static [Target] {
    match protocol.state().map(|call| call.store) {
        None => INVOCATION,
        Some(Store::Memory) => MEMORY,
        Some(Store::Redis | Store::Postgres) => SERVER,
    }
}

/// State in memory: the sidecar does all the work.
const MEMORY: &[Target] = &[
    target(ratios::CPU, Ratio(Reference, 0.30)),
    target(ratios::CPU_SATURATED, Ratio(Reference, 0.15)),
    target(ratios::THROUGHPUT, Ratio(Reference, 5.0)),
];

/// State in a server: what the sidecar adds to the driver's own call.
const SERVER: &[Target] = &[
    target(ratios::CPU_ADDED, Ratio(Reference, 0.4)),
    target(ratios::ADDED_MEAN, Ratio(Reference, 0.4)),
    target(ratios::ADDED_P50, Ratio(Reference, 0.4)),
];

/// Those against nginx hold for HTTP.
const INVOCATION: &[Target] = &[
    target(ratios::CPU, Ratio(Reference, 0.25)),
    target(ratios::CPU, Ratio(Nginx, 1.5)),
    target(ratios::CPU_SATURATED, Ratio(Reference, 0.12)),
    target(ratios::CPU_SATURATED, Ratio(Nginx, 1.5)),
    target(ratios::ADDED_MEAN, Ratio(Reference, 0.20)),
    target(ratios::ADDED_MEAN, Ratio(Nginx, 1.5)),
    target(ratios::ADDED_P50, Ratio(Reference, 0.20)),
    target(ratios::ADDED_P50, Ratio(Nginx, 1.5)),
    target(ratios::ADDED_P99, Ratio(Reference, 0.25)),
    target(ratios::THROUGHPUT, Ratio(Reference, 5.0)),
    target(ratios::THROUGHPUT, Ratio(Nginx, 0.8)),
    target(ratios::MEMORY_IDLE, Most(10.0)),
    target(ratios::MEMORY_LOADED, Most(20.0)),
    target(ratios::FIRST_CALL, Ratio(Reference, 0.1)),
];

const fn target(figure: usize, limit: Limit) -> Target {
    Target { figure, limit }
}

impl Target {
    /// The name of the figure, and what was measured; none when it, or the peer, was not.
    pub(super) fn measured(&self, found: &ProtocolResults) -> Option<(&'static str, f64)> {
        let figure = FIGURES.get(self.figure)?;
        let measured = match self.limit {
            Ratio(Nginx, _) if found.protocol != Protocol::Http => None,
            Ratio(peer, _) => figure.ratio(found, peer),
            Most(_) => figure.of(found, System::Outrigger),
        };
        Some((figure.name, measured?))
    }

    pub(super) fn met(&self, measured: f64) -> bool {
        match self.limit {
            Ratio(_, limit) if self.more_is_better() => measured >= limit,
            Ratio(_, limit) | Most(limit) => measured <= limit,
        }
    }

    pub(super) fn wording(&self) -> String {
        match self.limit {
            Ratio(peer, limit) => {
                let bound = if self.more_is_better() {
                    "at least"
                } else {
                    "at most"
                };
                format!("{bound} {} times that of {}", short(limit), peer.title())
            }
            Most(limit) => {
                let unit = FIGURES.get(self.figure).map_or("", |figure| figure.unit);
                format!("at most {} {unit}", short(limit))
            }
        }
    }

    fn more_is_better(&self) -> bool {
        FIGURES
            .get(self.figure)
            .is_some_and(|figure| figure.more_is_better)
    }
}

#[cfg(test)]
mod tests {
    use super::{FIGURES, INVOCATION, MEMORY, SERVER, ratios};

    #[test]
    fn targets_name_figures_and_know_their_direction() {
        for target in INVOCATION.iter().chain(MEMORY).chain(SERVER) {
            let figure = &FIGURES[target.figure];
            assert_eq!(target.wording().starts_with("at least"), figure.more_is_better);
            assert_eq!(target.met(f64::MAX), figure.more_is_better, "{}", figure.name);
        }
    }

    #[test]
    fn places_are_those_of_the_figures() {
        for (place, name) in [
            (ratios::CPU, "CPU time per call in the hops"),
            (ratios::CPU_SATURATED, "CPU time per call, saturated"),
            (ratios::ADDED_MEAN, "added latency, mean"),
            (ratios::ADDED_P50, "added latency, p50"),
            (ratios::ADDED_P99, "added latency, p99"),
            (ratios::THROUGHPUT, "calls per second, saturated"),
            (ratios::MEMORY_IDLE, "resident memory per hop, idle"),
            (
                ratios::MEMORY_LOADED,
                "resident memory per hop, at the fixed rate",
            ),
            (ratios::FIRST_CALL, "start to first answered call"),
            (
                ratios::CPU_ADDED,
                "CPU time per call added to the direct call, all processes",
            ),
            (ratios::P50, "latency, p50"),
            (ratios::P99, "latency, p99"),
        ] {
            assert_eq!(FIGURES[place].name, name);
        }
    }
}
