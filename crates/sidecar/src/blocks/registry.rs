//! The components of a block by name: looked up without a lock, changed while calls are under way.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

/// How often [`Users::gone`] looks, at first and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// What a block keeps of each of its components. A call holds the entry it looked up, so a component that is
/// replaced or removed meanwhile stays whole for it.
pub struct Registry<T> {
    entries: ArcSwap<HashMap<String, Arc<T>>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self {
            entries: ArcSwap::default(),
        }
    }
}

impl<T: Send + Sync + 'static> Registry<T> {
    /// The entry of this name.
    pub fn get(&self, name: &str) -> Option<Arc<T>> {
        self.entries.load().get(name).cloned()
    }

    /// Adds an entry, in the place of one with this name. The answer tells when it is out of use.
    pub fn insert(&self, name: &str, entry: T) -> Users {
        let entry = Arc::new(entry);
        self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.insert(name.to_owned(), Arc::clone(&entry));
            entries
        });
        let users: Weak<T> = Arc::downgrade(&entry);
        Users(users)
    }

    /// Takes an entry out: calls that start now do not find it.
    pub fn remove(&self, name: &str) {
        self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.remove(name);
            entries
        });
    }

    /// Whether there is no entry at all.
    pub fn is_empty(&self) -> bool {
        self.entries.load().is_empty()
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.entries.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

/// Who uses an entry: its registry, and the calls that looked it up.
pub struct Users(Weak<dyn Any + Send + Sync>);

impl Users {
    /// Waits until nobody does, `limit` at most; false when somebody still does then.
    pub async fn gone(&self, limit: Duration) -> bool {
        let started = Instant::now();
        let mut pause = LOOK.0;
        while self.0.strong_count() > 0 {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return false;
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LOOK.1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn an_entry_lives_as_long_as_somebody_uses_it() {
        let registry = Registry::default();
        let first = registry.insert("store", 1);
        let held = registry.get("store").unwrap();
        let second = registry.insert("store", 2);
        assert_eq!((*held, registry.get("store").as_deref()), (1, Some(&2)));
        assert!(!first.gone(SHORT).await, "a call holds it");
        let waiting = tokio::spawn(async move { first.gone(LONG).await });
        drop(held);
        assert!(waiting.await.unwrap());
        assert!(!second.gone(SHORT).await, "the registry holds it");
        registry.remove("store");
        assert!(second.gone(LONG).await);
        assert!(registry.get("store").is_none() && registry.is_empty());
    }

    #[test]
    fn names_are_sorted_and_unique() {
        let registry = Registry::default();
        for name in ["b", "a", "b"] {
            registry.insert(name, ());
        }
        registry.remove("none");
        assert_eq!(registry.names(), ["a", "b"]);
    }
}
