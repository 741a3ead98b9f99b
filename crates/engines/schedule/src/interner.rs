//! Interning of values shared by many jobs.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Minimum number of values before the first scan for unused ones.
const MIN_ENTRIES: usize = 64;

/// Interned values by key. Unused values are dropped before they outnumber the used ones (or a small
/// minimum), so the map never exceeds twice the values in use.
#[derive(Debug)]
pub struct Interner<K, V> {
    values: HashMap<K, Arc<V>>,
    sweep_at: usize,
}

impl<K, V> Default for Interner<K, V> {
    fn default() -> Self {
        Self {
            values: HashMap::new(),
            sweep_at: MIN_ENTRIES,
        }
    }
}

impl<K: Eq + Hash, V> Interner<K, V> {
    /// The value of `key`, created by `make` if absent.
    ///
    /// # Errors
    /// Those of `make`; nothing is stored then.
    pub fn get<E>(&mut self, key: K, make: impl FnOnce(&K) -> Result<V, E>) -> Result<Arc<V>, E> {
        if let Some(value) = self.values.get(&key) {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(make(&key)?);
        if self.values.len() >= self.sweep_at {
            self.values.retain(|_, value| Arc::strong_count(value) > 1);
            self.values.shrink_to(self.values.len() * 2);
            self.sweep_at = (self.values.len() * 2).max(MIN_ENTRIES);
        }
        self.values.insert(key, Arc::clone(&value));
        Ok(value)
    }

    /// Number of values held.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn get(shared: &mut Interner<usize, usize>, key: usize) -> Arc<usize> {
        let made: Result<_, Infallible> = shared.get(key, |key| Ok(*key));
        made.unwrap()
    }

    #[test]
    fn shares_equal_values() {
        let mut shared = Interner::default();
        let (one, again, other) = (get(&mut shared, 1), get(&mut shared, 1), get(&mut shared, 2));
        assert!(Arc::ptr_eq(&one, &again) && !Arc::ptr_eq(&one, &other));
        assert_eq!(shared.get(3, |_| Err("no")), Err("no"));
        assert_eq!(shared.len(), 2, "what could not be made is not kept");
    }

    #[test]
    fn drops_only_unused_values() {
        let mut shared = Interner::default();
        let used: Vec<_> = (0..100).map(|key| get(&mut shared, key)).collect();
        for key in 100..100_000 {
            get(&mut shared, key);
            assert!(shared.len() <= 2 * used.len() + MIN_ENTRIES);
        }
        for (key, value) in used.iter().enumerate() {
            assert!(Arc::ptr_eq(value, &get(&mut shared, key)), "{key}");
        }
    }
}
