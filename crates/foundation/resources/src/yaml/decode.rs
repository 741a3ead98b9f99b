//! Decoding of a tree to typed values through serde.
//!
//! As in Go, null and absent keys leave the default, and unknown keys are ignored but recorded.

use std::cell::RefCell;
use std::fmt;

use outrigger_nearest::nearest;
use serde::de::value::{BorrowedStrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};

use super::{Entry, Error, Flavour, Kind, Node, Resolved, Scalar};
use crate::meta::{JSON_TEXT, OBJECT_META};

/// A decoded value and the unknown keys.
#[derive(Debug)]
pub(crate) struct Decoded<T> {
    pub(crate) value: T,
    /// Unknown keys, as errors to show as warnings.
    pub(crate) unknown: Vec<Error>,
}

pub(crate) fn decode<T: de::DeserializeOwned>(node: &Node, flavour: Flavour) -> Result<Decoded<T>, Error> {
    let unknown = RefCell::new(Vec::new());
    let value = T::deserialize(De {
        node,
        flavour,
        path: None,
        unknown: &unknown,
    })?;
    Ok(Decoded {
        value,
        unknown: unknown.into_inner(),
    })
}

/// The path from the root, innermost step first, kept on the stack.
#[derive(Clone, Copy)]
struct Path<'p> {
    parent: Option<&'p Path<'p>>,
    step: Step<'p>,
}

#[derive(Clone, Copy)]
enum Step<'p> {
    Key(&'p str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match (self.step, self.parent) {
            (Step::Index(i), _) => write!(f, "[{i}]"),
            (Step::Key(key), None) => f.write_str(key),
            (Step::Key(key), Some(_)) => write!(f, ".{key}"),
        }
    }
}

#[derive(Clone, Copy)]
struct De<'n, 'p> {
    node: &'n Node,
    flavour: Flavour,
    path: Option<&'p Path<'p>>,
    unknown: &'p RefCell<Vec<Error>>,
}

impl<'n> De<'n, '_> {
    fn error(&self, what: impl Into<String>) -> Error {
        let path = self.path.map(ToString::to_string).unwrap_or_default();
        Error {
            line: self.node.line,
            path,
            what: what.into(),
        }
    }

    /// Adds line and path to serde's messages.
    fn locate(&self, error: Error) -> Error {
        if error.path.is_empty() && error.line == 0 {
            self.error(error.what)
        } else {
            error
        }
    }

    fn scalar(&self, expected: &str) -> Result<&'n Scalar, Error> {
        match &self.node.kind {
            Kind::Scalar(scalar) => Ok(scalar),
            _ => Err(self.error(format!("expected {expected}, found {}", self.node.describe()))),
        }
    }

    fn integer(&self) -> Result<i128, Error> {
        let scalar = self.scalar("a whole number")?;
        match scalar.resolve(self.flavour) {
            Resolved::Null => Ok(0),
            Resolved::Int(n) => Ok(n.into()),
            Resolved::Uint(n) => Ok(n.into()),
            // Beyond the range of any target type; the cast saturates.
            Resolved::Float(f) if f.fract() == 0.0 => Ok(f as i128),
            _ => Err(self.error(format!("expected a whole number, found {:?}", scalar.text))),
        }
    }

    fn nested<'a>(&self, node: &'n Node, path: &'a Path<'a>, unknown: &'a RefCell<Vec<Error>>) -> De<'n, 'a> {
        De {
            node,
            flavour: self.flavour,
            path: Some(path),
            unknown,
        }
    }
}

/// The text form of a value: a text verbatim, anything else as compact JSON with sorted keys.
fn json_text(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(s) if s.resolve(Flavour::Json) == Resolved::Str => s.text.clone(),
        _ => json(node),
    }
}

