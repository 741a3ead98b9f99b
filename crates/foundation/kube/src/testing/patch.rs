//! Patches of objects.

use serde_json::Value;

/// Applies operations (RFC 6902: add, replace, remove) to an object.
///
/// # Panics
/// If an operation cannot be applied.
pub fn apply_patch(object: &mut Value, operations: &Value) {
    for operation in operations.as_array().expect("a list of operations") {
        let path = operation["path"].as_str().expect("a path");
        let (parent, last) = path.rsplit_once('/').expect("a path that begins with a slash");
        let last = last.replace("~1", "/").replace("~0", "~");
        let target = object
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("{path}: there is no {parent}"));
        let value = operation["value"].clone();
        match (operation["op"].as_str().expect("an operation"), target) {
            ("add", Value::Array(items)) if last == "-" => items.push(value),
            ("add", Value::Array(items)) => items.insert(last.parse().expect("an index"), value),
            ("add", Value::Object(fields)) => drop(fields.insert(last, value)),
            ("replace", Value::Array(items)) => items[last.parse::<usize>().expect("an index")] = value,
            ("replace", Value::Object(fields)) => {
                assert!(
                    fields.insert(last, value).is_some(),
                    "{path}: there is nothing to replace"
                );
            }
            ("remove", Value::Object(fields)) => {
                assert!(
                    fields.remove(&last).is_some(),
                    "{path}: there is nothing to remove"
                );
            }
            (other, _) => panic!("{path}: cannot {other} here"),
        }
    }
}

/// Merges a patch into an object (RFC 7396).
pub(super) fn merge(object: &mut Value, part: &Value) {
    let (Value::Object(fields), Value::Object(parts)) = (&mut *object, part) else {
        *object = part.clone();
        return;
    };
    for (name, value) in parts {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => merge(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}
