use apache_avro::{
    Schema, reader::datum::GenericDatumReader, types::Value as Avro, writer::datum::GenericDatumWriter,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const MAX_ENCODED: usize = 1024 * 1024;
const LIST: &str = r#"{"type":"record","name":"a.b.List","fields":[
    {"name":"head","type":"int"},{"name":"rest","type":["null","List"],"default":null}]}"#;
const ORDER: &str = r#"{"type":"record","name":"Order","namespace":"shop","fields":[
    {"name":"id","type":"long"},
    {"name":"note","type":["null","string"],"default":null},
    {"name":"state","type":{"type":"enum","name":"State","symbols":["OPEN","DONE"]},"default":"OPEN"},
    {"name":"items","type":{"type":"array","items":{"type":"record","name":"Item","fields":[
        {"name":"sku","type":"string"},{"name":"price","type":"double","default":1.5}]}},"default":[]},
    {"name":"tags","type":{"type":"map","values":"string"},"default":{"by":"us"}},
    {"name":"raw","type":"bytes","default":"\u00ff"}]}"#;

fn codec(schema: &str) -> Codec {
    Codec::parse(schema).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn encoded(codec: &Codec, json: &str, form: Form) -> Result<Vec<u8>, String> {
    let made = codec.encode(json.as_bytes(), form, Vec::new(), MAX_ENCODED);
    made.map_err(|error| error.to_string())
}

fn decoded(codec: &Codec, data: &[u8], form: Form) -> Result<Value, String> {
    let json = codec.decode(data, form).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&json).unwrap())
}

/// Decodes with another implementation.
fn read(schema: &str, data: &[u8]) -> Avro {
    let schema = Schema::parse_str(schema).unwrap();
    let reader = GenericDatumReader::builder(&schema).build().unwrap();
    reader.read_value(&mut &*data).unwrap()
}