fn json(node: &Node) -> String {
    match &node.kind {
        Kind::Scalar(s) => s.json_text(),
        Kind::Seq(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Kind::Map(entries) => {
            // The last of duplicate keys wins.
            let fields: std::collections::BTreeMap<String, &Node> = entries
                .iter()
                .map(|e| (e.key.as_text(Flavour::Json), &e.value))
                .collect();
            let fields: Vec<_> = fields
                .iter()
                .map(|(k, v)| format!("{}:{}", super::scalar::quote(k), json(v)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty,)*) => {$(
        fn $method<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
            let n = self.integer()?;
            let n = <$type>::try_from(n).map_err(|_| self.error(format!("{n} is out of range")))?;
            visitor.$visit(n).map_err(|e| self.locate(e))
        }
    )*};
}

impl<'n> Deserializer<'n> for De<'n, '_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::Seq(_) => self.deserialize_seq(visitor),
            Kind::Map(_) => self.deserialize_map(visitor),
            Kind::Scalar(s) => match s.resolve(self.flavour) {
                Resolved::Null => visitor.visit_unit(),
                Resolved::Bool(b) => visitor.visit_bool(b),
                Resolved::Int(n) => visitor.visit_i64(n),
                Resolved::Uint(n) => visitor.visit_u64(n),
                Resolved::Float(f) => visitor.visit_f64(f),
                Resolved::Str => visitor.visit_borrowed_str(&s.text),
            }
            .map_err(|e: Error| self.locate(e)),
        }
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        let scalar = self.scalar("true or false")?;
        match scalar.as_bool() {
            Some(b) => visitor.visit_bool(b).map_err(|e| self.locate(e)),
            None if self.node.is_null() => visitor.visit_bool(false),
            None => Err(self.error(format!(
                "expected true or false without quotes, found {:?}",
                scalar.text
            ))),
        }
    }

    integers! {
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    }

    fn deserialize_f64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.scalar("a number")?.resolve(self.flavour) {
            Resolved::Float(f) => visitor.visit_f64(f),
            _ => visitor.visit_f64(self.integer()? as f64),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() {
            return visitor.visit_borrowed_str("");
        }
        let text = self.scalar("a text")?.as_text(self.flavour);
        visitor.visit_string(text).map_err(|e| self.locate(e))
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.node.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == JSON_TEXT {
            let text: StringDeserializer<Error> = json_text(self.node).into_deserializer();
            return visitor.visit_newtype_struct(text);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::Seq(items) => visitor.visit_seq(SeqAccess {
                de: self,
                items: items.iter().enumerate(),
            }),
            _ if self.node.is_null() => visitor.visit_seq(SeqAccess {
                de: self,
                items: [].iter().enumerate(),
            }),
            _ => Err(self.error(format!("expected a list, found {}", self.node.describe()))),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.kind {
            Kind::Map(entries) => {
                // The last of duplicate keys wins.
                let last =
                    |(i, e): &(usize, &Entry)| !entries[i + 1..].iter().any(|later| later.key == e.key);
                let fields = entries.iter().enumerate().filter(last);
                let fields = fields
                    .map(|(_, e)| (Key::Text(e.key.as_text(self.flavour)), e))
                    .collect::<Vec<_>>();
                visitor.visit_map(MapAccess {
                    de: self,
                    fields: fields.into_iter(),
                    value: None,
                })
            }
            _ if self.node.is_null() => visitor.visit_map(MapAccess {
                de: self,
                fields: Vec::new().into_iter(),
                value: None,
            }),
            _ => Err(self.error(format!("expected a mapping, found {}", self.node.describe()))),
        }
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let entries = match &self.node.kind {
            Kind::Map(entries) => entries.as_slice(),
            _ if self.node.is_null() => &[],
            _ => return Err(self.error(format!("expected a mapping, found {}", self.node.describe()))),
        };
        let mut known: Vec<(Key, &Entry)> = Vec::with_capacity(entries.len());
        for entry in entries {
            match field(&entry.key.text, fields, self.flavour) {
                Some(name) => {
                    known.retain(|(key, _)| !matches!(key, Key::Field(f) if *f == name));
                    if !entry.value.is_null() {
                        known.push((Key::Field(name), entry));
                    }
                }
                None if name == OBJECT_META => {}
                None => self.unknown.borrow_mut().push(Error {
                    line: entry.line,
                    path: self.path.map(ToString::to_string).unwrap_or_default(),
                    what: unknown_key(&entry.key.text, fields),
                }),
            }
        }
        let access = MapAccess {
            de: self,
            fields: known.into_iter(),
            value: None,
        };
        visitor.visit_map(access).map_err(|e| self.locate(e))
    }

    fn deserialize_ignored_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        <V: Visitor<'n>>
        f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

fn unknown_key(key: &str, fields: &[&'static str]) -> String {
    match nearest(key, fields.iter().copied()) {
        Some(near) => format!("unknown key {key:?}, did you mean {near:?}?"),
        None => format!("unknown key {key:?}"),
    }
}

/// The field that a key matches: exactly, or in any case where Go's JSON reader does.
fn field(key: &str, fields: &'static [&'static str], flavour: Flavour) -> Option<&'static str> {
    let exact = fields.iter().find(|f| **f == key);
    let loose = || {
        fields
            .iter()
            .find(|f| flavour == Flavour::Json && f.eq_ignore_ascii_case(key))
    };
    exact.or_else(loose).copied()
}

enum Key {
    Field(&'static str),
    Text(String),
}

struct MapAccess<'n, 'p> {
    de: De<'n, 'p>,
    fields: std::vec::IntoIter<(Key, &'n Entry)>,
    value: Option<&'n Entry>,
}

impl<'n> de::MapAccess<'n> for MapAccess<'n, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'n>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((key, entry)) = self.fields.next() else {
            return Ok(None);
        };
        self.value = Some(entry);
        let key = match key {
            Key::Field(name) => seed.deserialize(BorrowedStrDeserializer::new(name)),
            Key::Text(text) => seed.deserialize(IntoDeserializer::<Error>::into_deserializer(text)),
        };
        key.map(Some).map_err(|e: Error| self.de.locate(e))
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let Some(entry) = self.value.take() else {
            return Err(self.de.error("a value without key"));
        };
        let path = Path {
            parent: self.de.path,
            step: Step::Key(&entry.key.text),
        };
        let de = self.de.nested(&entry.value, &path, self.de.unknown);
        seed.deserialize(de).map_err(|e| de.locate(e))
    }
}

struct SeqAccess<'n, 'p> {
    de: De<'n, 'p>,
    items: std::iter::Enumerate<std::slice::Iter<'n, Node>>,
}

impl<'n> de::SeqAccess<'n> for SeqAccess<'n, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((index, item)) = self.items.next() else {
            return Ok(None);
        };
        let path = Path {
            parent: self.de.path,
            step: Step::Index(index),
        };
        let de = self.de.nested(item, &path, self.de.unknown);
        seed.deserialize(de).map(Some).map_err(|e| de.locate(e))
    }
}

impl de::Error for Error {
    fn custom<T: fmt::Display>(what: T) -> Error {
        Error::at(0, what.to_string())
    }
}

#[cfg(test)]
mod tests;
