//! JSON to Avro.

use serde_json::{Map, Number};

use super::{
    error::shortened,
    schema::{Default, Record, Union},
    *,
};

/// Maximum visits of values per byte of JSON: a union value may be tried as several types, with everything it
/// contains.
const MAX_TRIES: usize = 16;
/// Value visits granted to any input.
const BASE_TRIES: usize = 4096;

/// How the type of a union value is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Form(Form),
    /// For defaults, which the specification writes without type names.
    FirstThatFits,
}

struct Encoder<'c> {
    codec: &'c Codec,
    choice: Choice,
    out: Vec<u8>,
    most: usize,
    /// Remaining value visits.
    tries: usize,
}

pub(super) fn encode(
    codec: &Codec,
    json: &[u8],
    form: Form,
    start: Vec<u8>,
    most: usize,
) -> Result<Vec<u8>, ValueError> {
    let value: Value = serde_json::from_slice(json)
        .map_err(|error| ValueError::new(format!("it is not valid JSON: {error}")))?;
    if !is_flat(&value, MAX_DEPTH) {
        return Err(ValueError::new(format!(
            "it is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    let mut encoder = Encoder {
        codec,
        choice: Choice::Form(form),
        out: start,
        most,
        tries: tries(json.len()),
    };
    encoder.value(codec.root, &value, 0)?;
    encoder.finish()
}

/// Value visits granted for JSON of this length.
fn tries(json: usize) -> usize {
    BASE_TRIES.saturating_add(json.saturating_mul(MAX_TRIES))
}

/// Encodes the default of a field in at most `most` bytes.
pub(super) fn default_value(
    codec: &Codec,
    node: usize,
    json: &Value,
    most: usize,
) -> Result<Vec<u8>, ValueError> {
    let mut encoder = Encoder {
        codec,
        choice: Choice::FirstThatFits,
        out: Vec::new(),
        most,
        tries: tries(json.to_string().len()),
    };
    encoder.value(node, json, 0)?;
    encoder.finish()
}

impl Encoder<'_> {
    fn check_size(&self) -> Result<(), ValueError> {
        if self.out.len() > self.most {
            return Err(ValueError::fatal(format!("it exceeds {} bytes", self.most)));
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>, ValueError> {
        self.check_size()?;
        Ok(self.out)
    }

    /// `depth` counts records nested through their defaults.
    fn value(&mut self, node: usize, json: &Value, depth: usize) -> Result<(), ValueError> {
        self.check_size()?;
        self.tries = self.tries.checked_sub(1).ok_or_else(|| {
            ValueError::fatal(
                "it partly matches too many union types: use fewer types, or types that differ more",
            )
        })?;
        if depth > MAX_DEPTH {
            return Err(ValueError::fatal(format!(
                "it is nested deeper than {MAX_DEPTH} levels"
            )));
        }
        let codec = self.codec;
        match (&codec.nodes[node], json) {
            (Node::Union(union), json) => self.union(union, json, depth),
            (Node::Null, Value::Null) => Ok(()),
            (Node::Boolean, Value::Bool(yes)) => {
                self.out.push(u8::from(*yes));
                Ok(())
            }
            (Node::Int, Value::Number(number)) => self.int(number),
            (Node::Long, Value::Number(number)) => {
                let number = whole(number, "long")?;
                self.long(number);
                Ok(())
            }
            (Node::Float, json @ (Value::Number(_) | Value::Null)) => self.float(json),
            (Node::Double, json @ (Value::Number(_) | Value::Null)) => {
                self.out.extend(floating(json).to_le_bytes());
                Ok(())
            }
            (Node::Bytes, Value::String(text)) => {
                let bytes = latin_1(text)?;
                self.bytes(&bytes);
                Ok(())
            }
            (Node::Fixed(size), Value::String(text)) => self.fixed(*size, text),
            (Node::String, Value::String(text)) => {
                self.bytes(text.as_bytes());
                Ok(())
            }
            (Node::Enum(symbols), Value::String(text)) => self.symbol(symbols, text),
            (Node::Array(items), Value::Array(values)) => self.array(*items, values, depth),
            (Node::Map(values), Value::Object(entries)) => self.map(*values, entries, depth),
            (Node::Record(record), Value::Object(given)) => self.record(record, given, depth),
            (expected, json) => {
                let text = format!("{} is given where the schema has {}", kind(json), expected.name());
                Err(ValueError::new(text))
            }
        }
    }

    fn int(&mut self, number: &Number) -> Result<(), ValueError> {
        let number = whole(number, "int")?;
        let number = i32::try_from(number)
            .map_err(|_| ValueError::new(format!("{number} is out of the range, and the schema has int")))?;
        self.long(i64::from(number));
        Ok(())
    }

    fn float(&mut self, json: &Value) -> Result<(), ValueError> {
        #[expect(clippy::cast_possible_truncation, reason = "a float has fewer digits")]
        let float = floating(json) as f32;
        if float.is_infinite() {
            return Err(ValueError::new(format!(
                "{json} is out of the range, and the schema has float"
            )));
        }
        self.out.extend(float.to_le_bytes());
        Ok(())
    }

    fn fixed(&mut self, size: usize, text: &str) -> Result<(), ValueError> {
        let bytes = latin_1(text)?;
        if bytes.len() != size {
            let text = format!("{} bytes are given where a fixed has {size}", bytes.len());
            return Err(ValueError::new(text));
        }
        self.out.extend(bytes);
        Ok(())
    }

    fn symbol(&mut self, symbols: &[String], text: &str) -> Result<(), ValueError> {
        let place = symbols.iter().position(|symbol| symbol == text);
        let place = place.ok_or_else(|| {
            let symbols = shortened(&symbols.join(", "));
            ValueError::new(format!("it must be one of the symbols {symbols}"))
        })?;
        self.count(place);
        Ok(())
    }

    fn array(&mut self, items: usize, values: &[Value], depth: usize) -> Result<(), ValueError> {
        if !values.is_empty() {
            self.count(values.len());
        }
        for (number, value) in values.iter().enumerate() {
            self.value(items, value, depth)
                .map_err(|error| error.of_item(number))?;
        }
        self.out.push(0);
        Ok(())
    }

    fn map(&mut self, values: usize, entries: &Map<String, Value>, depth: usize) -> Result<(), ValueError> {
        if !entries.is_empty() {
            self.count(entries.len());
        }
        for (key, value) in entries {
            self.bytes(key.as_bytes());
            self.value(values, value, depth).map_err(|error| error.of(key))?;
        }
        self.out.push(0);
        Ok(())
    }

    fn record(
        &mut self,
        record: &Record,
        given: &Map<String, Value>,
        depth: usize,
    ) -> Result<(), ValueError> {
        if let Some(unknown) = given.keys().find(|name| !record.by_name.contains_key(*name)) {
            return Err(ValueError::new("the schema has no such field").of(unknown));
        }
        for field in &record.fields {
            let written = match given.get(&field.name) {
                Some(value) => self.value(field.node, value, depth),
                None => self.default_of(field, depth + 1),
            };
            written.map_err(|error| error.of(&field.name))?;
        }
        Ok(())
    }

    fn default_of(&mut self, field: &Field, depth: usize) -> Result<(), ValueError> {
        match &field.default {
            None => Err(ValueError::new("it is missing and has no default in the schema")),
            Some(Default::Json(json)) => self.value(field.node, json, depth),
            Some(Default::Ready(bytes)) => {
                self.out.extend(bytes);
                Ok(())
            }
        }
    }

    fn union(&mut self, union: &Union, json: &Value, depth: usize) -> Result<(), ValueError> {
        if self.choice == Choice::Form(Form::Tagged) {
            return self.tagged(union, json, depth);
        }
        let codec = self.codec;
        // Like Dapr's component: numbers and objects try types by name, other values in schema order.
        let by_name = self.choice == Choice::Form(Form::Plain) && (json.is_number() || json.is_object());
        let places = (0..union.types.len()).map(|place| if by_name { union.sorted[place] } else { place });
        let mut candidates: Vec<usize> = places
            .filter(|place| suits(&codec.nodes[union.types[*place].node], json))
            .collect();
        if json.is_null()
            && let Some(place) = candidates
                .iter()
                .copied()
                .find(|place| matches!(codec.nodes[union.types[*place].node], Node::Null))
        {
            candidates = vec![place];
        }
        let start = self.out.len();
        let mut last = None;
        for place in &candidates {
            self.out.truncate(start);
            self.count(*place);
            match self.value(union.types[*place].node, json, depth) {
                Ok(()) => return Ok(()),
                Err(error) if error.is_final() => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        match last {
            // The inner error is more specific.
            Some(error) if candidates.len() == 1 => Err(error),
            _ => Err(ValueError::new(format!(
                "{} fits none of {}",
                kind(json),
                tags(union)
            ))),
        }
    }

    fn tagged(&mut self, union: &Union, json: &Value, depth: usize) -> Result<(), ValueError> {
        let (tag, value) = match json {
            Value::Null => ("null", json),
            Value::Object(one) if one.len() == 1 => match one.iter().next() {
                Some((tag, value)) => (tag.as_str(), value),
                None => ("null", json),
            },
            _ => {
                let text = format!(
                    "{} is given where the schema has a union: with useAvroJSON it is null or an object with one of {}",
                    kind(json),
                    tags(union)
                );
                return Err(ValueError::new(text));
            }
        };
        let mut types = union.types.iter();
        let place = types.position(|member| member.tag == tag);
        let place = place.or_else(|| union.types.iter().position(|member| member.name == tag));
        let place = place
            .ok_or_else(|| ValueError::new(format!("its type must be one of {}", tags(union))).of(tag))?;
        self.count(place);
        let member = &union.types[place];
        self.value(member.node, value, depth)
            .map_err(|error| error.of(tag))
    }

    fn long(&mut self, number: i64) {
        let mut rest = (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned();
        loop {
            let [low, ..] = rest.to_le_bytes();
            rest >>= 7;
            if rest == 0 {
                self.out.push(low & 0x7f);
                return;
            }
            self.out.push(low | 0x80);
        }
    }

    fn count(&mut self, count: usize) {
        self.long(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.out.extend(bytes);
    }
}

/// Whether a JSON value of this kind can have the type at all.
fn suits(node: &Node, json: &Value) -> bool {
    match json {
        Value::Null => matches!(node, Node::Null | Node::Float | Node::Double),
        Value::Bool(_) => matches!(node, Node::Boolean),
        Value::Number(_) => matches!(node, Node::Int | Node::Long | Node::Float | Node::Double),
        Value::String(_) => matches!(node, Node::String | Node::Bytes | Node::Fixed(_) | Node::Enum(_)),
        Value::Array(_) => matches!(node, Node::Array(_)),
        Value::Object(_) => matches!(node, Node::Map(_) | Node::Record(_)),
    }
}

fn whole(number: &Number, expected: &str) -> Result<i64, ValueError> {
    number.as_i64().ok_or_else(|| {
        // Integers beyond 64 bits also parse as floating-point numbers.
        let small = number
            .as_f64()
            .is_some_and(|number| number.abs() < 2_f64.powi(63));
        let why = if number.is_f64() && small {
            "not a whole number"
        } else {
            "out of the range"
        };
        ValueError::new(format!("{number} is {why}, and the schema has {expected}"))
    })
}

/// NaN is null in JSON.
fn floating(json: &Value) -> f64 {
    json.as_f64().unwrap_or(f64::NAN)
}

/// The bytes of a text with one byte per character.
fn latin_1(text: &str) -> Result<Vec<u8>, ValueError> {
    let bytes = text.chars().map(|char| u8::try_from(u32::from(char)));
    bytes.collect::<Result<_, _>>().map_err(|_| {
        ValueError::new(
            "a character beyond U+00FF is given where the schema has bytes: a character stands for one byte",
        )
    })
}

fn tags(union: &Union) -> String {
    let tags: Vec<&str> = union.types.iter().map(|member| member.tag.as_str()).collect();
    tags.join(", ")
}

fn kind(json: &Value) -> &'static str {
    match json {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