#[test]
fn round_trips_all_types() {
    for (schema, json, bytes) in [
        ("\"null\"", json!(null), &[][..]),
        ("\"boolean\"", json!(true), &[1]),
        ("\"int\"", json!(-64), &[0x7f]),
        ("\"int\"", json!(64), &[0x80, 1]),
        ("\"int\"", json!(i32::MIN), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
        (
            "\"long\"",
            json!(i64::MAX),
            &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
        (
            "\"long\"",
            json!(i64::MIN),
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ),
        ("\"float\"", json!(0.5), &[0, 0, 0, 0x3f]),
        ("\"double\"", json!(-2.0), &[0, 0, 0, 0, 0, 0, 0, 0xc0]),
        ("\"double\"", json!(null), &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f]),
        ("\"string\"", json!("ä"), &[4, 0xc3, 0xa4]),
        ("\"bytes\"", json!("\u{ff}\u{0}a"), &[6, 0xff, 0, b'a']),
        (
            r#"{"type":"fixed","name":"F","size":2}"#,
            json!("\u{80}b"),
            &[0x80, b'b'],
        ),
        (
            r#"{"type":"enum","name":"E","symbols":["A","B"]}"#,
            json!("B"),
            &[2],
        ),
        (r#"{"type":"array","items":"int"}"#, json!([1, 2]), &[4, 2, 4, 0]),
        (r#"{"type":"array","items":"int"}"#, json!([]), &[0]),
        (
            r#"{"type":"map","values":"boolean"}"#,
            json!({"k": false}),
            &[2, 2, b'k', 0, 0],
        ),
        (r#"{"type":"record","name":"R","fields":[]}"#, json!({}), &[]),
        // Logical types use their base type.
        (
            r#"{"type":"int","logicalType":"date"}"#,
            json!(19000),
            &[0xf0, 0xa8, 2],
        ),
        (
            r#"{"type":"long","logicalType":"timestamp-millis"}"#,
            json!(1),
            &[2],
        ),
        (
            r#"{"type":"long","logicalType":"local-timestamp-micros"}"#,
            json!(1),
            &[2],
        ),
        (
            r#"{"type":"bytes","logicalType":"decimal","precision":4,"scale":2}"#,
            json!("\u{1}\u{0}"),
            &[4, 1, 0],
        ),
        (
            r#"{"type":"string","logicalType":"uuid"}"#,
            json!("any text"),
            b"\x10any text",
        ),
        (
            r#"{"type":{"type":"fixed","name":"D","size":12},"logicalType":"duration"}"#,
            json!("abcdefghijkl"),
            b"abcdefghijkl",
        ),
        (
            r#"{"type":"string","logicalType":"unknown"}"#,
            json!("x"),
            &[2, b'x'],
        ),
    ] {
        let codec = codec(schema);
        for form in [Form::Plain, Form::Tagged] {
            let made = encoded(&codec, &json.to_string(), form);
            assert_eq!(made.as_deref(), Ok(bytes), "{schema} {json}");
            assert_eq!(decoded(&codec, bytes, form), Ok(json.clone()), "{schema}");
        }
    }
}

#[test]
fn encodes_plain_and_tagged_unions() {
    let record = r#"{"type":"record","name":"n.R","fields":[{"name":"a","type":"int"}]}"#;
    let many = &format!(
        r#"["null","boolean","string","bytes",{{"type":"int","logicalType":"date"}},"long","double",
            {{"type":"array","items":"int"}},{{"type":"map","values":"int"}},{record}]"#
    );
    let stamp = r#"["null",{"type":"long","logicalType":"timestamp-micros"}]"#;
    let decimal = r#"["null",{"type":"bytes","logicalType":"decimal","precision":4}]"#;
    for (schema, plain, tagged, bytes) in [
        (many, json!(null), json!(null), &[0][..]),
        (many, json!(true), json!({"boolean": true}), &[2, 1]),
        (many, json!("x"), json!({"string": "x"}), &[4, 2, b'x']),
        (many, json!([1]), json!({"array": [1]}), &[14, 2, 2, 0]),
        // Objects and numbers try types by name: "map" before "n.R", "double" before "int.date".
        (
            many,
            json!({"a": 1}),
            json!({"map": {"a": 1}}),
            &[16, 2, 2, b'a', 2, 0],
        ),
        (
            many,
            json!(2.0),
            json!({"double": 2.0}),
            &[12, 0, 0, 0, 0, 0, 0, 0, 0x40],
        ),
        (
            &stamp.to_owned(),
            json!(1),
            json!({"long.timestamp-micros": 1}),
            &[2, 2],
        ),
        (
            &decimal.to_owned(),
            json!("\u{5}"),
            json!({"bytes.decimal": "\u{5}"}),
            &[2, 2, 5],
        ),
        (
            &format!("[\"null\",{record}]"),
            json!({"a": 1}),
            json!({"n.R": {"a": 1}}),
            &[2, 2],
        ),
    ] {
        let codec = codec(schema);
        for (form, json) in [(Form::Plain, &plain), (Form::Tagged, &tagged)] {
            let made = encoded(&codec, &json.to_string(), form);
            assert_eq!(made.as_deref(), Ok(bytes), "{schema} {json}");
            assert_eq!(decoded(&codec, bytes, form).as_ref(), Ok(json), "{schema}");
        }
    }
    // The specification's names work too.
    let made = encoded(&codec(stamp), "{\"long\":1}", Form::Tagged);
    assert_eq!(made.as_deref(), Ok(&[2, 2][..]));
    // The first type that fits completely.
    let two = r#"[{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]},
        {"type":"record","name":"B","fields":[{"name":"x","type":"string"}]}]"#;
    let made = encoded(&codec(two), "{\"x\":\"1\"}", Form::Plain);
    assert_eq!(made.as_deref(), Ok(&[2, 2, b'1'][..]));
}

#[test]
fn missing_fields_get_defaults() {
    let codec = codec(ORDER);
    let made = encoded(&codec, "{\"id\":1,\"items\":[{\"sku\":\"s\"}]}", Form::Plain).unwrap();
    let expected = json!({
        "id": 1, "note": null, "state": "OPEN", "items": [{"sku": "s", "price": 1.5}], "tags": {"by": "us"},
        "raw": "\u{ff}",
    });
    assert_eq!(decoded(&codec, &made, Form::Plain), Ok(expected));
    let Avro::Record(fields) = read(ORDER, &made) else {
        panic!("a record");
    };
    assert_eq!(fields[0].1, Avro::Long(1));
    assert_eq!(fields[2].1, Avro::Enum(0, "OPEN".to_owned()));
    assert_eq!(fields[5].1, Avro::Bytes(vec![0xff]));
}

#[test]
fn applies_nested_defaults() {
    let schema = r#"{"type":"record","name":"A","fields":[{"name":"b","default":{"y":2},"type":
        {"type":"record","name":"B","fields":[{"name":"x","type":["int","null"],"default":1},{"name":"y","type":"int"}]}},
        {"name":"c","type":["B","null"],"default":{"x":null,"y":3}}]}"#;
    let codec = codec(schema);
    let made = encoded(&codec, "{}", Form::Tagged).unwrap();
    let expected = json!({"b": {"x": 1, "y": 2}, "c": {"x": null, "y": 3}});
    assert_eq!(decoded(&codec, &made, Form::Plain), Ok(expected));
}

