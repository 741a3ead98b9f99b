//! Decoding that reports all errors of a document, not only the first.

use serde::de::DeserializeOwned;

use super::decode::{Decoded, decode};
use super::{Error, Flavour, Kind, Node};

/// Maximum number of errors per document.
const MAX_ERRORS: usize = 16;

/// Like [`decode`], with up to 16 errors in order of discovery.
pub(crate) fn decode_every<T: DeserializeOwned>(
    node: &Node,
    flavour: Flavour,
) -> Result<Decoded<T>, Vec<Error>> {
    match decode_usable(node, flavour) {
        (Some(decoded), errors) if errors.is_empty() => Ok(decoded),
        (_, errors) => Err(errors),
    }
}

/// Like [`decode_every`], and decodes the document with each invalid value counted as absent. `None` if
/// there are too many errors.
pub(crate) fn decode_usable<T: DeserializeOwned>(
    node: &Node,
    flavour: Flavour,
) -> (Option<Decoded<T>>, Vec<Error>) {
    let first = match decode(node, flavour) {
        Ok(decoded) => return (Some(decoded), Vec::new()),
        Err(error) => error,
    };
    // Null is always valid: replacing the invalid value by it reveals the next error.
    let mut rest = node.clone();
    let mut errors = vec![first];
    while errors
        .last()
        .is_some_and(|error| !error.path.is_empty() && empty(&mut rest, &error.path))
    {
        match decode::<T>(&rest, flavour) {
            Ok(decoded) => return (Some(decoded), errors),
            Err(error) if errors.len() < MAX_ERRORS && !errors.contains(&error) => errors.push(error),
            Err(_) => break,
        }
    }
    (None, errors)
}

/// Replaces the node at a path such as `spec.metadata[0].name` by null; false if there is none, or it was
/// null.
fn empty(node: &mut Node, path: &str) -> bool {
    if path.is_empty() {
        let had = !node.is_null();
        *node = Node::null(node.line);
        return had;
    }
    match &mut node.kind {
        Kind::Scalar(_) => false,
        Kind::Seq(items) => {
            let index = path.strip_prefix('[').and_then(|rest| rest.split_once(']'));
            let Some((index, rest)) = index else {
                return false;
            };
            let item = index.parse().ok().and_then(|index: usize| items.get_mut(index));
            item.is_some_and(|item| empty(item, rest.strip_prefix('.').unwrap_or(rest)))
        }
        // Keys may contain dots; the last of duplicates counts.
        Kind::Map(entries) => entries.iter_mut().rev().any(|entry| {
            let start = path.get(..entry.key.text.len());
            let is_it = start.is_some_and(|start| start.eq_ignore_ascii_case(&entry.key.text));
            let rest = path.get(entry.key.text.len()..).unwrap_or_default();
            let rest = match rest.strip_prefix('.') {
                Some(rest) => rest,
                None if rest.is_empty() || rest.starts_with('[') => rest,
                None => return false,
            };
            is_it && empty(&mut entry.value, rest)
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::yaml::parse;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Sample {
        max_count: i32,
        list: Vec<bool>,
        inner: BTreeMap<String, i32>,
    }

    fn warned(text: &str) -> Vec<(usize, String)> {
        let node = parse(text, 1).unwrap().unwrap();
        let errors = decode_every::<Sample>(&node, Flavour::Json).unwrap_err();
        errors
            .iter()
            .map(|error| (error.line, error.path.clone()))
            .collect()
    }

    #[test]
    fn reports_all_errors_with_lines() {
        assert_eq!(
            warned("MAXCOUNT: x\nlist:\n- maybe\n- yes\n- no!\ninner:\n  a.b: y\n  a: 1\n  c: []\n"),
            [
                (1, "MAXCOUNT".to_owned()),
                (3, "list[0]".to_owned()),
                (5, "list[2]".to_owned()),
                (7, "inner.a.b".to_owned()),
                (9, "inner.c".to_owned()),
            ]
        );
        let wrong = parse("maxCount: x\nlist: [no, maybe, true]\n", 1)
            .unwrap()
            .unwrap();
        let (rest, errors) = decode_usable::<Sample>(&wrong, Flavour::Json);
        assert_eq!(
            (rest.unwrap().value.list, errors.len()),
            (vec![false, false, true], 2)
        );
        let good = parse("maxCount: 3\n", 1).unwrap().unwrap();
        let decoded = decode_every::<Sample>(&good, Flavour::Json).unwrap();
        assert_eq!(decoded.value.max_count, 3);
    }

    #[test]
    fn bounds_number_of_errors() {
        let many = format!("list: [{}]\n", "x, ".repeat(100));
        assert_eq!(warned(&many).len(), MAX_ERRORS);
        assert_eq!(warned("5"), [(1, String::new())]);
    }
}
