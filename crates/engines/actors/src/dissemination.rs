//! The three phases of a table dissemination: `lock`, `update`, `unlock`. Each order carries the version of
//! the dissemination, and the host acknowledges each one. [`Dissemination`] returns the next action.

use std::time::{Duration, Instant};

/// Default of the maximum time between `lock` and `update`.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// An order of the placement service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A new table follows.
    Lock,
    /// Install the new table; actors that it moves start at the unlock.
    Update,
    /// Start the actors that moved here.
    Unlock,
}

impl Order {
    /// Parses the wire name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "lock" => Some(Self::Lock),
            "update" => Some(Self::Update),
            "unlock" => Some(Self::Unlock),
            _ => None,
        }
    }
}

/// The action that an order requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the order belongs to an earlier dissemination.
    Ignore,
    /// Answer `LOCK` with this version.
    Await(u64),
    /// Install the new table, deactivate the actors that moved, and answer `UPDATE` with this version.
    Install(u64),
    /// Start actors that moved here, and answer `UNLOCK` with this version.
    Open(u64),
    /// The stream is out of step: reconnect.
    Reconnect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No dissemination in progress.
    Idle,
    /// The new table is on its way.
    Locked,
    /// The new table is installed.
    Updated,
}

/// The disseminations of one stream.
#[derive(Debug)]
pub struct Dissemination {
    timeout: Duration,
    version: u64,
    phase: Phase,
    deadline: Option<Instant>,
}

impl Dissemination {
    /// A stream without a dissemination. `timeout`: maximum time between `lock` and `update`.
    pub fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            version: 0,
            phase: Phase::Idle,
            deadline: None,
        }
    }

    /// Handles an order of the dissemination `version`.
    pub fn order(&mut self, order: Order, version: u64, now: Instant) -> Step {
        match order {
            Order::Lock => {
                self.version = version;
                self.deadline = now.checked_add(self.timeout);
                self.phase = Phase::Locked;
                Step::Await(version)
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

    /// Version of the last order.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether no dissemination is in progress.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// When to drop the stream because `update` did not arrive.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dissemination_has_three_answers() {
        let (mut dissemination, now) = (Dissemination::new(TIMEOUT), Instant::now());
        assert_eq!(dissemination.order(Order::Lock, 3, now), Step::Await(3));
        assert_eq!(dissemination.deadline(), Some(now + TIMEOUT));
        assert_eq!(dissemination.order(Order::Update, 3, now), Step::Install(3));
        assert_eq!(dissemination.deadline(), None);
        assert!(!dissemination.is_over());
        assert_eq!(dissemination.order(Order::Unlock, 3, now), Step::Open(3));
        assert!(dissemination.is_over());
        assert_eq!(dissemination.order(Order::Unlock, 3, now), Step::Ignore, "once");
    }

    #[test]
    fn newer_dissemination_replaces_running_one() {
        let timeout = Duration::from_secs(2);
        let (mut dissemination, now) = (Dissemination::new(timeout), Instant::now());
        dissemination.order(Order::Lock, 3, now);
        let later = now + Duration::from_secs(1);
        assert_eq!(dissemination.order(Order::Lock, 4, later), Step::Await(4));
        assert_eq!(dissemination.deadline(), Some(later + timeout));
        assert_eq!(dissemination.version(), 4);
        assert_eq!(dissemination.order(Order::Update, 4, later), Step::Install(4));
        assert_eq!(dissemination.order(Order::Lock, 5, later), Step::Await(5));
        assert_eq!(
            dissemination.order(Order::Unlock, 4, later),
            Step::Ignore,
            "a new lock invalidates the old unlock"
        );
        assert_eq!(dissemination.order(Order::Update, 4, later), Step::Reconnect);
    }

    #[test]
    fn parses_wire_names() {
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
