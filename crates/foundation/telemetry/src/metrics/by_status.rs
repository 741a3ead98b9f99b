//! Small read-mostly maps for label values known only at the end of a call.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwap;

/// Statuses cached per target. Beyond it, handles are resolved each time.
const MAX_STATUSES: usize = 64;
/// Keys cached per map, and the number of misses after which a full map is cleared.
const MAX_KEYS: usize = 256;
/// Longest cached key in bytes.
const MAX_KEY: usize = 1024;
const MISSES_BEFORE_RESET: u32 = 64 * MAX_KEYS as u32;

/// Handles of one target by status code: a lock-free read and a scan of the one to three codes in use.
pub(super) struct ByStatus<T> {
    entries: ArcSwap<Vec<(i32, T)>>,
}

impl<T> Default for ByStatus<T> {
    fn default() -> Self {
        Self {
            entries: ArcSwap::from_pointee(Vec::new()),
        }
    }
}

impl<T> fmt::Debug for ByStatus<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByStatus")
    }
}

impl<T: Clone> ByStatus<T> {
    /// Calls `record` with the status's value, which `resolve` creates the first time.
    pub(super) fn with(&self, status: i32, resolve: impl FnOnce() -> T, record: impl FnOnce(&T)) {
        if let Some((_, value)) = self.entries.load().iter().find(|(s, _)| *s == status) {
            return record(value);
        }
        let value = resolve();
        record(&value);
        self.entries.rcu(|entries| {
            let mut entries = Vec::clone(entries);
            if entries.len() < MAX_STATUSES && !entries.iter().any(|(s, _)| *s == status) {
                entries.push((status, value.clone()));
            }
            entries
        });
    }
}

/// A cache of values by text, copied as a whole on insertion. Long keys are never cached, and new keys are
/// not once it is full. Many misses clear it, which removes unused keys.
pub struct Remembered<T> {
    entries: ArcSwap<HashMap<Arc<str>, T>>,
    misses: AtomicU32,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self {
            entries: ArcSwap::from_pointee(HashMap::new()),
            misses: AtomicU32::new(0),
        }
    }
}

impl<T> fmt::Debug for Remembered<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remembered")
    }
}

impl<T: Clone> Remembered<T> {
    /// Clears the cache: values are resolved again.
    pub fn forget(&self) {
        self.entries.store(Arc::default());
    }

    /// The value of `key`; `resolve` creates it if it is not cached.
    pub(super) fn get(&self, key: &str, resolve: impl FnOnce() -> T) -> T {
        self.with(key, resolve, T::clone)
    }

    /// Calls `record` with the value of `key`; `resolve` creates it if it is not cached.
    pub fn with<R>(&self, key: &str, resolve: impl FnOnce() -> T, record: impl FnOnce(&T) -> R) -> R {
        let entries = self.entries.load();
        if let Some(value) = entries.get(key) {
            return record(value);
        }
        let value = resolve();
        let recorded = record(&value);
        if key.len() > MAX_KEY {
            return recorded;
        }
        let full = entries.len() >= MAX_KEYS;
        drop(entries);
        if !full {
            let key: Arc<str> = key.into();
            self.entries.rcu(|entries| {
                let mut entries = HashMap::clone(entries);
                entries.insert(key.clone(), value.clone());
                entries
            });
        } else if self.misses.fetch_add(1, Ordering::Relaxed) >= MISSES_BEFORE_RESET {
            self.misses.store(0, Ordering::Relaxed);
            self.entries.store(Arc::new(HashMap::new()));
        }
        recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_once_per_status() {
        let map = ByStatus::default();
        let mut resolved = 0;
        for status in [200, 404, 200, 200, 404] {
            map.with(
                status,
                || {
                    resolved += 1;
                    status
                },
                |value| assert_eq!(*value, status),
            );
        }
        assert_eq!(resolved, 2);
    }

    #[test]
    fn stays_bounded_and_clears() {
        let map = Remembered::default();
        let total = MAX_KEYS as u32 + MISSES_BEFORE_RESET + 1;
        for i in 0..total {
            assert_eq!(map.get(&i.to_string(), || i), i);
            assert!(map.entries.load().len() <= MAX_KEYS);
        }
        assert!(map.entries.load().is_empty());
    }

    #[test]
    fn long_keys_are_not_cached() {
        let map = Remembered::default();
        assert_eq!(map.get(&"a".repeat(MAX_KEY + 1), || 1), 1);
        assert!(map.entries.load().is_empty());
        assert_eq!(map.get(&"a".repeat(MAX_KEY), || 2), 2);
        assert_eq!(map.entries.load().len(), 1);
    }
}
