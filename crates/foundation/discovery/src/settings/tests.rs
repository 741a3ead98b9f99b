use outrigger_testing::pages::Page;
use outrigger_testing::pages::settings::{Documented, documented_by, sections};
use serde_json::json;

use super::*;

#[test]
fn parses_durations() {
    for (text, millis) in [
        ("5s", Some(5000)),
        ("800ms", Some(800)),
        ("1h0m1.5s", Some(3_601_500)),
        ("7", Some(7000)),
        ("", Some(0)),
        ("-1s", Some(0)),
        ("5", Some(5000)),
        ("5x", None),
        ("s", None),
        ("1.2.3s", None),
    ] {
        assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text}");
    }
}

#[test]
fn keys_ignore_case_and_accept_aliases() {
    let value = json!({"ConnectionSTRING": "data.db", "disablewal": "Yes", "n": null});
    let settings = Settings::new(&value).unwrap();
    assert_eq!(
        settings.filled(&["url", "connectionString"]).unwrap().unwrap(),
        "data.db"
    );
    #[cfg(any(feature = "sqlite", feature = "consul"))]
    assert!(settings.flag(&["disableWAL"]).unwrap());
    assert!(settings.find(&["n"], PropertyType::Any).is_none());
    assert_eq!(Settings::new(&json!([1])).err(), Some(SettingsError::NotAMap));
}

#[cfg(feature = "consul")]
#[test]
fn suggests_names_for_unused_settings() {
    let value = json!({
        "selfRegistr": true,
        "TAGS": [],
        "client": {"adress": "h:1", "Token": "t", "tlsconfig": {"caFil": "f", "certFile": "g"}},
        "meta": {"free": "text"},
        "other": {"inner": 1},
    });
    let settings = Settings::new(&value).unwrap();
    settings.flag(&["selfRegister"]).unwrap();
    settings.value("tags");
    settings.value("meta");
    let client = settings.nested("client").unwrap();
    client.filled(&["address"]).unwrap();
    client.filled(&["token"]).unwrap();
    let tls = client.nested("tlsConfig").unwrap();
    tls.filled(&["caFile"]).unwrap();
    tls.filled(&["certFile"]).unwrap();
    let unused = |name: &str, near: Option<&str>| Unused {
        name: name.to_owned(),
        near: near.map(str::to_owned),
    };
    let mut found = settings.unused();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(
        found,
        [
            unused("client.adress", Some("client.address")),
            unused("client.tlsConfig.caFil", Some("client.tlsConfig.caFile")),
            unused("other", None),
            unused("selfRegistr", Some("selfRegister")),
        ]
    );
}

/// The warnings logged by `run` on this thread.
pub(crate) fn warnings(run: impl FnOnce()) -> Vec<String> {
    let lines = outrigger_testing::log_lines::Lines::new();
    run();
    let warnings = lines.take("dapr.contrib", tracing::Level::WARN);
    warnings.into_iter().map(|line| line.message).collect()
}

/// Compares the section of a resolver on its page with the settings that it has read: names, types and
/// defaults.
pub(crate) fn check_docs(resolver: &str, settings: &Settings<'_>) {
    let page = Page::read("reference/components/name-resolution.md");
    let sections = sections(page.text());
    let section = sections.iter().find(|(heading, _)| heading == resolver);
    let rows = section.map(|(_, rows)| documented_by(rows)).unwrap_or_default();
    // Maps occur in the names of their settings.
    let mut read = settings.looked_up();
    read.retain(|_, reading| *reading != PropertyType::Map);
    let mut wrong = Vec::new();
    for (name, reading) in &read {
        match rows.get(&name.to_lowercase()) {
            None => wrong.push(format!("{name} is missing")),
            Some(row) if !is_right(row, *reading) => wrong.push(format!("{name} is read as {reading:?}")),
            Some(_) => {}
        }
    }
    let is_read = |name: &String| read.keys().any(|read| read.eq_ignore_ascii_case(name));
    let more = rows.keys().filter(|name| !is_read(name));
    wrong.extend(more.map(|name| format!("{name} is listed, and not read")));
    assert!(
        wrong.is_empty(),
        "docs/reference/components/name-resolution.md, {resolver}:\n{}",
        wrong.join("\n")
    );
}

/// Whether a row states the setting's type and default.
fn is_right(row: &Documented, reading: PropertyType) -> bool {
    let default = row.default.trim_matches('`');
    match reading {
        PropertyType::Map | PropertyType::Any | PropertyType::Text(None) => true,
        PropertyType::Text(Some(text)) => default == text,
        PropertyType::Flag => row.kind == "switch" && default == "off",
        PropertyType::Duration(span) => row.kind == "duration" && parse_duration(default) == Some(span),
        PropertyType::Nanoseconds => row.kind == "nanoseconds",
        PropertyType::Number => row.kind == "number",
    }
}

#[test]
fn detects_wrong_type_or_default() {
    let row = |kind: &str, default: &str| Documented {
        kind: kind.to_owned(),
        default: default.to_owned(),
    };
    let second = PropertyType::Duration(Duration::from_secs(1));
    assert!(is_right(&row("duration", "`1s`"), second));
    assert!(!is_right(&row("duration", "`2s`"), second));
    assert!(!is_right(&row("number", "`1s`"), second));
    assert!(is_right(
        &row("name", "`hosts`"),
        PropertyType::Text(Some("hosts"))
    ));
    assert!(!is_right(
        &row("name", "`host`"),
        PropertyType::Text(Some("hosts"))
    ));
    assert!(is_right(&row("switch", "off"), PropertyType::Flag));
    assert!(!is_right(&row("switch", "on"), PropertyType::Flag));
    assert!(!is_right(&row("duration", "none"), PropertyType::Nanoseconds));
    assert!(!is_right(&row("text", "none"), PropertyType::Number));
}
