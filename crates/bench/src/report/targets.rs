//! What this project wants to reach: ratios to peers in the same run, and limits of its own.

use super::ProtocolResults;
use super::number::short;
use super::ratios::FIGURES;
use crate::plan::{Protocol, System};

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

/// Those against nginx hold for HTTP.
pub(super) const TARGETS: &[Target] = &[
    target(0, Ratio(Reference, 0.25)),
    target(0, Ratio(Nginx, 1.5)),
    target(1, Ratio(Reference, 0.12)),
    target(1, Ratio(Nginx, 1.5)),
    target(2, Ratio(Reference, 0.20)),
    target(2, Ratio(Nginx, 1.5)),
    target(3, Ratio(Reference, 0.20)),
    target(3, Ratio(Nginx, 1.5)),
    target(4, Ratio(Reference, 0.25)),
    target(5, Ratio(Reference, 5.0)),
    target(5, Ratio(Nginx, 0.8)),
    target(7, Most(10.0)),
    target(8, Most(20.0)),
    target(12, Ratio(Reference, 0.1)),
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
    use super::{FIGURES, TARGETS};

    #[test]
    fn targets_name_figures_and_know_their_direction() {
        for target in TARGETS {
            let figure = &FIGURES[target.figure];
            assert_eq!(target.wording().starts_with("at least"), figure.more_is_better);
            assert_eq!(target.met(f64::MAX), figure.more_is_better, "{}", figure.name);
        }
        assert_eq!(FIGURES[12].name, "start to first answered call");
        assert_eq!(FIGURES[8].name, "resident memory per hop, at the fixed rate");
    }
}
