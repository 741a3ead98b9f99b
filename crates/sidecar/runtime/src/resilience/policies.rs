//! The policies of a sidecar, which are replaced as a whole while calls run under them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use outrigger_policy::resiliency::{ComponentKind, Direction, Policy, Resiliency};

/// All policies. A call looks its own up without a lock, and keeps it until it ends.
pub struct Policies {
    current: ArcSwap<Resiliency>,
    /// What components keep, in the order in which they asked: the first one makes the breaker of a component.
    kept: Mutex<Vec<Weak<Kept>>>,
}

/// What applies to a component in one direction, as the policies are now.
pub struct ComponentPolicy(Arc<Kept>);

struct Kept {
    name: String,
    kind: ComponentKind,
    direction: Direction,
    policy: ArcSwapOption<Policy>,
}

impl ComponentPolicy {
    /// The policy that a call which begins now has; `None`: call once.
    #[inline]
    pub fn current(&self) -> Option<Arc<Policy>> {
        self.0.policy.load_full()
    }
}

impl Policies {
    /// These, until others are put in their place.
    pub fn new(policies: Resiliency) -> Self {
        Self {
            current: ArcSwap::from_pointee(policies),
            kept: Mutex::default(),
        }
    }

    /// The policies as they are now. Take what a call needs, and let go of the rest before it waits.
    #[inline]
    pub fn load(&self) -> Guard<Arc<Resiliency>> {
        self.current.load()
    }

    /// What applies to a component, now and after each change. Ask when the component is loaded.
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

    /// Puts other policies in the place of all. Calls in flight go on under those that they began with.
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
        // Whole after every statement.
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
    fn what_components_keep_follows_and_what_calls_keep_does_not() {
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
    fn components_that_are_gone_are_forgotten() {
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
