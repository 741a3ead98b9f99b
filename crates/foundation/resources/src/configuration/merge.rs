//! Merging of documents.

use crate::yaml::{Kind, Node};

/// Merges `upper` over `base`: mappings by key, other values as a whole. A null changes nothing.
pub(super) fn merge_into(base: &mut Node, upper: Node) {
    merge(base, upper, &mut Vec::new());
}

fn merge(base: &mut Node, upper: Node, path: &mut Vec<String>) {
    if upper.is_null() {
        return;
    }
    // The one free-form value belongs to a resolver as a whole: keys for another resolver must not remain.
    let free = *path == ["spec", "nameResolution", "configuration"];
    let line = upper.line;
    match (&mut base.kind, upper.kind) {
        (Kind::Map(below), Kind::Map(above)) if !free => {
            for entry in above {
                match below.iter_mut().find(|b| b.key == entry.key) {
                    Some(known) => {
                        path.push(entry.key.text);
                        merge(&mut known.value, entry.value, path);
                        path.pop();
                    }
                    None => below.push(entry),
                }
            }
        }
        (_, kind) => *base = Node { line, kind },
    }
}
