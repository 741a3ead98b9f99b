use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::meta::JsonText;
use crate::yaml::parse;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Sample {
    name: String,
    max_count: i32,
    enabled: bool,
    rate: f64,
    any: Option<JsonText>,
    labels: BTreeMap<String, String>,
    list: Vec<String>,
    inner: Option<Box<Sample>>,
}

fn read(text: &str, flavour: Flavour) -> Result<Decoded<Sample>, Error> {
    decode(&parse(text, 1).unwrap().unwrap(), flavour)
}

fn json(text: &str) -> Sample {
    read(text, Flavour::Json).expect("decodes").value
}

#[test]
fn texts_accept_numbers_and_booleans() {
    assert_eq!(json("name: 5").name, "5");
    assert_eq!(json("name: yes").name, "true");
    assert_eq!(json("name: 0x10").name, "16");
    assert_eq!(read("name: yes", Flavour::Text).unwrap().value.name, "yes");
    assert_eq!(json("labels: {a: 1, b: on}").labels["b"], "true");
}

#[test]
fn nulls_leave_defaults() {
    assert_eq!(
        json("name:\nmaxCount: ~\nlabels: null\nlist: null\ninner: null\nany: null"),
        Sample::default()
    );
    assert_eq!(json("list: [null, a]").list, ["", "a"]);
}

#[test]
fn converts_values_to_json_text() {
    let any = |text: &str| json(&format!("any: {text}")).any.map(|t| t.0);
    assert_eq!(any("hello"), Some("hello".to_owned()));
    assert_eq!(any("''"), Some(String::new()));
    assert_eq!(any("yes"), Some("true".to_owned()));
    assert_eq!(any("1.0"), Some("1".to_owned()));
    assert_eq!(
        any("{b: [1, x], a: ~}"),
        Some(r#"{"a":null,"b":[1,"x"]}"#.to_owned())
    );
    assert_eq!(any("null"), None);
}

#[test]
fn only_resources_ignore_key_case() {
    assert_eq!(json("MAXCOUNT: 3").max_count, 3);
    let text = read("MAXCOUNT: 3", Flavour::Text).unwrap();
    assert_eq!(text.value.max_count, 0);
    assert_eq!(
        text.unknown[0].what,
        "unknown key \"MAXCOUNT\", did you mean \"maxCount\"?"
    );
}

#[test]
fn last_duplicate_key_wins() {
    assert_eq!(json("name: a\nname: b").name, "b");
    assert_eq!(json("labels: {x: a, x: b}").labels["x"], "b");
}

#[test]
fn errors_have_path_and_line() {
    let error = read("name: a\ninner:\n  list:\n  - a\n  - [b]\n", Flavour::Json).unwrap_err();
    assert_eq!(
        (error.line, error.to_string().as_str()),
        (5, "inner.list[1]: expected a text, found a list")
    );
    let error = read("inner: {maxCount: x}", Flavour::Json).unwrap_err();
    assert_eq!(
        error.to_string(),
        "inner.maxCount: expected a whole number, found \"x\""
    );
    let error = read("maxCount: 3000000000", Flavour::Json).unwrap_err();
    assert_eq!(error.to_string(), "maxCount: 3000000000 is out of range");
    let error = read("enabled: 'true'", Flavour::Json).unwrap_err();
    assert!(error.to_string().contains("without quotes"), "{error}");
    let error = read("list: 5", Flavour::Json).unwrap_err();
    assert_eq!(error.to_string(), "list: expected a list, found a single value");
}
