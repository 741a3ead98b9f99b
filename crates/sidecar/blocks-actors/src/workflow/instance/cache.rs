//! LRU cache of instances between their turns, bounded in bytes.

use std::collections::{BTreeMap, HashMap, HashSet};

use outrigger_telemetry::metrics::Gauge;
use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_workflow::Wait;

use super::store::Loaded;

/// Maximum bytes of cached instances; others are read again.
const MAX_CACHED: usize = 64 << 20;

/// Minimum spare capacity of the table, besides twice its entries.
const SPARE: usize = 1024;

/// The state of an instance between its turns.
#[derive(Default)]
pub(crate) struct CacheEntry {
    pub(crate) loaded: Option<Loaded>,
    /// Activities started but not answered, as far as this sidecar knows.
    pub(crate) awaited: HashSet<i32>,
    /// Stalled until it is hosted anew.
    pub(crate) is_stalled: bool,
    /// A group commit failed: the next steps are stored alone.
    pub(crate) stores_alone: bool,
    /// Sequence number of the last turn and bytes; `None` during a turn or without a history.
    position: Option<(u64, usize)>,
}

impl CacheEntry {
    /// Whether to keep it after a turn. Stalled instances always stay, without their history, because their
    /// reminders would otherwise run turns every second.
    fn stays(&mut self) -> bool {
        if self.is_stalled {
            self.loaded = None;
            return true;
        }
        let is_active = |loaded: &Loaded| !loaded.instance.is_completed();
        self.stores_alone || !self.awaited.is_empty() || self.loaded.as_ref().is_some_and(is_active)
    }
}

/// Pending tasks of a cached instance.
pub(crate) struct CachedWaits {
    pub(crate) id: String,
    pub(crate) generation: u64,
    pub(crate) status: OrchestrationStatus,
    pub(crate) waits: Vec<Wait>,
}

/// The instances hosted here that are not in a turn.
pub(crate) struct InstanceCache {
    by_id: HashMap<String, Box<CacheEntry>>,
    /// Ids with a history, least recently used first.
    by_turn: BTreeMap<u64, String>,
    turns: u64,
    bytes: usize,
    most: usize,
    gauges: Gauges,
}

/// The cache's gauges.
#[derive(Default)]
pub(crate) struct Gauges {
    /// Number of stalled instances.
    pub(crate) stalled: Gauge,
    /// Bytes of cached histories.
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

/// An entry count fits.
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

    /// A cache with these gauges.
    pub(crate) fn with(gauges: Gauges) -> Self {
        let mut cache = Self::default();
        cache.gauges = gauges;
        cache
    }

    /// Up to `most` ids: least recently used first, then stalled instances.
    pub(crate) fn ids(&self, most: usize) -> Vec<String> {
        let stalled = self.by_id.iter().filter(|(_, entry)| entry.is_stalled);
        let known = self.by_turn.values().chain(stalled.map(|(id, _)| id));
        known.take(most).cloned().collect()
    }

    /// The pending tasks of an instance.
    pub(crate) fn waits(&self, id: &str) -> Option<CachedWaits> {
        let entry = self.by_id.get(id)?;
        let id = id.to_owned();
        if entry.is_stalled {
            // Without a history: the log has the reason, and so has the status API, which reads the store.
            return Some(CachedWaits {
                id,
                generation: 0,
                status: OrchestrationStatus::Stalled,
                waits: vec![Wait::Fix {
                    reason: String::new(),
                    description: "stalled until a worker with other code connects".to_owned(),
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

    /// Sets the total bytes of cached histories.
    fn weigh(&mut self, bytes: usize) {
        self.gauges.bytes.add(signed(bytes) - signed(self.bytes));
        self.bytes = bytes;
    }

    /// Takes an instance out for its turn.
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

    /// Puts an instance back; end its turn with [`InstanceCache::end_turn`].
    pub(crate) fn put(&mut self, id: &str, entry: CacheEntry) {
        drop(self.take(id));
        if entry.is_stalled {
            self.gauges.stalled.add(1);
        }
        self.by_id.insert(id.to_owned(), Box::new(entry));
    }

    /// Ends a turn and evicts the least recently used instances above the limit; returns whether this one
    /// stays. Eviction loses the awaited activities, as a restart does: their results are still recognized.
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

    /// Ends an idle instance's turn and drops its history. Returns whether an entry must stay: it is stalled,
    /// awaits activities, or stores its steps alone.
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

    /// A cache with room for this many empty instances.
    fn room_for(instances: usize) -> InstanceCache {
        InstanceCache::new(instances * Loaded::new("a").instance.memory())
    }

    #[test]
    fn keeps_most_recently_used() {
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
        // Stalled instances always stay, and have no history.
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
        // An ended instance is removed and frees its share.
        cache.put("a", CacheEntry::default());
        assert!(!cache.end_turn("a"));
        assert!(turn(&mut cache, "d"));
        assert_eq!(histories(&cache), ["c", "d"]);
        // An instance above the limit does not evict the others.
        let mut small = room_for(1);
        small.most -= 1;
        assert!(!turn(&mut small, "e"));
        assert!(small.by_id.is_empty() && small.bytes == 0);
    }

    #[test]
    fn idle_keeps_unrecoverable_state_only() {
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
    fn stalled_instances_evict_no_running_ones() {
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
        // Evicted instances leave no entry.
        assert_eq!((cache.by_id.len(), cache.by_turn.len()), (100, 100));
    }
}
