//! Avro's binary encoding, converted to and from the two JSON forms that apps may use. No I/O.
//!
//! `apache-avro` parses the schemas, but not the values: its decoder recurses as deep as the data demands,
//! decodes truncated values as null, and reports errors without the field.

mod decode;
mod encode;
mod error;
mod schema;

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value;

pub(crate) use self::error::ValueError;
use self::schema::{Field, Node};

/// Maximum JSON nesting. The event reader accepts 128 levels, including the envelope.
const MAX_DEPTH: usize = 100;

/// JSON form of union values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The bare value; it has the first type of the union that fits.
    Plain,
    /// An object with the type's name: the JSON encoding of the Avro specification.
    Tagged,
}

/// A parsed schema.
#[derive(Debug)]
pub(crate) struct Codec {
    /// Types refer to each other by index, because named types may be recursive.
    nodes: Vec<Node>,
    root: usize,
    weight: usize,
}

impl Codec {
    /// Parses a JSON schema.
    ///
    /// # Errors
    /// Why the schema is invalid.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        schema::parse(text)
    }

    /// Approximate memory size in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// Encodes `json` and appends it to `start`.
    ///
    /// # Errors
    /// The value does not fit the schema, or the result exceeds `most` bytes.
    pub(crate) fn encode(
        &self,
        json: &[u8],
        form: Form,
        start: Vec<u8>,
        most: usize,
    ) -> Result<Vec<u8>, ValueError> {
        encode::encode(self, json, form, start, most)
    }

    /// Decodes a value to JSON.
    ///
    /// # Errors
    /// The data does not match the schema, or the JSON would be too large.
    pub(crate) fn decode(&self, data: &[u8], form: Form) -> Result<Bytes, ValueError> {
        decode::decode(self, data, form)
    }
}

/// Whether `value` is nested at most `most` levels deep.
fn is_flat(value: &Value, most: usize) -> bool {
    match value {
        Value::Array(items) => most > 0 && items.iter().all(|value| is_flat(value, most - 1)),
        Value::Object(fields) => most > 0 && fields.values().all(|value| is_flat(value, most - 1)),
        _ => true,
    }
}

/// Parses the first line as a schema, and the rest as a value and as JSON.
///
/// # Panics
/// If JSON does not encode to the same bytes after a round trip.
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
        // The bare value of a union may match another type the second time.
        if let Some(made) = encode(data, form)
            && let Ok(json) = codec.decode(&made, Form::Tagged)
        {
            assert_eq!(encode(&json, Form::Tagged).as_ref(), Some(&made), "{json:?}");
        }
    }
}

#[cfg(test)]
mod tests;
