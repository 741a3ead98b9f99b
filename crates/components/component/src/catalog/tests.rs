use std::time::Duration;

use futures::executor::block_on;

use super::*;
use crate::Unit;

/// Error texts and properties of a component that reads `a`, `b` and `c` and then does `more`.
fn wrong<R>(more: fn(Metadata) -> R) -> Vec<(String, Option<String>)>
where
    R: Future<Output = Result<()>> + Send + 'static,
{
    let entry: Entry<dyn StateStore> = Entry::new(&["x"], Version::Only, move |setup: Setup| async move {
        let (metadata, second) = (setup.metadata, Duration::from_secs(1));
        let _number: Option<u8> = metadata.number(&["a"])?;
        let _duration = metadata.duration(&["b"], Unit::Seconds)?;
        let _span = metadata.span(&["c"], second, second)?;
        more(metadata).await?;
        Err(Error::new(Kind::Internal, "built"))
    });
    let given = [("a", "300"), ("b", "soon"), ("c", "1ms")].map(|(n, v)| (n.to_owned(), v.to_owned()));
    let setup = Setup {
        metadata: Metadata::new("x", given).unwrap(),
        app_id: String::new(),
    };
    let metadata = setup.metadata.clone();
    let error = block_on(entry.build(setup)).map(drop).unwrap_err();
    assert!(metadata.number::<u8>(&["a"]).is_err(), "only while it is built");
    let each = error.each();
    each.map(|(text, property)| (text, property.map(str::to_owned)))
        .collect()
}

#[test]
fn reports_all_invalid_values() {
    let about = |told: Vec<(String, Option<String>)>| -> Vec<Option<String>> {
        told.into_iter().map(|(_, property)| property).collect()
    };
    let all = ["a", "b", "c"].map(|name| Some(name.to_owned()));
    // A component that would wait, one that fails because a value was left out, and one that would work.
    assert_eq!(about(wrong(|_| std::future::pending())), all);
    assert_eq!(
        about(wrong(|_| async { Err(Error::new(Kind::Unavailable, "away")) })),
        all
    );
    assert_eq!(about(wrong(|_| async { Ok(()) })), all);
    let told = wrong(|metadata| async move { Ok(metadata.required(&["d"]).map(drop)?) });
    assert_eq!(about(told)[2..], [Some("c".to_owned()), Some("d".to_owned())]);
    let told = wrong(|metadata| async move { Err(metadata.wrong(&["a"], "something else").into()) });
    assert_eq!(told.len(), 3, "each property once: {told:?}");
}

/// The properties named by the error of a component that reads these.
fn named(reads: fn(&Metadata) -> Result<()>, given: &[(&str, &str)]) -> Vec<String> {
    let entry: Entry<dyn StateStore> = Entry::new(&["x"], Version::Only, move |setup: Setup| async move {
        reads(&setup.metadata)?;
        // Here it would connect.
        std::future::pending().await
    });
    let given = given.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    let setup = Setup {
        metadata: Metadata::new("x", given).unwrap(),
        app_id: String::new(),
    };
    let metadata = setup.metadata.clone();
    let error = block_on(entry.build(setup)).map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
    assert!(
        metadata.required(&["nobody gives it"]).is_err(),
        "only while it is built"
    );
    let each = error.each();
    each.map(|(_, property)| property.unwrap_or_default().to_owned())
        .collect()
}

fn one_of(metadata: &Metadata, names: &[&str], right: &str) -> Result<()> {
    match metadata.filled(names) {
        Some(text) if text != right => Err(metadata.wrong(names, &format!("use {right}")).into()),
        _ => Ok(()),
    }
}

#[test]
fn reports_own_checks_together() {
    let reads = |metadata: &Metadata| {
        let (_url, _topic) = (metadata.required(&["url"])?, metadata.required(&["topic"])?);
        one_of(metadata, &["mode", "oldMode"], "fast")?;
        let _number: Option<u8> = metadata.number(&["retries"])?;
        one_of(metadata, &["kind"], "good")?;
        one_of(metadata, &["last"], "good")
    };
    let wrong = [
        ("OLDMODE", "slow"),
        ("retries", "300"),
        ("kind", "bad"),
        ("last", "bad"),
    ];
    assert_eq!(
        named(reads, &wrong),
        ["url", "topic", "retries", "OLDMODE", "kind", "last"]
    );
    assert_eq!(named(reads, &[("topic", "a"), ("url", "")]), ["url"]);
}

#[test]
fn omits_follow_up_errors() {
    let reads = |metadata: &Metadata| {
        // A certificate, its key, and one of two ways to give an address.
        let pem = |name: &str| match metadata.filled(&[name]) {
            Some(text) if !text.starts_with("PEM") => Err(metadata.wrong(&[name], "PEM is expected")),
            other => Ok(other),
        };
        match (pem("cert")?, pem("key")?) {
            (Some(_), None) => return Err(metadata.wrong(&["key"], "cert needs it").into()),
            (None, Some(_)) => return Err(metadata.wrong(&["cert"], "key needs it").into()),
            _ => {}
        }
        match metadata.filled(&["file"]) {
            Some(_) => Err(metadata.wrong(&["file"], "it cannot be read").into()),
            None => metadata.required(&["host"]).map(drop).map_err(Error::from),
        }
    };
    assert_eq!(named(reads, &[("cert", "x"), ("key", "PEM")]), ["cert"]);
    assert_eq!(named(reads, &[("cert", "PEM"), ("file", "x")]), ["key"]);
    assert_eq!(named(reads, &[("file", "x")]), ["file"]);
    assert_eq!(named(reads, &[("cert", "PEM")]), ["key"]);
}

