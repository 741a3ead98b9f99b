//! Ordering keys with rejected messages. No I/O.

use std::collections::HashMap;

use super::{OrderingKey, Settlement};

/// The engine's messages of each key, by receipt number.
///
/// When a message is rejected with its key, the broker is notified only after the engine has settled all
/// messages of the key. Notified one by one, the broker would redeliver later messages before earlier ones.
#[derive(Debug, Default)]
pub(super) struct Keys {
    of: HashMap<u64, OrderingKey>,
    states: HashMap<OrderingKey, State>,
}

#[derive(Debug, Default)]
struct State {
    /// Messages held by the engine.
    out: usize,
    /// Settlements to report once the engine holds none.
    returned: Vec<(u64, Settlement)>,
    is_returning: bool,
}

/// When to report a settlement to the adapter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notify {
    /// Immediately.
    Now,
    /// Together with the rest of the key.
    Later,
    /// Now, with these in key order; the key is open again afterwards.
    All(Vec<(u64, Settlement)>, OrderingKey),
}

impl Keys {
    /// Records an offered message. `false` if its key is being returned: the engine must not get it.
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

    /// Records a settlement by the engine.
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
    fn returns_key_whole_and_in_order() {
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