#[test]
fn supports_recursive_types_and_aliases() {
    let codec = codec(LIST);
    let json = "{\"head\":1,\"rest\":{\"head\":2,\"rest\":null}}";
    let made = encoded(&codec, json, Form::Plain).unwrap();
    assert_eq!(made, [2, 2, 4, 0]);
    let tagged = json!({"head": 1, "rest": {"a.b.List": {"head": 2, "rest": null}}});
    assert_eq!(decoded(&codec, &made, Form::Tagged), Ok(tagged.clone()));
    assert_eq!(encoded(&codec, &tagged.to_string(), Form::Tagged).unwrap(), made);
    let alias = r#"{"type":"record","name":"R","fields":[
        {"name":"a","type":{"type":"fixed","name":"n.F","aliases":["G"],"size":1}},{"name":"b","type":"n.G"}]}"#;
    let made = encoded(&self::codec(alias), "{\"a\":\"x\",\"b\":\"y\"}", Form::Plain);
    assert_eq!(made.as_deref(), Ok(&b"xy"[..]));
}

#[test]
fn names_mismatching_part() {
    let deep = |levels: usize| format!("{}1{}", "{\"m\":".repeat(levels), "}".repeat(levels));
    let maps = r#"{"type":"record","name":"M","fields":[{"name":"m","type":["int","M"]}]}"#;
    for (schema, json, form, expected) in [
        (
            "\"int\"",
            "2147483648",
            Form::Plain,
            "2147483648 is out of the range, and the schema has int",
        ),
        (
            "\"long\"",
            "9223372036854775808",
            Form::Plain,
            "9223372036854775808 is out of the range, and the schema has long",
        ),
        (
            "\"long\"",
            "1.5",
            Form::Plain,
            "1.5 is not a whole number, and the schema has long",
        ),
        (
            "\"float\"",
            "1e39",
            Form::Plain,
            "1e+39 is out of the range, and the schema has float",
        ),
        (
            "\"boolean\"",
            "null",
            Form::Plain,
            "null is given where the schema has boolean",
        ),
        (
            "\"bytes\"",
            "\"\u{20ac}\"",
            Form::Plain,
            "a character beyond U+00FF is given where the schema has bytes: a character stands for one byte",
        ),
        (
            r#"{"type":"fixed","name":"F","size":2}"#,
            "\"abc\"",
            Form::Plain,
            "3 bytes are given where a fixed has 2",
        ),
        (
            ORDER,
            "{}",
            Form::Plain,
            "field \"id\": it is missing and has no default in the schema",
        ),
        (
            ORDER,
            "{\"id\":1,\"ID\":2}",
            Form::Plain,
            "field \"ID\": the schema has no such field",
        ),
        (
            ORDER,
            "{\"id\":1,\"state\":\"LOST\"}",
            Form::Plain,
            "field \"state\": it must be one of the symbols OPEN, DONE",
        ),
        (
            ORDER,
            "{\"id\":1,\"items\":[{\"sku\":\"a\"},{\"sku\":\"b\",\"price\":\"1\"}]}",
            Form::Plain,
            "field \"items[1].price\": a string is given where the schema has double",
        ),
        (
            ORDER,
            "{\"id\":1,\"note\":5}",
            Form::Plain,
            "field \"note\": a number fits none of null, string",
        ),
        (
            ORDER,
            "{\"id\":1,\"note\":\"x\"}",
            Form::Tagged,
            "field \"note\": a string is given where the schema has a union: with useAvroJSON it is null or an object with \
             one of null, string",
        ),
        (
            ORDER,
            "{\"id\":1,\"note\":{\"text\":\"x\"}}",
            Form::Tagged,
            "field \"note.text\": its type must be one of null, string",
        ),
        (
            LIST,
            "{\"head\":1,\"rest\":{\"head\":true}}",
            Form::Plain,
            "field \"rest.head\": a boolean is given where the schema has int",
        ),
        (
            "\"int\"",
            "1 2",
            Form::Plain,
            "it is not valid JSON: trailing characters at line 1 column 3",
        ),
        (
            maps,
            &deep(MAX_DEPTH + 1),
            Form::Plain,
            "it is nested deeper than 100 levels",
        ),
    ] {
        assert_eq!(
            encoded(&codec(schema), json, form),
            Err(expected.to_owned()),
            "{schema} {json}"
        );
    }
    assert!(encoded(&codec(maps), &deep(MAX_DEPTH), Form::Plain).is_ok());
    let name = "x".repeat(1000);
    let error = encoded(&codec(ORDER), &format!("{{\"id\":1,\"{name}\":1}}"), Form::Plain).unwrap_err();
    assert!(error.len() < 150, "{error}");
}

