//! JSON in messages: `google.protobuf.Value` and `Struct`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde_json::{Map, Number, Value};

/// Integers up to here are exact as doubles.
const EXACT_INTEGERS: f64 = 9_007_199_254_740_992.0;

/// Converts a message's value to JSON. Whole numbers have no fraction, as readers of integers require;
/// numbers that JSON cannot represent become null.
pub fn to_json(value: prost_types::Value) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::NumberValue(number)) => to_number(number),
        Some(Kind::StructValue(fields)) => Value::Object(to_object(fields)),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(to_json).collect(),
    }
}

/// Converts a message's struct to a JSON object.
pub fn to_object(fields: Struct) -> Map<String, Value> {
    let fields = fields.fields.into_iter();
    fields.map(|(name, value)| (name, to_json(value))).collect()
}

fn to_number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() <= EXACT_INTEGERS {
        #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// Converts JSON to a message's value.
pub fn from_json(json: Value) -> prost_types::Value {
    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(from_json).collect(),
        }),
        Value::Object(members) => Kind::StructValue(Struct {
            fields: members
                .into_iter()
                .map(|(name, value)| (name, from_json(value)))
                .collect(),
        }),
    };
    prost_types::Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_round_trips() {
        let value = json!({"a": [null, true, "x", 1, -2.5], "b": {"c": 9_007_199_254_740_992_i64}});
        assert_eq!(to_json(from_json(value.clone())), value);
    }

    #[test]
    fn handles_non_finite_and_large_numbers() {
        let number = |number| {
            to_json(prost_types::Value {
                kind: Some(Kind::NumberValue(number)),
            })
        };
        assert_eq!(number(f64::NAN), Value::Null);
        assert_eq!(number(1e300).to_string(), "1e+300");
        assert_eq!(number(3.0).to_string(), "3");
    }
}
