//! The policies of a sidecar, which can be replaced as a whole while calls are in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use outrigger_policy::resiliency::{ComponentKind, Direction, Policy, Resiliency};

/// All policies. A call looks up its policy without a lock and keeps it until it ends.
pub struct Policies {
    current: ArcSwap<Resiliency>,
    /// The policies kept for components, in the order of lookup: the first one creates the breaker of a
    /// component.
    kept: Mutex<Vec<Weak<Kept>>>,
}

/// The current policy of a component in one direction.
pub struct ComponentPolicy(Arc<Kept>);

struct Kept {
    name: String,
    kind: ComponentKind,
    direction: Direction,
    policy: ArcSwapOption<Policy>,
}

impl ComponentPolicy {
    /// The policy of a call that starts now; `None`: one attempt without policy.
    #[inline]
    pub fn current(&self) -> Option<Arc<Policy>> {
        self.0.policy.load_full()
    }
}

impl Policies {
    /// Starts with `policies`, which can be replaced.
    pub fn new(policies: Resiliency) -> Self {
        Self {
            current: ArcSwap::from_pointee(policies),
            kept: Mutex::default(),
        }
    }

    /// The current policies. Take the policy that a call needs and drop the guard before waiting.
    #[inline]
    pub fn load(&self) -> Guard<Arc<Resiliency>> {
        self.current.load()
    }

    /// The policy of a component, which follows changes. Call this when the component is loaded.
    pub fn component(&self, name: &str, kind: ComponentKind, direction: Direction) -> ComponentPolicy {
        let mut kept = self.kept();
        let policy = self.current.load().component(name, kind, direction);
        let new = Arc::new(Kept {
            name: name.to_owned(),
            kind,
            direction,
            policy: ArcSwapOption::from(policy),
        });
        if kept.len() == kept.capacity() {
            kept.retain(|kept| kept.strong_count() > 0);
        }
        kept.push(Arc::downgrade(&new));
        ComponentPolicy(new)
    }

    /// Replaces all policies. Calls in flight keep theirs.
    pub fn replace(&self, policies: Resiliency) {
        let mut kept = self.kept();
        kept.retain(|kept| kept.strong_count() > 0);
        for kept in kept.iter().filter_map(Weak::upgrade) {
            let policy = policies.component(&kept.name, kept.kind, kept.direction);
            kept.policy.store(policy);
        }
        self.current.store(Arc::new(policies));
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Weak<Kept>>> {
        // A poisoned lock is safe: each statement leaves the list consistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outrigger_resources::load;

    use super::*;

    fn policies(timeout: &str) -> Resiliency {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    timeouts: {{t: \
             {timeout}}}\n  targets:\n    apps:\n      app: {{timeout: t}}\n    components:\n      store: {{outbound: \
             {{timeout: t}}}}\n"
        );
        Resiliency::build(&load::text(&yaml, "me").unwrap().resiliency, "me").0
    }

    fn timeout(policy: Option<&Policy>) -> Option<Duration> {
        policy.and_then(Policy::timeout)
    }

    #[test]
    fn component_policies_follow_changes() {
        let all = Policies::new(Resiliency::none());
        let direction = Direction::Outbound;
        let store = all.component("store", ComponentKind::Statestore, direction);
        let other = all.component("other", ComponentKind::Statestore, direction);
        assert!(store.current().is_none());
        let second = Some(Duration::from_secs(1));
        all.replace(policies("1s"));
        let begun = (store.current(), all.load().app("app").policy);
        assert_eq!(timeout(begun.0.as_deref()), second);
        assert_eq!(timeout(begun.1.as_deref()), second);
        assert!(other.current().is_none());

        all.replace(policies("2s"));
        assert_eq!(timeout(store.current().as_deref()), Some(Duration::from_secs(2)));
        assert_eq!(timeout(begun.0.as_deref()), second);
        assert_eq!(timeout(begun.1.as_deref()), second);
        all.replace(Resiliency::none());
        assert!(store.current().is_none() && all.load().app("app").policy.is_none());
    }

    #[test]
    fn forgets_removed_components() {
        let all = Policies::new(Resiliency::none());
        let stays = all.component("stays", ComponentKind::Lock, Direction::Outbound);
        for _ in 0..1000 {
            drop(all.component("gone", ComponentKind::Lock, Direction::Outbound));
        }
        assert!(all.kept().len() <= 8, "{}", all.kept().len());
        all.replace(Resiliency::none());
        assert_eq!(all.kept().len(), 1);
        drop(stays);
    }
}
