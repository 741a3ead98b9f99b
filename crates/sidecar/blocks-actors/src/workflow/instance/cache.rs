//! The cache of instances between their turns: the histories of the most recently used ones, up to a number of bytes.

use std::collections::{BTreeMap, HashMap, HashSet};

use outrigger_telemetry::metrics::Gauge;
use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::Wait;

use super::store::Loaded;

/// Bytes of the instances that stay in memory between their turns, at most. Others are read anew.
const MAX_CACHED: usize = 64 << 20;

/// Places for instances that are left beside twice as many as there are.
const SPARE: usize = 1024;

/// What is known of an instance between its turns.
#[derive(Default)]
pub(crate) struct CacheEntry {
    pub(crate) loaded: Option<Loaded>,
    /// Activities that were started and have not answered, as far as this sidecar knows.
    pub(crate) awaited: HashSet<i32>,
    /// It cannot go on before it is hosted anew.
    pub(crate) is_stalled: bool,
    /// A group commit failed: the next steps are stored alone.
    pub(crate) stores_alone: bool,
    /// Which turn was its last one, and its bytes; none while it has its turn, and where it has no history here.
    position: Option<(u64, usize)>,
}

impl CacheEntry {
    /// Whether it is kept at the end of a turn. What is stalled always is, without its history: its reminders, which come
    /// again every second, would else run its turns.
    fn stays(&mut self) -> bool {
        if self.is_stalled {
            self.loaded = None;
            return true;
        }
        let is_active = |loaded: &Loaded| !loaded.instance.is_completed();
        self.stores_alone || !self.awaited.is_empty() || self.loaded.as_ref().is_some_and(is_active)
    }
}

/// What an instance waits for.
pub(crate) struct CachedWaits {
    pub(crate) id: String,
    pub(crate) generation: u64,
    pub(crate) status: OrchestrationStatus,
    pub(crate) waits: Vec<Wait>,
}

/// The instances that live here and have no turn now.
pub(crate) struct InstanceCache {
    by_id: HashMap<String, Box<CacheEntry>>,
    /// Those with a history, the one first whose turn was longest ago.
    by_turn: BTreeMap<u64, String>,
    turns: u64,
    bytes: usize,
    most: usize,
    gauges: Gauges,
}

/// What metrics say of them.
#[derive(Default)]
pub(crate) struct Gauges {
    /// How many are stalled.
    pub(crate) stalled: Gauge,
    /// Bytes of their histories.
    pub(crate) bytes: Gauge,
}

impl Default for InstanceCache {
    fn default() -> Self {
        Self::new(MAX_CACHED)
    }
}

impl Drop for InstanceCache {
    fn drop(&mut self) {
        self.weigh(0);
        let stalled = self.by_id.values().filter(|entry| entry.is_stalled).count();
        self.gauges.stalled.add(-signed(stalled));
    }
}

