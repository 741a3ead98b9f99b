//! Lanes of which a message failed. No I/O.

use std::collections::HashMap;

use super::{Lane, Settlement};

/// What of each lane the engine has, by the numbers of receipts.
///
/// When a message is given back with its lane, the broker is not told until the engine has let go of all that it was handed of
/// that lane: told of one at a time, it would hand out later ones before earlier ones.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    of: HashMap<u64, Lane>,
    states: HashMap<Lane, State>,
}

#[derive(Debug, Default)]
struct State {
    /// With the engine.
    out: usize,
    /// What the broker has to be told once none is.
    returned: Vec<(u64, Settlement)>,
    is_returning: bool,
}

/// When the adapter hears of a settlement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notify {
    /// At once.
    Now,
    /// With the rest of its lane.
    Later,
    /// Now, with all these, in the order of the lane, which is open again then.
    All(Vec<(u64, Settlement)>, Lane),
}

impl Lanes {
    /// Notes a message that is offered. `false`: its lane is going back, and it with it; the engine is not to have it.
    pub(super) fn offered(&mut self, id: u64, lane: &Lane) -> bool {
        let state = self.states.entry(lane.clone()).or_default();
        if state.is_returning {
            state.returned.push((id, Settlement::Release));
            return false;
        }
        state.out += 1;
        self.of.insert(id, lane.clone());
        true
    }

    /// Notes what the engine says of a message.
    pub(super) fn settled(&mut self, id: u64, settlement: Settlement, with_lane: bool) -> Notify {
        let Some(lane) = self.of.remove(&id) else {
            return Notify::Now;
        };
        let Some(state) = self.states.get_mut(&lane) else {
            return Notify::Now;
        };
        state.out -= 1;
        if with_lane {
            state.is_returning = true;
            state.returned.push((id, settlement));
        }
        if state.out > 0 {
            return if with_lane { Notify::Later } else { Notify::Now };
        }
        let State {
            mut returned,
            is_returning,
            ..
        } = self.states.remove(&lane).unwrap_or_default();
        if !is_returning {
            return Notify::Now;
        }
        if !with_lane {
            returned.push((id, settlement));
        }
        returned.sort_unstable_by_key(|(id, _)| *id);
        Notify::All(returned, lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(key: &'static str) -> Lane {
        Lane {
            partition: None,
            key: Some(key.into()),
        }
    }

    #[test]
    fn a_lane_goes_back_as_a_whole_and_in_order() {
        use Settlement::{Acknowledge, Reject, Release};
        let mut lanes = Lanes::default();
        for id in 0..4 {
            assert!(lanes.offered(id, &lane("a")));
        }
        assert!(lanes.offered(4, &lane("b")));
        assert_eq!(lanes.settled(0, Acknowledge, false), Notify::Now);
        assert_eq!(lanes.settled(1, Reject, true), Notify::Later);
        assert!(!lanes.offered(5, &lane("a")), "it goes back too");
        assert!(lanes.offered(6, &lane("b")), "another lane goes on");
        assert_eq!(lanes.settled(3, Release, true), Notify::Later);
        let all = vec![(1, Reject), (2, Release), (3, Release), (5, Release)];
        assert_eq!(lanes.settled(2, Release, true), Notify::All(all, lane("a")));
        assert!(lanes.offered(7, &lane("a")));
        for id in [4, 6, 7] {
            assert_eq!(lanes.settled(id, Acknowledge, false), Notify::Now);
        }
        assert!(lanes.states.is_empty() && lanes.of.is_empty());
    }
}