#[test]
fn rejects_invalid_values() {
    let maps = r#"{"type":"map","values":"int"}"#;
    for (schema, data, expected) in [
        ("\"int\"", &[][..], "the data is truncated"),
        ("\"int\"", &[0x80], "the data is truncated"),
        (
            "\"int\"",
            &[0xfe, 0xff, 0xff, 0xff, 0x1f],
            "a number is out of the range of int",
        ),
        ("\"long\"", &[0xff; 11], "a number is out of the range of long"),
        ("\"boolean\"", &[2], "a boolean is neither 0 nor 1"),
        ("\"double\"", &[0; 7], "the data is truncated"),
        ("\"string\"", &[4, b'a'], "the data is truncated"),
        ("\"string\"", &[2, 0xff], "a string is not valid UTF-8"),
        ("\"bytes\"", &[1], "a length is negative"),
        (
            "\"bytes\"",
            &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            "the data is truncated",
        ),
        ("[\"null\",\"int\"]", &[4], "a union index is out of range"),
        ("[\"null\",\"int\"]", &[1], "a union index is out of range"),
        (
            r#"{"type":"enum","name":"E","symbols":["A"]}"#,
            &[2],
            "an enum index is out of range",
        ),
        (maps, &[2, 2, b'k', 0x80], "field \"k\": the data is truncated"),
        (LIST, &[2, 2, 2], "field \"rest.rest\": the data is truncated"),
        (
            "\"null\"",
            &[0],
            "1 bytes follow the value: the data does not match this schema",
        ),
    ] {
        assert_eq!(
            decoded(&codec(schema), data, Form::Plain),
            Err(expected.to_owned()),
            "{schema}"
        );
    }
}

#[test]
fn reads_blocks() {
    let array = codec(r#"{"type":"array","items":"int"}"#);
    // A block of one item, then a block of two with its size in bytes.
    let value = decoded(&array, &[2, 2, 3, 4, 4, 6, 0], Form::Plain);
    assert_eq!(value, Ok(json!([1, 2, 3])));
}

#[test]
fn bounds_json_size_and_depth() {
    // 2^62 nulls.
    let nulls = codec(r#"{"type":"array","items":"null"}"#);
    let data = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1];
    let error = decoded(&nulls, &data, Form::Plain).unwrap_err();
    assert!(error.contains("larger than 33554432 bytes"), "{error}");
    let list = [2].repeat(1_000_000);
    for form in [Form::Plain, Form::Tagged] {
        let error = decoded(&codec(LIST), &list, form).unwrap_err();
        assert!(error.contains("deeper than 100 levels"), "{error}");
    }
}

#[test]
fn bounds_union_backtracking() {
    // At each level both types fit, except for the innermost value.
    let schema = r#"{"type":"record","name":"A","fields":[{"name":"n","type":[{"type":"record","name":"B","fields":[
        {"name":"n","type":["null","A","B"]}]},"A","int"]}]}"#;
    let json = format!("{}true{}", "{\"n\":".repeat(60), "}".repeat(60));
    let error = encoded(&codec(schema), &json, Form::Plain).unwrap_err();
    assert!(error.contains("too many union types"), "{error}");
}

#[test]
fn bounds_encoded_size() {
    let codec = codec(r#"{"type":"array","items":"long"}"#);
    let made = codec.encode(b"[1,2,3]", Form::Plain, vec![0; 5], 10);
    assert_eq!(made.unwrap().len(), 10);
    let error = codec.encode(b"[1,2,3]", Form::Plain, vec![0; 5], 9).unwrap_err();
    assert_eq!(error.to_string(), "it exceeds 9 bytes");
}

#[test]
fn rejects_unusable_schemas() {
    let nested = |levels: usize| {
        let (open, end) = (
            "{\"type\":\"array\",\"items\":".repeat(levels),
            "}".repeat(levels),
        );
        format!("{open}\"int\"{end}")
    };
    let wide = format!(
        r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":"string","default":"{}"}}]}}"#,
        "x".repeat(1024 * 1024)
    );
    for (schema, expected) in [
        ("{", "it is not valid JSON"),
        ("\"Order\"", "Order"),
        (
            r#"{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}"#,
            "default",
        ),
        (
            r#"{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":2},"default":"x"}]}"#,
            "the default of field \"a\"",
        ),
        (
            r#"{"type":"record","name":"R","fields":[{"name":"r","type":"R","default":{}}]}"#,
            "R",
        ),
        (&nested(65), "nested deeper than 64 levels"),
        (&wide, "the default of field \"a\": it exceeds 1048576 bytes"),
    ] {
        let error = Codec::parse(schema).map(drop).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.chars().count() < 400, "{error}");
    }
    assert!(Codec::parse(&nested(64)).is_ok());
}

