//! Ordering keys of which a message was rejected. No I/O.

use std::collections::HashMap;

use super::{OrderingKey, Settlement};

/// The messages of each key that the engine has, by the numbers of receipts.
///
/// When a message is rejected with its key, the broker hears of it once the engine has settled all messages of the key. If it
/// heard of one at a time, it would redeliver later ones before earlier ones.
#[derive(Debug, Default)]
pub(super) struct Keys {
    of: HashMap<u64, OrderingKey>,
    states: HashMap<OrderingKey, State>,
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
    /// With the rest of its key.
    Later,
    /// Now, with all these, in the order of their key, which is open again then.
    All(Vec<(u64, Settlement)>, OrderingKey),
}

impl Keys {
    /// Notes a message that is offered. `false`: its key is being returned, and the engine must not have it.
    pub(super) fn offered(&mut self, id: u64, ordering_key: &OrderingKey) -> bool {
        let state = self.states.entry(ordering_key.clone()).or_default();
        if state.is_returning {
            state.returned.push((id, Settlement::Release));
            return false;
        }
        state.out += 1;
        self.of.insert(id, ordering_key.clone());
        true
    }

    /// Notes what the engine says of a message.
    pub(super) fn settled(&mut self, id: u64, settlement: Settlement, with_key: bool) -> Notify {
        let Some(ordering_key) = self.of.remove(&id) else {
            return Notify::Now;
        };
        let Some(state) = self.states.get_mut(&ordering_key) else {
            return Notify::Now;
        };
        state.out -= 1;
        if with_key {
            state.is_returning = true;
            state.returned.push((id, settlement));
        }
        if state.out > 0 {
            return if with_key { Notify::Later } else { Notify::Now };
        }
        let State {
            mut returned,
            is_returning,
            ..
        } = self.states.remove(&ordering_key).unwrap_or_default();
        if !is_returning {
            return Notify::Now;
        }
        if !with_key {
            returned.push((id, settlement));
        }
        returned.sort_unstable_by_key(|(id, _)| *id);
        Notify::All(returned, ordering_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordering_key(key: &'static str) -> OrderingKey {
        OrderingKey {
            partition: None,
            key: Some(key.into()),
        }
    }

    #[test]
    fn a_key_goes_back_as_a_whole_and_in_order() {
        use Settlement::{Acknowledge, Reject, Release};
        let mut keys = Keys::default();
        for id in 0..4 {
            assert!(keys.offered(id, &ordering_key("a")));
        }
        assert!(keys.offered(4, &ordering_key("b")));
        assert_eq!(keys.settled(0, Acknowledge, false), Notify::Now);
        assert_eq!(keys.settled(1, Reject, true), Notify::Later);
        assert!(!keys.offered(5, &ordering_key("a")), "it goes back too");
        assert!(keys.offered(6, &ordering_key("b")), "another key goes on");
        assert_eq!(keys.settled(3, Release, true), Notify::Later);
        let all = vec![(1, Reject), (2, Release), (3, Release), (5, Release)];
        assert_eq!(
            keys.settled(2, Release, true),
            Notify::All(all, ordering_key("a"))
        );
        assert!(keys.offered(7, &ordering_key("a")));
        for id in [4, 6, 7] {
            assert_eq!(keys.settled(id, Acknowledge, false), Notify::Now);
        }
        assert!(keys.states.is_empty() && keys.of.is_empty());
    }
}
