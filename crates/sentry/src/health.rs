//! Whether all parts of the process are ready.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The parts that have to be ready before the process is. Complete before it is served.
#[derive(Debug, Default)]
pub(crate) struct Health {
    parts: Vec<Part>,
}

/// One part's own switch; not ready at first.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    name: &'static str,
    ready: Arc<AtomicBool>,
}

impl Health {
    /// Adds a part.
    pub(crate) fn part(&mut self, name: &'static str) -> Part {
        let part = Part {
            name,
            ready: Arc::default(),
        };
        self.parts.push(part.clone());
        part
    }

    /// Ready when there are parts and all of them are.
    pub(crate) fn is_ready(&self) -> bool {
        !self.parts.is_empty() && self.waiting().next().is_none()
    }

    /// Names of the parts that are not ready.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &'static str> {
        self.parts
            .iter()
            .filter(|part| !part.ready.load(Ordering::Acquire))
            .map(|part| part.name)
    }
}

impl Part {
    pub(crate) fn set(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_part_is() {
        let mut health = Health::default();
        assert!(!health.is_ready(), "nothing to be ready");
        let (one, two) = (health.part("one"), health.part("two"));
        one.set(true);
        assert!(!health.is_ready());
        assert_eq!(health.waiting().collect::<Vec<_>>(), ["two"]);
        two.set(true);
        assert!(health.is_ready());
        one.set(false);
        assert!(!health.is_ready());
    }
}
