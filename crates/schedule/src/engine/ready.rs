use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Name;

/// Jobs that are due, a line per namespace; lines take turns, so that a herd in one does not hold up the others.
#[derive(Debug, Default)]
pub(super) struct Ready {
    lines: HashMap<Arc<str>, VecDeque<Name>>,
    /// Namespaces that have a line, the next one first.
    turns: VecDeque<Arc<str>>,
}

impl Ready {
    pub(super) fn push(&mut self, namespace: &Arc<str>, name: Name) {
        let line = self.lines.entry(Arc::clone(namespace)).or_default();
        if line.is_empty() {
            self.turns.push_back(Arc::clone(namespace));
        }
        line.push_back(name);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Name> {
        let namespace = self.turns.pop_front()?;
        let line = self.lines.get_mut(&namespace)?;
        let name = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        name
    }

    pub(super) fn remove(&mut self, namespace: &Arc<str>, name: &str) {
        let Some(line) = self.lines.get_mut(namespace) else {
            return;
        };
        line.retain(|other| &**other != name);
        if line.is_empty() {
            self.lines.remove(namespace);
            self.turns.retain(|other| other != namespace);
        }
    }
}
