//! The phases in which placement brings a new table: `lock`, `update`, `unlock`, each with the number of its round, and
//! each answered. What has to be done comes out as a value; the caller tells when it is done.

use std::time::{Duration, Instant};

/// Between `lock` and `update` at most.
pub const UPDATE_TIMEOUT: Duration = Duration::from_secs(5);

/// An order of the placement service: a step of a dissemination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Begin no calls; those that run come to an end.
    Lock,
    /// The new table, to be used from the unlock on.
    Update,
    /// Go on.
    Unlock,
}

impl Order {
    /// By the name that it has on the wire.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "lock" => Some(Self::Lock),
            "update" => Some(Self::Update),
            "unlock" => Some(Self::Unlock),
            _ => None,
        }
    }
}

/// What to do about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is of a round that is over.
    Ignore,
    /// Let no call begin, end those that run, and then ask [`Dissemination::drained`].
    Drain,
    /// Take the new table, halt what moved, and answer `UPDATE` with the round's number.
    Install(u64),
    /// Let calls begin, and answer `UNLOCK` with the round's number.
    Open(u64),
    /// The stream is of no use any more: connect again.
    Reconnect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No round is under way.
    Idle,
    /// Calls that run come to an end.
    Draining,
    /// None runs.
    Locked,
    /// The table is there.
    Updated,
}

/// The rounds of one stream.
#[derive(Debug)]
pub struct Dissemination {
    version: u64,
    phase: Phase,
    deadline: Option<Instant>,
}

impl Default for Dissemination {
    fn default() -> Self {
        Self {
            version: 0,
            phase: Phase::Idle,
            deadline: None,
        }
    }
}

impl Dissemination {
    /// Takes an order of the round `version`.
    pub fn order(&mut self, order: Order, version: u64, now: Instant) -> Step {
        match order {
            Order::Lock => {
                self.version = version;
                self.deadline = Some(now + UPDATE_TIMEOUT);
                self.phase = Phase::Draining;
                Step::Drain
            }
            Order::Update if self.version > version => Step::Reconnect,
            Order::Update => {
                self.version = version;
                self.deadline = None;
                self.phase = Phase::Updated;
                Step::Install(version)
            }
            Order::Unlock if self.phase != Phase::Updated || self.version > version => Step::Ignore,
            Order::Unlock => {
                self.phase = Phase::Idle;
                Step::Open(version)
            }
        }
    }

    /// No call runs any more: the round to answer `LOCK` with, if it is still in that phase.
    pub fn drained(&mut self) -> Option<u64> {
        (self.phase == Phase::Draining).then(|| {
            self.phase = Phase::Locked;
            self.version
        })
    }

    /// Whether no round is under way.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// When the stream is given up, because `update` did not come.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_three_answers() {
        let (mut dissemination, now) = (Dissemination::default(), Instant::now());
        assert_eq!(dissemination.order(Order::Lock, 3, now), Step::Drain);
        assert_eq!(dissemination.deadline(), Some(now + UPDATE_TIMEOUT));
        assert_eq!(dissemination.drained(), Some(3));
        assert_eq!(dissemination.drained(), None, "once");
        assert_eq!(dissemination.order(Order::Update, 3, now), Step::Install(3));
        assert_eq!(dissemination.deadline(), None);
        assert!(!dissemination.is_over());
        assert_eq!(dissemination.order(Order::Unlock, 3, now), Step::Open(3));
        assert!(dissemination.is_over());
        assert_eq!(dissemination.order(Order::Unlock, 3, now), Step::Ignore, "once");
    }

    #[test]
    fn a_newer_round_takes_the_place_of_one_under_way() {
        let (mut dissemination, now) = (Dissemination::default(), Instant::now());
        dissemination.order(Order::Lock, 3, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(dissemination.order(Order::Lock, 4, later), Step::Drain);
        assert_eq!(dissemination.deadline(), Some(later + UPDATE_TIMEOUT));
        assert_eq!(dissemination.drained(), Some(4), "one answer, to the newer");
        assert_eq!(dissemination.order(Order::Update, 4, later), Step::Install(4));
        assert_eq!(dissemination.order(Order::Lock, 5, later), Step::Drain);
        assert_eq!(
            dissemination.order(Order::Unlock, 4, later),
            Step::Ignore,
            "what is locked again is not opened"
        );
        assert_eq!(dissemination.order(Order::Update, 4, later), Step::Reconnect);
    }

    #[test]
    fn names_are_those_of_the_wire() {
        let named = ["lock", "update", "unlock", "LOCK", ""].map(Order::named);
        let expected = [
            Some(Order::Lock),
            Some(Order::Update),
            Some(Order::Unlock),
            None,
            None,
        ];
        assert_eq!(named, expected);
    }
}
