//! The components of a block by name: lock-free lookups, concurrent changes.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use outrigger_backoff::Backoff;

/// Poll interval of [`Users::wait_until_released`].
const POLL_INTERVAL: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));

/// The components of a block. A call holds the entry that it looked up, so a component that is replaced or
/// removed stays valid for it.
pub struct Registry<T> {
    entries: Arc<Entries<T>>,
}

type Entries<T> = ArcSwap<HashMap<String, Arc<T>>>;

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self {
            entries: Arc::default(),
        }
    }
}

impl<T: Send + Sync + 'static> Registry<T> {
    /// The entry with this name.
    pub fn get(&self, name: &str) -> Option<Arc<T>> {
        self.entries.load().get(name).cloned()
    }

    /// Adds or replaces an entry.
    pub fn insert(&self, name: &str, entry: T) -> Registration {
        let entry = Arc::new(entry);
        self.entries.rcu(|entries| {
            let mut entries = HashMap::clone(entries);
            entries.insert(name.to_owned(), Arc::clone(&entry));
            entries
        });
        let weak = Arc::downgrade(&entry);
        let users: Weak<T> = Weak::clone(&weak);
        let (entries, name) = (Arc::clone(&self.entries), name.to_owned());
        Registration {
            users: Users(users),
            withdraw: Box::new(move || withdraw(&entries, &name, &weak)),
        }
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.load().is_empty()
    }

    /// All entries, unordered.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.entries.load().values().cloned().collect()
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.entries.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }
}

/// Removes an entry unless it has been replaced; returns whether it was removed.
fn withdraw<T>(entries: &Entries<T>, name: &str, entry: &Weak<T>) -> bool {
    let mut is_current = false;
    entries.rcu(|current| {
        let known = current.get(name);
        is_current = known.is_some_and(|known| std::ptr::eq(Arc::as_ptr(known), entry.as_ptr()));
        if !is_current {
            return Arc::clone(current);
        }
        let mut entries = HashMap::clone(current);
        entries.remove(name);
        Arc::new(entries)
    });
    is_current
}

/// A handle that removes an entry from its registry.
pub struct Registration {
    users: Users,
    withdraw: Box<dyn FnOnce() -> bool + Send>,
}

impl Registration {
    /// Also runs `more` when the entry is removed, unless it was replaced before.
    #[must_use]
    pub fn then(self, more: impl FnOnce() + Send + 'static) -> Self {
        let first = self.withdraw;
        let withdraw = move || {
            let is_out = first();
            if is_out {
                more();
            }
            is_out
        };
        Self {
            users: self.users,
            withdraw: Box::new(withdraw),
        }
    }

    /// Removes the entry, unless it has been replaced: new calls do not find it. The result allows waiting
    /// for calls in flight.
    pub fn withdraw(self) -> Users {
        (self.withdraw)();
        self.users
    }
}

/// The users of an entry: its registry, and the calls that looked it up.
pub struct Users(Weak<dyn Any + Send + Sync>);

impl Users {
    /// Waits until there are none, at most `limit`; returns false on timeout.
    pub async fn wait_until_released(&self, limit: Duration) -> bool {
        let started = Instant::now();
        let mut pauses = POLL_INTERVAL;
        while self.0.strong_count() > 0 {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return false;
            }
            tokio::time::sleep(pauses.pause().min(left)).await;
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
    async fn entry_lives_while_in_use() {
        let registry = Registry::default();
        let first = registry.insert("store", 1);
        let held = registry.get("store").unwrap();
        let second = registry.insert("store", 2);
        assert_eq!((*held, registry.get("store").as_deref()), (1, Some(&2)));
        let first = first.withdraw();
        assert_eq!(
            registry.get("store").as_deref(),
            Some(&2),
            "the entry was replaced"
        );
        assert!(!first.wait_until_released(SHORT).await, "a call holds it");
        let waiting = tokio::spawn(async move { first.wait_until_released(LONG).await });
        drop(held);
        assert!(waiting.await.unwrap());
        assert!(
            !second.users.wait_until_released(SHORT).await,
            "the registry holds it"
        );
        assert!(second.withdraw().wait_until_released(LONG).await);
        assert!(registry.get("store").is_none() && registry.is_empty());
    }

    #[test]
    fn runs_follow_up_only_if_withdrawn() {
        let registry = Registry::default();
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counting = |registration: Registration| {
            let count = Arc::clone(&count);
            registration.then(move || {
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            })
        };
        let replaced = counting(registry.insert("store", 1));
        let current = counting(registry.insert("store", 2));
        replaced.withdraw();
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 0);
        current.withdraw();
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn names_are_sorted_and_unique() {
        let registry = Registry::default();
        for name in ["b", "a", "b"] {
            registry.insert(name, ());
        }
        assert_eq!(registry.names(), ["a", "b"]);
    }
}
