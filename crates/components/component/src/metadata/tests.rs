use super::*;

fn metadata(properties: &[(&str, &str)]) -> Metadata {
    let owned = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Metadata::new("orders", owned).unwrap()
}

#[test]
fn main_name_wins_in_any_case() {
    let metadata = metadata(&[("ConnectionSTRING", "a"), ("url", "b")]);
    assert_eq!(metadata.text(&["connectionString", "url"]), Some("a"));
    assert_eq!(metadata.text(&["missing", "URL"]), Some("b"));
    assert_eq!(metadata.text(&["missing"]), None);
}

#[test]
fn hides_values_from_secret_stores() {
    let metadata = metadata(&[
        ("redisDB", "S3CRET"),
        ("redisHost", "S3CRET-host"),
        ("ttl", "soon"),
    ]);
    let metadata = metadata.with_secrets(["redisDB", "redishost"]);
    let error = metadata.number::<u8>(&["redisDB"]).unwrap_err().to_string();
    assert!(error.contains("redisDB") && !error.contains("S3CRET"), "{error}");
    let error = metadata
        .duration(&["ttl"], Unit::Seconds)
        .unwrap_err()
        .to_string();
    assert!(error.contains("soon"), "{error}");
    let text = "cannot connect to S3CRET-host:6379 as S3CRET";
    assert_eq!(metadata.redact(text), "cannot connect to ***:6379 as ***");
}

#[test]
fn address_passwords_are_secrets() {
    let metadata = metadata(&[
        ("endpoints", "http://me:hush-1@a:1,http://me:hush%202@b:2"),
        ("schedule", "@every 5s"),
    ]);
    let text = "http://me:hush-1@a:1: no, hush 2 and hush%202: no; @every 5s";
    let expected = "http://me:***@a:1: no, *** and ***: no; @every 5s";
    assert_eq!(metadata.redact(text), expected);
    for names in [["endpoints"], ["schedule"]] {
        let error = metadata.wrong(&names, "no").to_string();
        assert!(!error.contains("hush"), "{error}");
        assert_eq!(error.contains("@every"), names == ["schedule"], "{error}");
    }
}

#[test]
fn suggests_names_for_unused_properties() {
    let metadata = metadata(&[
        ("redisHots", "a"),
        ("ttl", "1"),
        ("redisDB", "0"),
        ("colour", "red"),
    ]);
    let copy = metadata.clone();
    assert_eq!(metadata.text(&["redisHost", "host"]), None);
    assert_eq!(copy.text(&["REDISDB"]), Some("0"));
    assert!(metadata.flag(&["ttlInSeconds", "TTL"], false));
    let unused = |name: &str, near: Option<&str>| Unused {
        name: name.to_owned(),
        near: near.map(str::to_owned),
    };
    assert_eq!(
        metadata.unused(),
        [unused("colour", None), unused("redisHots", Some("redisHost"))]
    );
    assert_eq!(copy.iter().count(), 4);
    assert!(metadata.unused().is_empty(), "who takes all knows all");
}

#[test]
fn rejects_names_differing_in_case() {
    let pairs = [("a", "1"), ("A", "2")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let error = Metadata::new("orders", pairs).unwrap_err().to_string();
    assert!(error.contains("orders") && error.contains("a and A"), "{error}");
}

#[test]
fn parses_go_and_bare_durations() {
    let metadata = metadata(&[("a", "90"), ("b", "1m30s"), ("c", "-1"), ("d", ""), ("e", "soon")]);
    let nanos = |name, unit| metadata.duration(&[name], unit).unwrap().unwrap().nanos;
    assert_eq!(nanos("a", Unit::Seconds), 90_000_000_000);
    assert_eq!(nanos("a", Unit::Milliseconds), 90_000_000);
    assert_eq!(nanos("b", Unit::Milliseconds), 90_000_000_000);
    assert_eq!(nanos("c", Unit::Milliseconds), -1);
    assert_eq!(nanos("c", Unit::Seconds), -1_000_000_000);
    assert_eq!(nanos("d", Unit::Seconds), 0);
    assert_eq!(metadata.duration(&["x"], Unit::Seconds), Ok(None));
    let error = metadata.duration(&["E"], Unit::Seconds).unwrap_err().to_string();
    for part in ["orders", "property e", "soon", "like 30s"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn rejects_spans_below_minimum() {
    let metadata = metadata(&[("timeout", "500ms")]);
    let second = Duration::from_secs(1);
    assert!(metadata.span(&["timeout"], second, second).is_err());
    assert_eq!(metadata.span(&["other"], second * 20, second), Ok(second * 20));
}

#[test]
fn out_of_range_number_names_property() {
    let metadata = metadata(&[("redisPort", "70000"), ("empty", "")]);
    let error = metadata.number::<u16>(&["redisport"]).unwrap_err().to_string();
    assert!(error.contains("redisPort") && error.contains("70000"), "{error}");
    assert_eq!(metadata.number::<u16>(&["empty"]), Ok(None));
}

#[test]
fn hides_potential_secrets() {
    let metadata = metadata(&[("redisPassword", "hunter2")]);
    let error = metadata.wrong(&["redisPassword"], "something else").to_string();
    assert!(!error.contains("hunter2"), "{error}");
    assert!(!format!("{metadata:?}").contains("hunter2"));
    for (property, value) in [("redisHost", "hunter2@h:1"), ("clientCert", "hunter2")] {
        let given = [(property, value)];
        let error = self::metadata(&given)
            .wrong(&[property], "something else")
            .to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn shows_urls_without_secrets() {
    for url in ["::::", "httq://h", "localhost:1234", "http:///", ""] {
        let error = metadata(&[("url", url)]).wrong(&["url"], "a URL").to_string();
        assert!(error.contains(&format!("invalid value {url:?} for")), "{error}");
    }
    for url in [
        "httq://me:hunter2@h",
        "me:hunter2@h",
        "httq://h?key=hunter2",
        "httq://h#hunter2",
        "httq://h/hooks/hunter2",
        "/hunter2",
    ] {
        let error = metadata(&[("jwksURL", url)])
            .wrong(&["jwksURL"], "a URL")
            .to_string();
        assert!(
            error.contains("invalid value for the metadata property jwksURL"),
            "{error}"
        );
    }
    let metadata = metadata(&[("url", "hunter2")]).with_secrets(["url"]);
    let error = metadata.wrong(&["url"], "a URL").to_string();
    assert!(!error.contains("hunter2"), "{error}");
}