/// A schema and a value in bare JSON. Unions have at most one type per JSON kind, so that the JSON is
/// unambiguous.
fn any_typed() -> impl Strategy<Value = (Value, Value)> {
    let leaf = prop_oneof![
        Just((json!("null"), json!(null))),
        any::<bool>().prop_map(|value| (json!("boolean"), json!(value))),
        any::<i32>().prop_map(|value| (json!("int"), json!(value))),
        any::<i64>().prop_map(|value| (
            json!({"type": "long", "logicalType": "timestamp-micros"}),
            json!(value)
        )),
        any::<i64>().prop_map(|value| (json!("long"), json!(value))),
        any::<f64>()
            .prop_filter("in JSON", |value| value.is_finite())
            .prop_map(|value| (json!("double"), json!(value))),
        any::<f32>()
            .prop_filter("in JSON", |value| value.is_finite())
            .prop_map(|value| {
                let shortest = serde_json::to_string(&value).unwrap();
                (json!("float"), serde_json::from_str(&shortest).unwrap())
            }),
        ".{0,8}".prop_map(|value| (json!("string"), json!(value))),
        proptest::collection::vec(any::<u8>(), 0..8).prop_map(|value| {
            let text: String = value.into_iter().map(char::from).collect();
            (json!("bytes"), json!(text))
        }),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0_usize..4).prop_map(|((schema, value), count)| {
                (
                    json!({"type": "array", "items": schema}),
                    json!(vec![value; count]),
                )
            }),
            (inner.clone(), proptest::collection::vec(".{0,4}", 0..4)).prop_map(|((schema, value), keys)| {
                let entries: serde_json::Map<_, _> =
                    keys.into_iter().map(|key| (key, value.clone())).collect();
                (json!({"type": "map", "values": schema}), Value::Object(entries))
            }),
            proptest::collection::vec(inner.clone(), 0..4).prop_map(|fields| {
                // Type names must differ.
                static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
                let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (mut schemas, mut values) = (Vec::new(), serde_json::Map::new());
                for (place, (schema, value)) in fields.into_iter().enumerate() {
                    let name = format!("f{place}");
                    schemas.push(json!({"name": name, "type": schema}));
                    values.insert(name, value);
                }
                let schema = json!({"type": "record", "name": format!("R{number}"), "fields": schemas});
                (schema, Value::Object(values))
            }),
            (inner, any::<bool>()).prop_filter_map("no union of a union", |((schema, value), first)| {
                if schema.is_array() || schema == json!("null") {
                    return None;
                }
                Some(if first {
                    (json!([schema, "null"]), value)
                } else {
                    (json!(["null", schema]), value)
                })
            }),
        ]
    })
}

proptest! {
    #[test]
    fn json_round_trip_in_both_forms((schema, value) in any_typed()) {
        let schema = schema.to_string();
        let codec = codec(&schema);
        let made = encoded(&codec, &value.to_string(), Form::Plain).unwrap();
        prop_assert_eq!(&decoded(&codec, &made, Form::Plain).unwrap(), &value);
        let tagged = decoded(&codec, &made, Form::Tagged).unwrap();
        prop_assert_eq!(&encoded(&codec, &tagged.to_string(), Form::Tagged).unwrap(), &made);
        // Another implementation decodes it and encodes the same values, possibly in another order.
        let other = read(&schema, &made);
        let parsed = Schema::parse_str(&schema).unwrap();
        let writer = GenericDatumWriter::builder(&parsed).build().unwrap();
        let mut theirs = Vec::new();
        writer.write_value(&mut theirs, other).unwrap();
        prop_assert_eq!(&decoded(&codec, &theirs, Form::Plain).unwrap(), &value);
    }

    #[test]
    fn never_panics(data in proptest::collection::vec(any::<u8>(), 0..64), text in "\\PC{0,64}") {
        for schema in [LIST, ORDER] {
            let codec = codec(schema);
            for form in [Form::Plain, Form::Tagged] {
                let _refused = codec.encode(text.as_bytes(), form, Vec::new(), MAX_ENCODED);
                if let Ok(json) = codec.decode(&data, form) {
                    let again = codec.encode(&json, form, Vec::new(), MAX_ENCODED);
                    // JSON has no infinity.
                    prop_assert!(again.is_ok() || json.windows(5).any(|part| part == b"1e999"));
                }
            }
        }
        let _refused = Codec::parse(&text);
    }
}
