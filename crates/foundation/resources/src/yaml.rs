//! YAML with the semantics of Go's loaders, and line numbers.
//!
//! A text is parsed to a tree of [`Node`]s, with limits on size, depth and aliases; serde decodes the tree
//! to typed values. Scalars keep their text until a type is requested, so `value: 0644` or `enabled: yes`
//! have the same meaning as in Go's tools.

mod decode;
mod every;
mod parse;
mod scalar;

pub(crate) use decode::{Decoded, decode};
pub(crate) use every::{decode_every, decode_usable};
pub(crate) use parse::{from_json, parse};
pub(crate) use scalar::{Resolved, Scalar};

/// The Go YAML reader to imitate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Resources: YAML converted to JSON first. `yes` is always a boolean, and a number or boolean used as
    /// a text has its canonical form (`0x10` becomes `16`). Keys match in any case.
    Json,
    /// Configuration files: texts are verbatim, and `yes` is a boolean only where a boolean is expected.
    Text,
}

/// A value and its first line (1-based; 0 if it did not come from text).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Scalar(Scalar),
    Seq(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: Scalar,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

impl Node {
    pub(crate) fn null(line: usize) -> Node {
        Node {
            line,
            kind: Kind::Scalar(Scalar::plain("")),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar(s) if s.resolve(Flavour::Json) == Resolved::Null)
    }

    /// The value of a key, in any case like Go's JSON reader; the last one of duplicates.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let Kind::Map(entries) = &self.kind else {
            return None;
        };
        let last = |is_it: &dyn Fn(&str) -> bool| {
            let entry = entries.iter().rev().find(|entry| is_it(&entry.key.text));
            entry.map(|entry| &entry.value)
        };
        last(&|name| name == key).or_else(|| last(&|name| name.eq_ignore_ascii_case(key)))
    }

    /// The scalar text of a key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match &self.get(key)?.kind {
            Kind::Scalar(s) if s.resolve(Flavour::Json) != Resolved::Null => Some(&s.text),
            _ => None,
        }
    }

    /// The keys and values of a mapping; empty for other values.
    pub(crate) fn entries(&self) -> Vec<(&str, &Node)> {
        match &self.kind {
            Kind::Map(entries) => {
                let pairs = entries.iter();
                pairs
                    .map(|entry| (entry.key.text.as_str(), &entry.value))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    pub(crate) fn describe(&self) -> &'static str {
        match &self.kind {
            Kind::Scalar(_) => "a single value",
            Kind::Seq(_) => "a list",
            Kind::Map(_) => "a mapping",
        }
    }
}

/// An error in a document and its location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub(crate) struct Error {
    /// 1-based; 0 if unknown.
    pub(crate) line: usize,
    /// Path from the root, such as `spec.metadata[0].name`; empty for syntax errors.
    pub(crate) path: String,
    pub(crate) what: String,
}

impl Error {
    pub(crate) fn at(line: usize, what: impl Into<String>) -> Error {
        Error {
            line,
            path: String::new(),
            what: what.into(),
        }
    }
}
