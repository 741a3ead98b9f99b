//! Secrets from a file and from the environment.

use std::{collections::HashMap, fs};

use outrigger_component::{Kind, Pairs, secrets::Feature};
use outrigger_component_conformance::{self as conformance, ExpectedSecrets};
use outrigger_components_testing::Components;

fn components() -> Components {
    Components::of(outrigger_components_local::add)
}

fn expected(present: &[(&str, &[(&str, &str)])], hidden: &[&str]) -> ExpectedSecrets {
    let pairs = |pairs: &[(&str, &str)]| -> Pairs {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    };
    ExpectedSecrets {
        present: present
            .iter()
            .map(|(name, secret)| ((*name).to_owned(), pairs(secret)))
            .collect::<HashMap<_, _>>(),
        hidden: hidden.iter().map(|name| (*name).to_owned()).collect(),
    }
}

const DOCUMENT: &str = r#"{
    "plain": "p",
    "redis": { "password": "r", "ports": [6379, "6380"], "tls": { "on": true } }
}"#;

#[tokio::test]
async fn flattens_nested_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    fs::write(&path, DOCUMENT).unwrap();
    let path = path.to_str().unwrap();
    for (properties, separator) in [
        (vec![("secretsFile", path)], ":"),
        (vec![("secretsFile", path), ("nestedSeparator", ".")], "."),
    ] {
        let store = components()
            .secrets("secretstores.local.file", "v1", &properties)
            .await
            .unwrap();
        assert!(store.features().is_empty());
        let name = |parts: &[&str]| parts.join(separator);
        let (password, port, tls) = (
            name(&["redis", "password"]),
            name(&["redis", "ports", "0"]),
            name(&["redis", "tls", "on"]),
        );
        conformance::secrets(
            &store,
            &expected(
                &[
                    ("plain", &[("plain", "p")]),
                    (&password, &[(&password, "r")]),
                    (&port, &[(&port, "6379")]),
                    (&tls, &[(&tls, "true")]),
                ],
                &["redis", "nosuch"],
            ),
        )
        .await;
        let error = store.get("nosuch", &Pairs::new()).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (Kind::NotFound, "secret nosuch not found")
        );
    }
}

#[tokio::test]
async fn multi_valued_keeps_first_level() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    fs::write(&path, DOCUMENT).unwrap();
    let properties = [("secretsFile", path.to_str().unwrap()), ("multiValued", "true")];
    let store = components()
        .secrets("secretstores.local.file", "v1", &properties)
        .await
        .unwrap();
    assert_eq!(store.features(), [Feature::MultipleKeyValues]);
    let redis: &[(&str, &str)] = &[
        ("password", "r"),
        ("ports:0", "6379"),
        ("ports:1", "6380"),
        ("tls:on", "true"),
    ];
    let present = [("plain", &[("plain", "p")][..]), ("redis", redis)];
    conformance::secrets(&store, &expected(&present, &["redis:password"])).await;
}

#[tokio::test]
async fn keeps_values_after_duplicate_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    fs::write(&path, r#"{"db":{"a":{"b":"1"},"a:b":"2","password":"x"}}"#).unwrap();
    let properties = [("secretsFile", path.to_str().unwrap()), ("multiValued", "true")];
    let store = components()
        .secrets("secretstores.local.file", "v1", &properties)
        .await
        .unwrap();
    let secret = store.get("db", &Default::default()).await.unwrap();
    assert_eq!(secret.get("a:b").map(String::as_str), Some("1"));
    assert_eq!(secret.get("password").map(String::as_str), Some("x"));
}

#[tokio::test]
async fn unusable_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secrets.json");
    let properties = [("secretsFile", path.to_str().unwrap())];
    let failure = async || {
        let store = components()
            .secrets("secretstores.local.file", "v1", &properties)
            .await;
        let error = store.map(drop).unwrap_err();
        assert_eq!(error.property(), Some("secretsFile"), "{error}");
        error.to_string()
    };
    let missing = failure().await;
    assert!(missing.contains("secrets.json: cannot be read"), "{missing}");
    fs::write(&path, "[1]").unwrap();
    let wrong = failure().await;
    assert!(wrong.contains("not a JSON object"), "{wrong}");
    fs::write(&path, r#"{"a":{"b":"1"},"a:b":"2"}"#).unwrap();
    let twice = failure().await;
    assert!(twice.contains("a:b occurs twice"), "{twice}");
    fs::remove_file(&path).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&path)
            .status()
            .unwrap()
            .success()
    );
    let pipe = failure().await;
    assert!(pipe.contains("named pipe (FIFO), not a regular file"), "{pipe}");
    let without = components().secrets("secretstores.local.file", "v1", &[]).await;
    let without = without.map(drop).unwrap_err().to_string();
    assert!(without.contains("secretsFile is missing"), "{without}");
}

#[tokio::test]
async fn environment_hides_sidecar_variables() {
    // Cargo sets this variable for every test.
    let version = env!("CARGO_PKG_VERSION");
    let store = components()
        .secrets("secretstores.local.env", "v1", &[])
        .await
        .unwrap();
    let whole = [("CARGO_PKG_VERSION", &[("CARGO_PKG_VERSION", version)][..])];
    conformance::secrets(
        &store,
        &expected(
            &whole,
            &["DAPR_API_TOKEN", "dapr_x", "APP_API_TOKEN", "NO_SUCH_VARIABLE"],
        ),
    )
    .await;
    let prefixed = components()
        .secrets("secretstores.local.env", "v1", &[("prefix", "CARGO_PKG_")])
        .await
        .unwrap();
    let short = [("VERSION", &[("VERSION", version)][..])];
    conformance::secrets(&prefixed, &expected(&short, &["CARGO_PKG_VERSION"])).await;
}
