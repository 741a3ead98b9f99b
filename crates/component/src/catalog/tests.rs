use std::time::Duration;

use futures::executor::block_on;

use super::*;
use crate::Unit;

/// The texts of the error of a component that reads `a`, `b` and `c` and then does `more`, and the properties.
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
fn every_wrong_value_is_told_and_nothing_is_done_without_it() {
    let about = |told: Vec<(String, Option<String>)>| -> Vec<Option<String>> {
        told.into_iter().map(|(_, property)| property).collect()
    };
    let all = ["a", "b", "c"].map(|name| Some(name.to_owned()));
    // A component that would wait, one that fails because of what was left out, and one that would work.
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
fn what_another_build_has_is_told() {
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
fn a_wrong_type_is_told_the_one_meant() {
    let hinted = |kind: &str| match section().find(kind, "v1") {
        Err(LookupError::UnknownType { hint, .. }) => hint,
        other => panic!("{kind}: {:?}", other.err()),
    };
    assert_eq!(hinted("state.sqlit"), "did you mean state.sqlite? ");
    assert_eq!(hinted("state.postgres"), "did you mean state.postgresql? ");
    assert_eq!(hinted("state.mongodb"), "");
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
async fn types_have_aliases_and_any_case() {
    let section = section();
    for kind in ["state.sqlite", "STATE.SQLite3"] {
        for version in ["", "v0", "V1"] {
            assert_eq!(built(&section, kind, version).await, "sqlite");
        }
    }
}

#[tokio::test]
async fn versions_select_and_the_empty_one_is_the_default() {
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
async fn unknown_types_say_what_there_is() {
    let section = section();
    for kind in ["state.nosuch", "pubsub.sqlite", "sqlite", "state."] {
        let error = built(&section, kind, "v1").await;
        assert!(error.contains("state.sqlite3"), "{error}");
    }
}

#[tokio::test]
async fn a_later_entry_replaces_an_earlier_one() {
    let mut section = section();
    section.add(Entry::new(&["sqlite"], Version::Only, |_| async {
        Err(Error::new(Kind::Internal, "pluggable"))
    }));
    assert_eq!(built(&section, "state.sqlite", "v1").await, "pluggable");
    assert_eq!(built(&section, "state.sqlite3", "v1").await, "sqlite");
}
