//! Avro's binary encoding, to and from the two forms of JSON that apps may use. No I/O.
//!
//! Schemas are parsed by `apache-avro`. Values are not: its decoder follows a schema that contains itself as deep as the
//! data say, takes values that end early for nulls, and its errors do not name the field.

mod decode;
mod encode;
mod error;
mod schema;

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value;

pub(crate) use self::error::ValueError;
use self::schema::{Field, Node};

/// How deep JSON may be nested. What takes events to apps reads 128 levels, an envelope among them.
const MAX_DEPTH: usize = 100;

/// How apps write values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A value of a union stands for itself, and is the first of its types that it fits.
    Plain,
    /// A value of a union is an object with the name of its type: the JSON encoding of Avro's specification.
    Tagged,
}

/// A schema, ready for use.
#[derive(Debug)]
pub(crate) struct Codec {
    /// Types refer to each other by their place here: those with a name may contain themselves.
    nodes: Vec<Node>,
    root: usize,
    weight: usize,
}

impl Codec {
    /// Parses a schema in JSON.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        schema::parse(text)
    }

    /// About how much memory it takes, bytes.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Appends the value that `json` is to `start`.
    ///
    /// # Errors
    /// It does not fit the schema, or there would be more than `most` bytes.
    pub(crate) fn encode(
        &self,
        json: &[u8],
        form: Form,
        start: Vec<u8>,
        most: usize,
    ) -> Result<Vec<u8>, ValueError> {
        encode::encode(self, json, form, start, most)
    }

    /// The JSON of a value.
    ///
    /// # Errors
    /// The data are not those of a value of this schema, or the JSON would be too large.
    pub(crate) fn decode(&self, data: &[u8], form: Form) -> Result<Bytes, ValueError> {
        decode::decode(self, data, form)
    }
}

/// Whether no part of `value` is nested deeper than `most` levels.
fn is_flat(value: &Value, most: usize) -> bool {
    match value {
        Value::Array(items) => most > 0 && items.iter().all(|value| is_flat(value, most - 1)),
        Value::Object(fields) => most > 0 && fields.values().all(|value| is_flat(value, most - 1)),
        _ => true,
    }
}

/// Reads the first line as a schema, and what follows as a value and as JSON.
///
/// # Panics
/// When JSON that was encoded and decoded is not encoded alike.
#[cfg(feature = "fuzzing")]
pub fn fuzz_avro(input: &[u8]) {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return;
    };
    let (schema, [_, data @ ..]) = input.split_at(end) else {
        return;
    };
    let Some(codec) = std::str::from_utf8(schema)
        .ok()
        .and_then(|text| Codec::parse(text).ok())
    else {
        return;
    };
    let encode = |json: &[u8], form| codec.encode(json, form, Vec::new(), 1024 * 1024).ok();
    for form in [Form::Plain, Form::Tagged] {
        let _refused = codec.decode(data, form);
        // Plain values of unions may fit another type than before.
        if let Some(made) = encode(data, form)
            && let Ok(json) = codec.decode(&made, Form::Tagged)
        {
            assert_eq!(encode(&json, Form::Tagged).as_ref(), Some(&made), "{json:?}");
        }
    }
}

#[cfg(test)]
mod tests;
