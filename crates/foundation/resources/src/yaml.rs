//! YAML as Go's loaders read it, with line numbers.
//!
//! Text becomes a tree of [`Node`]s (budgeted: size, depth, aliases), the tree becomes typed values
//! through serde. Scalars keep their text until a type asks for them, so that `value: 0644` or
//! `enabled: yes` mean what they mean to the tools users already have.

mod decode;
mod every;
mod parse;
mod scalar;

pub(crate) use decode::{Decoded, decode};
pub(crate) use every::{decode_every, decode_usable};
pub(crate) use parse::{from_json, parse};
pub(crate) use scalar::{Resolved, Scalar};

/// Which of Go's two YAML readers to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// Resources: YAML turned into JSON first. `yes` is a boolean everywhere, and a number or boolean
    /// given for a text becomes its canonical form (`0x10` reads `16`). Keys match in any case.
    Json,
    /// Configuration files: a text keeps the letters of the file, `yes` is a boolean only for booleans.
    Text,
}

/// A value and the line it starts on (1-based; 0 when it did not come from text).
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

    /// The value of a key, in any case as Go's JSON reader takes it; the last one when it is repeated.
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

    /// The keys and values of a mapping; nothing of anything else.
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

/// What is wrong with a document and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub(crate) struct Error {
    /// 1-based; 0 = unknown.
    pub(crate) line: usize,
    /// Keys from the top of the document, as `spec.metadata[0].name`; empty for syntax errors.
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
