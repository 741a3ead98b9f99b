//! Computes the changes between the current and the wanted components.

use outrigger_resources::Component;
use outrigger_resources::value::truthy;

/// The property of the actor state store.
const ACTOR_STATE_STORE: &str = "actorStateStore";

/// Changes in the order in which they are applied.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    /// Whether the current actor state store ends or loses the property. Its actors end first.
    pub(super) ends_actors: bool,
    /// Names of components to end.
    pub(super) ended: Vec<String>,
    /// Components to replace, then new ones.
    pub(super) put: Vec<&'a Component>,
    /// Changes to further actor state stores, and the name of the one.
    pub(super) refused: Vec<(&'a Component, String)>,
}

impl Changes<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty() && self.put.is_empty()
    }
}

/// Compares current and wanted components. `actor_store` is the current actor state store; the first wanted
/// one takes its place when it ends. Without `actors` there is none.
pub(super) fn between<'a>(
    current: &[Component],
    wanted: &[&'a Component],
    actor_store: Option<&str>,
    actors: bool,
) -> Changes<'a> {
    let asks = |component: &Component| actors && asks_for_actors(component);
    let mut marked = wanted.iter().filter(|component| asks(component));
    let stays = marked
        .clone()
        .any(|component| Some(component.name.as_str()) == actor_store);
    let next = match stays {
        true => actor_store,
        false => marked.next().map(|component| component.name.as_str()),
    };
    let mut changes = Changes {
        ends_actors: actor_store.is_some() && !stays,
        ..Changes::default()
    };
    let gone = current
        .iter()
        .filter(|old| wanted.iter().all(|new| new.name != old.name));
    changes.ended = gone.map(|component| component.name.clone()).collect();
    let mut new = Vec::new();
    for component in wanted {
        let old = current.iter().find(|old| old.name == component.name);
        match (old, next) {
            (Some(old), _) if old.same_as(component) => {}
            (_, Some(next)) if asks(component) && component.name != next => {
                changes.refused.push((*component, next.to_owned()));
            }
            (Some(_), _) => changes.put.push(component),
            (None, _) => new.push(*component),
        }
    }
    changes.put.append(&mut new);
    changes
}

/// Whether a component is configured as the actor state store.
pub(super) fn asks_for_actors(component: &Component) -> bool {
    component.kind.starts_with("state.") && component.property(ACTOR_STATE_STORE).is_some_and(truthy)
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load::text;

    use super::*;

    fn component(name: &str, kind: &str, property: &str) -> Component {
        valued(name, kind, property, "x")
    }

    fn valued(name: &str, kind: &str, property: &str, value: &str) -> Component {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
             version: v1\n  metadata:\n  - name: {property}\n    value: \"{value}\"\n"
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
        let changes = between(&current, &wanted.iter().collect::<Vec<_>>(), None, true);
        assert_eq!(
            names(&changes),
            (vec!["b".to_owned()], vec!["c".to_owned(), "new".to_owned()])
        );
        assert!(between(&current, &current.iter().collect::<Vec<_>>(), None, true).is_empty());
    }

    #[test]
    fn one_actor_store_at_a_time() {
        let store = |name, property| valued(name, "state.redis", property, "true");
        let (a, b, plain) = (
            store("a", "actorStateStore"),
            store("b", "ACTORstatestore"),
            store("b", "p"),
        );
        let changes = between(&[], &[&a, &b], None, true);
        assert_eq!(
            (names(&changes).1, changes.refused.len()),
            (vec!["a".to_owned()], 1)
        );
        // A further one stays as it was.
        let current = [a.clone(), plain.clone()];
        let changes = between(&current, &[&b, &a], Some("a"), true);
        assert!(changes.is_empty() && !changes.ends_actors);
        assert_eq!(changes.refused[0].1, "a");
        // It takes over when the first one ends, loses the property or changes its type.
        for first in [
            None,
            Some(store("a", "p")),
            Some(valued("a", "pubsub.redis", "actorStateStore", "true")),
        ] {
            let wanted: Vec<_> = first.iter().chain([&b]).collect();
            let changes = between(&current, &wanted, Some("a"), true);
            assert!(changes.ends_actors && changes.refused.is_empty());
            assert!(changes.put.iter().any(|component| component.name == "b"));
        }
        // Another version under the same name ends no actors.
        let rotated = valued("a", "state.sqlite", "actorStateStore", "true");
        let changes = between(&current, &[&rotated, &plain], Some("a"), true);
        assert!(!changes.ends_actors && changes.put.len() == 1);
    }
}
