//! Computes the changes between the current and the wanted components.

use outrigger_resources::Component;
use outrigger_resources::value::truthy;

use super::LOG;

/// The property of the actor state store.
const ACTOR_STATE_STORE: &str = "actorStateStore";

/// Changes in the order in which they are applied.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    /// Names of components to end.
    pub(super) ended: Vec<String>,
    /// Components to replace, then new ones.
    pub(super) put: Vec<&'a Component>,
    /// Components that may not change now.
    pub(super) refused: Vec<&'a Component>,
}

impl Changes<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.put.is_empty()
    }
}

/// Compares current and wanted components. An actor state store cannot change while the process runs.
pub(super) fn between<'a>(current: &[Component], wanted: &[&'a Component]) -> Changes<'a> {
    let mut changes = Changes::default();
    for component in current {
        let goes = wanted.iter().all(|other| other.name != component.name);
        if goes && may_change(component, None) {
            changes.ended.push(component.name.clone());
        }
    }
    let mut new = Vec::new();
    for component in wanted {
        let old = current.iter().find(|old| old.name == component.name);
        if old.is_some_and(|old| old.same_as(component)) {
            continue;
        }
        if !may_change(component, old) {
            changes.refused.push(component);
            continue;
        }
        match old {
            Some(_) => changes.put.push(component),
            None => new.push(*component),
        }
    }
    changes.put.append(&mut new);
    changes
}

fn may_change(component: &Component, old: Option<&Component>) -> bool {
    let fixed = is_actor_store(component) || old.is_some_and(is_actor_store);
    if fixed {
        tracing::error!(
            target: LOG,
            "Aborting to hot-reload a state store component that is used as an actor state store: {}",
            component.log_name()
        );
    }
    !fixed
}

/// Whether a component is configured as the actor state store.
pub(super) fn asks_for_actors(component: &Component) -> bool {
    is_actor_store(component) && component.property(ACTOR_STATE_STORE).is_some_and(truthy)
}

/// Whether a state store has the property, whatever its value.
fn is_actor_store(component: &Component) -> bool {
    let marked = |name: &str| name.eq_ignore_ascii_case(ACTOR_STATE_STORE);
    component.kind.starts_with("state.") && component.metadata.iter().any(|item| marked(&item.name))
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load::text;

    use super::*;

    fn component(name: &str, kind: &str, property: &str) -> Component {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
             version: v1\n  metadata:\n  - name: {property}\n    value: x\n"
        );
        text(&yaml, "app").unwrap().components.remove(0)
    }

    fn names(changes: &Changes<'_>) -> (Vec<String>, Vec<String>) {
        let put = changes.put.iter().map(|component| component.name.clone());
        (changes.ended.clone(), put.collect())
    }

    #[test]
    fn keeps_unchanged_components() {
        let current = ["a", "b", "c"].map(|name| component(name, "state.redis", "p"));
        let wanted = [
            component("new", "state.redis", "p"),
            component("a", "state.redis", "p"),
            component("c", "state.redis", "other"),
        ];
        let changes = between(&current, &wanted.iter().collect::<Vec<_>>());
        assert_eq!(
            names(&changes),
            (vec!["b".to_owned()], vec!["c".to_owned(), "new".to_owned()])
        );
        assert!(between(&current, &current.iter().collect::<Vec<_>>()).is_empty());
    }

    #[test]
    fn actor_store_cannot_change() {
        let store = component("s", "state.redis", "ACTORstatestore");
        let other = component("s", "pubsub.redis", "actorStateStore");
        let plain = component("s", "state.redis", "p");
        let alone = std::slice::from_ref::<Component>;
        assert!(between(&[], &[&store]).is_empty(), "it cannot come");
        assert!(between(alone(&store), &[]).is_empty(), "it cannot go");
        assert!(
            between(alone(&store), &[&other]).is_empty(),
            "the actor store cannot become another type"
        );
        assert!(
            between(alone(&plain), &[&store]).is_empty(),
            "no other store can become the actor store"
        );
        assert!(!between(&[], &[&other]).is_empty(), "only state stores count");
    }
}