/// Of what fits in memory.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl InstanceCache {
    fn new(most: usize) -> Self {
        Self {
            by_id: HashMap::new(),
            by_turn: BTreeMap::new(),
            turns: 0,
            bytes: 0,
            most,
            gauges: Gauges::default(),
        }
    }

    /// With these metrics.
    pub(crate) fn with(gauges: Gauges) -> Self {
        let mut cache = Self::default();
        cache.gauges = gauges;
        cache
    }

    /// The ids of `most` of them, the one first whose turn was longest ago; then those that are stalled.
    pub(crate) fn ids(&self, most: usize) -> Vec<String> {
        let stalled = self.by_id.iter().filter(|(_, entry)| entry.is_stalled);
        let known = self.by_turn.values().chain(stalled.map(|(id, _)| id));
        known.take(most).cloned().collect()
    }

    /// What one of them waits for.
    pub(crate) fn waits(&self, id: &str) -> Option<CachedWaits> {
        let entry = self.by_id.get(id)?;
        let id = id.to_owned();
        if entry.is_stalled {
            // Without a history: why is in the log, and told by who loads it.
            return Some(CachedWaits {
                id,
                generation: 0,
                status: OrchestrationStatus::Stalled,
                waits: vec![Wait::Fix {
                    reason: String::new(),
                    description: "it cannot go on before a worker with other code connects".to_owned(),
                }],
            });
        }
        let instance = &entry.loaded.as_ref()?.instance;
        Some(CachedWaits {
            id,
            generation: instance.generation,
            status: instance.status(),
            waits: instance.waits(),
        })
    }

    /// Their histories have so many bytes now.
    fn weigh(&mut self, bytes: usize) {
        self.gauges.bytes.add(signed(bytes) - signed(self.bytes));
        self.bytes = bytes;
    }

    /// Takes an instance out, for its turn.
    pub(crate) fn take(&mut self, id: &str) -> CacheEntry {
        let mut entry = self.by_id.remove(id).map(|entry| *entry).unwrap_or_default();
        if entry.is_stalled {
            self.gauges.stalled.add(-1);
        }
        if let Some((turn, bytes)) = entry.position.take() {
            self.by_turn.remove(&turn);
            self.weigh(self.bytes.saturating_sub(bytes));
        }
        entry
    }

    /// Puts an instance back; its turn is to be ended with [`InstanceCache::end_turn`].
    pub(crate) fn put(&mut self, id: &str, entry: CacheEntry) {
        drop(self.take(id));
        if entry.is_stalled {
            self.gauges.stalled.add(1);
        }
        self.by_id.insert(id.to_owned(), Box::new(entry));
    }

    /// Ends a turn; whether the instance is kept. Others go that had none for longest, where there is too much. That their
    /// activities are awaited is forgotten as when the sidecar ends: their results are told apart all the same.
    pub(crate) fn end_turn(&mut self, id: &str) -> bool {
        let mut entry = self.take(id);
        if !entry.stays() {
            return false;
        }
        if let Some(loaded) = &entry.loaded {
            let bytes = loaded.instance.memory();
            if bytes > self.most {
                return false;
            }
            self.turns += 1;
            self.weigh(self.bytes + bytes);
            self.by_turn.insert(self.turns, id.to_owned());
            entry.position = Some((self.turns, bytes));
        }
        self.put(id, entry);
        while self.bytes > self.most {
            let Some((_, oldest)) = self.by_turn.pop_first() else {
                break;
            };
            drop(self.take(&oldest));
        }
        true
    }

    /// Ends a turn of an instance that had none for long; whether something has to stay known of it: that it is stalled, that
    /// its activities are awaited, that its events are stored alone. Its history goes.
    pub(crate) fn on_idle(&mut self, id: &str) -> (bool, Option<Loaded>) {
        let mut entry = self.take(id);
        let history = entry.loaded.take();
        let is_needed = entry.is_stalled || entry.stores_alone || !entry.awaited.is_empty();
        if is_needed {
            self.put(id, entry);
        }
        let capacity = 2 * self.by_id.len() + SPARE;
        if self.by_id.capacity() > 2 * capacity {
            self.by_id.shrink_to(capacity);
        }
        (is_needed, history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn awaiting(id: &str) -> CacheEntry {
        CacheEntry {
            loaded: Some(Loaded::new(id)),
            awaited: HashSet::from([1]),
            ..CacheEntry::default()
        }
    }

    fn turn(cache: &mut InstanceCache, id: &str) -> bool {
        cache.put(id, awaiting(id));
        cache.end_turn(id)
    }

    fn histories(cache: &InstanceCache) -> Vec<&str> {
        cache.by_turn.values().map(String::as_str).collect()
    }

    /// Room for so many instances without events.
    fn room_for(instances: usize) -> InstanceCache {
        InstanceCache::new(instances * Loaded::new("a").instance.memory())
    }

    #[test]
    fn those_stay_that_had_a_turn_last() {
        let mut cache = room_for(2);
        for id in ["a", "b", "a", "c"] {
            let mut entry = cache.take(id);
            entry.loaded.get_or_insert_with(|| Loaded::new(id));
            entry.awaited.insert(1);
            cache.put(id, entry);
            assert!(cache.end_turn(id), "{id}");
        }
        assert_eq!(histories(&cache), ["a", "c"]);
        assert_eq!(cache.by_id.len(), 2);
        // What is stalled stays so, however many there are, and has no history.
        for id in ["s", "t", "u"] {
            let is_stalled = true;
            cache.put(
                id,
                CacheEntry {
                    is_stalled,
                    ..awaiting(id)
                },
            );
            assert!(cache.end_turn(id), "{id}");
            assert!(cache.take(id).is_stalled);
        }
        assert_eq!(histories(&cache), ["a", "c"]);
        // One that is over is not kept, and makes room.
        cache.put("a", CacheEntry::default());
        assert!(!cache.end_turn("a"));
        assert!(turn(&mut cache, "d"));
        assert_eq!(histories(&cache), ["c", "d"]);
        // One that is larger than all may be does not drive the others out.
        let mut small = room_for(1);
        small.most -= 1;
        assert!(!turn(&mut small, "e"));
        assert!(small.by_id.is_empty() && small.bytes == 0);
    }

    #[test]
    fn what_had_no_turn_for_long_leaves_nothing_but_what_cannot_be_read_anew() {
        const SLEEPERS: usize = 100 * SPARE;
        let mut cache = room_for(SLEEPERS + 2);
        for sleeper in 0..SLEEPERS {
            let id = sleeper.to_string();
            let loaded = Some(Loaded::new(&id));
            cache.put(
                &id,
                CacheEntry {
                    loaded,
                    ..CacheEntry::default()
                },
            );
            assert!(cache.end_turn(&id), "{id}");
        }
        assert!(turn(&mut cache, "awaiting"));
        cache.put(
            "stalled",
            CacheEntry {
                is_stalled: true,
                ..CacheEntry::default()
            },
        );
        for sleeper in 0..SLEEPERS {
            assert!(!cache.on_idle(&sleeper.to_string()).0);
        }
        assert!(cache.on_idle("awaiting").0 && cache.on_idle("stalled").0);
        assert_eq!((cache.by_id.len(), cache.by_turn.len(), cache.bytes), (2, 0, 0));
        assert!(
            cache.by_id.capacity() < SLEEPERS / 10,
            "{}",
            cache.by_id.capacity()
        );
        let awaiting = cache.take("awaiting");
        assert!(awaiting.loaded.is_none() && awaiting.awaited.contains(&1));
        assert!(cache.take("stalled").is_stalled);
    }

    #[test]
    fn sleepers_do_not_have_running_instances_read_anew() {
        const SLEEPERS: usize = 10_000;
        let mut cache = room_for(100);
        let chains = ["one", "two", "three"];
        for chain in chains {
            assert!(turn(&mut cache, chain));
        }
        for sleeper in 0..SLEEPERS {
            assert!(turn(&mut cache, &sleeper.to_string()));
            let chain = chains[sleeper % chains.len()];
            let entry = cache.take(chain);
            assert!(entry.loaded.is_some(), "{chain} after {sleeper}");
            cache.put(chain, entry);
            assert!(cache.end_turn(chain));
            assert!(cache.bytes <= cache.most);
        }
        // Nothing is left of those that went.
        assert_eq!((cache.by_id.len(), cache.by_turn.len()), (100, 100));
    }
}