#[test]
fn does_not_rerun_waiting_factory() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let entry: Entry<dyn StateStore> = Entry::new(&["x"], Version::Only, move |setup: Setup| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            // The server reports a missing table.
            tokio::task::yield_now().await;
            Err(setup.metadata.wrong(&["table"], "it does not exist").into())
        }
    });
    let setup = Setup {
        metadata: Metadata::new("x", [("table".to_owned(), "a".to_owned())]).unwrap(),
        app_id: String::new(),
    };
    let error = block_on(entry.build(setup)).map(drop).unwrap_err();
    assert_eq!(error.property(), Some("table"));
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

fn section() -> Section<dyn StateStore> {
    let mut section: Section<dyn StateStore> = Section::new("state");
    let fail = |text: &'static str| move |_| async move { Err(Error::new(Kind::Internal, text)) };
    section.add(Entry::new(&["sqlite", "sqlite3"], Version::Only, fail("sqlite")));
    for (name, default) in [("v1", true), ("v2", false)] {
        section.add(Entry::new(
            &["postgresql"],
            Version::Named { name, default },
            fail(name),
        ));
    }
    section
}

#[test]
fn names_build_with_the_type() {
    let mut section = section();
    section.elsewhere("mongodb", "build with the feature mongodb");
    let error = section
        .find("State.MongoDB", "v1")
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("v1: this build lacks it: build with the feature mongodb. this build has state."),
        "{error}"
    );
    assert!(!section.has("mongodb"));
}

#[test]
fn suggests_pluggable_component_for_dapr_types() {
    let text = |kind: &str| section().find(kind, "v1").map(drop).unwrap_err().to_string();
    let error = text("State.AWS.DynamoDB");
    let expected = "v1: state.aws.dynamodb is available in Dapr but not in this build: provide it as a pluggable component with the \
                    socket aws.dynamodb.sock (docs/reference/components/pluggable.md). this build has state.";
    assert!(error.contains(expected), "{error}");
    // Pluggable components do not support this category.
    let crypto = "crypto.azure.keyvault is available in Dapr but not in this build. ";
    assert_eq!(only_of_dapr("crypto.azure.keyvault").as_deref(), Some(crypto));
    for kind in all_only_of_dapr() {
        assert!(
            only_of_dapr(&kind).is_some(),
            "the names of a category are sorted: {kind}"
        );
    }
    assert_eq!(only_of_dapr("state.nosuch"), None);
}

#[test]
fn suggests_intended_type() {
    let hinted = |kind: &str| match section().find(kind, "v1") {
        Err(LookupError::UnknownType { hint, .. }) => hint,
        other => panic!("{kind}: {:?}", other.err()),
    };
    assert_eq!(hinted("state.sqlit"), "did you mean state.sqlite? ");
    assert_eq!(hinted("state.postgres"), "did you mean state.postgresql? ");
    assert_eq!(hinted("state.nosuch"), "");
    let mut catalog = Catalog::empty();
    catalog.state = section();
    assert_eq!(catalog.nearest("stat.sqlite").as_deref(), Some("state.sqlite"));
    assert_eq!(catalog.nearest("sqlite3").as_deref(), Some("state.sqlite3"));
    assert_eq!(catalog.nearest("kafka"), None);
    let unknown = |kind, version| catalog.check(kind, version).unwrap_err().map(|e| e.to_string());
    assert!(
        unknown("state.sqlit", "v1")
            .unwrap()
            .contains("did you mean state.sqlite?")
    );
    assert!(
        unknown("state.sqlite", "v9")
            .unwrap()
            .contains("set spec.version to v1")
    );
    assert_eq!(unknown("stat.sqlite", "v1"), None);
    catalog.check("state.sqlite", "v1").unwrap();
}

async fn built(section: &Section<dyn StateStore>, kind: &str, version: &str) -> String {
    let setup = Setup {
        metadata: Metadata::new("store", []).unwrap(),
        app_id: "app".to_owned(),
    };
    match section.find(kind, version) {
        Ok(entry) => match entry.build(setup).await {
            Ok(_) => unreachable!("the factories of this test fail"),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn finds_aliases_in_any_case() {
    let section = section();
    for kind in ["state.sqlite", "STATE.SQLite3"] {
        for version in ["", "v0", "V1"] {
            assert_eq!(built(&section, kind, version).await, "sqlite");
        }
    }
}

#[tokio::test]
async fn selects_version_with_empty_default() {
    let section = section();
    assert_eq!(built(&section, "state.postgresql", "").await, "v1");
    assert_eq!(built(&section, "state.postgresql", "v2").await, "v2");
    let error = built(&section, "state.postgresql", "v0").await;
    assert!(
        error.contains("state.postgresql/v0") && error.contains("v2 or v1"),
        "{error}"
    );
    let error = built(&section, "state.sqlite", "v2").await;
    assert!(error.contains("set spec.version to v1"), "{error}");
}

#[tokio::test]
async fn unknown_type_lists_known_types() {
    let section = section();
    for kind in ["state.nosuch", "pubsub.sqlite", "sqlite", "state."] {
        let error = built(&section, kind, "v1").await;
        assert!(error.contains("state.sqlite3"), "{error}");
    }
}

#[tokio::test]
async fn later_entry_replaces_earlier() {
    let mut section = section();
    section.add(Entry::new(&["sqlite"], Version::Only, |_| async {
        Err(Error::new(Kind::Internal, "pluggable"))
    }));
    assert_eq!(built(&section, "state.sqlite", "v1").await, "pluggable");
    assert_eq!(built(&section, "state.sqlite3", "v1").await, "sqlite");
}
