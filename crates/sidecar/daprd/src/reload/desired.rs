//! The desired resources of one kind, according to the source's reports so far.

use std::path::PathBuf;

use outrigger_resources::load::Resource;

use super::LOG;

/// The resources of one kind.
pub(super) struct Desired<R>(Vec<R>);

impl<R: Resource> Desired<R> {
    /// The resources present at start.
    pub(super) fn new(resources: Vec<R>) -> Self {
        Self(resources)
    }

    pub(super) fn all(&self) -> &[R] {
        &self.0
    }

    /// Applies a full list. Resources of files that are `broken` now stay desired.
    pub(super) fn list(&mut self, mut listed: Vec<R>, broken: &[PathBuf]) {
        for old in &self.0 {
            let is_listed = listed.iter().any(|resource| resource.name() == old.name());
            if !is_listed && broken.contains(&old.source().file) {
                tracing::warn!(
                    target: LOG,
                    "{} cannot be read: {} {} stays as it is",
                    old.source().file.display(),
                    R::KIND.name(),
                    old.log_name()
                );
                listed.push(old.clone());
            }
        }
        self.0 = listed;
    }

    /// Adds or replaces a resource.
    pub(super) fn put(&mut self, resource: R) {
        self.remove(resource.name());
        self.0.push(resource);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|known| known.name() != name);
    }
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load::text;
    use outrigger_resources::{Component, Source};

    use super::*;

    fn component(name: &str, file: &str) -> Component {
        let yaml = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: state.x\n"
        );
        let mut component = text(&yaml, "app").unwrap().components.remove(0);
        component.source = Source::new(file, 1);
        component
    }

    #[test]
    fn keeps_resources_of_broken_file() {
        let mut desired = Desired::new(vec![
            component("kept", "broken"),
            component("moved", "broken"),
            component("gone", "readable"),
        ]);
        desired.list(vec![component("moved", "readable")], &["broken".into()]);
        let names: Vec<_> = desired
            .all()
            .iter()
            .map(|c| (c.name.as_str(), &c.source.file))
            .collect();
        assert_eq!(names, [("moved", &"readable".into()), ("kept", &"broken".into())]);
    }
}
