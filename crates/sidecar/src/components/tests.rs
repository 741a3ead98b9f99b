use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outrigger_component::catalog::{Entry, Version};
use outrigger_component::{Catalog, Error, Kind, Pairs, Result, SecretStore, Setup, secrets::Feature};
use outrigger_resources::{Component, Configuration, NameValue, SecretKeyRef};
use outrigger_telemetry::metrics::Metrics;

use super::*;

/// Has one secret, `token`, whose value is the store's own property `value`.
struct Vault(String);

#[async_trait]
impl SecretStore for Vault {
    fn features(&self) -> &[Feature] {
        &[Feature::MultipleKeyValues]
    }

    async fn get(&self, name: &str, _metadata: &Pairs) -> Result<Pairs> {
        match name {
            "token" => Ok(Pairs::from([("token".to_owned(), self.0.clone())])),
            _ => Err(Error::new(Kind::NotFound, "no such secret")),
        }
    }

    async fn bulk_get(&self, _metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        Ok(HashMap::new())
    }
}

/// A catalog whose secret stores write down what they were given; `slow` ones never start.
fn catalog(seen: &Arc<Mutex<Vec<String>>>) -> Catalog {
    let mut catalog = Catalog::empty();
    let seen = Arc::clone(seen);
    catalog
        .secrets
        .add(Entry::new(&["vault"], Version::Only, move |setup: Setup| {
            let value = setup.metadata.text(&["value"]).unwrap_or("none").to_owned();
            let name = setup.metadata.component();
            seen.lock().unwrap().push(format!("{name}={value}"));
            async move { Ok(Arc::new(Vault(value)) as Arc<dyn SecretStore>) }
        }));
    catalog
        .secrets
        .add(Entry::new(&["slow"], Version::Only, |_| std::future::pending()));
    catalog
}

fn component(name: &str, kind: &str) -> Component {
    Component {
        name: name.to_owned(),
        namespace: String::new(),
        kind: kind.to_owned(),
        version: "v1".to_owned(),
        ignore_errors: false,
        init_timeout: Duration::from_secs(5),
        metadata: Vec::new(),
        secret_store: String::new(),
        scopes: Vec::new(),
        source: Default::default(),
    }
}

fn vault(name: &str, value: &str) -> Component {
    Component {
        metadata: vec![NameValue::new("value", value)],
        ..component(name, "secretstores.vault")
    }
}

/// A store whose value is the secret of another.
fn dependent(name: &str, store: &str, secret: &str) -> Component {
    let item = NameValue {
        name: "value".to_owned(),
        value: None,
        secret: Some(SecretKeyRef {
            name: secret.to_owned(),
            key: String::new(),
        }),
        env: None,
    };
    Component {
        metadata: vec![item],
        secret_store: store.to_owned(),
        ..component(name, "secretstores.vault")
    }
}

async fn started(components: &[Component]) -> (Result<Components, StartError>, Vec<String>) {
    let seen = Arc::default();
    let env: Env = Arc::new(|name| match name {
        "HOME_TOWN" => Some("Rome".to_owned()),
        "POD_NAME" => Some("pod-0".to_owned()),
        _ => None,
    });
    let context = Context {
        catalog: &catalog(&seen),
        app_id: "app",
        namespace: Some("ns"),
        env_keys: "",
        env: &env,
        configuration: &Configuration {
            denied_components: vec!["secretstores.denied".to_owned()],
            ..Configuration::default()
        },
        metrics: &Metrics::disabled().runtime,
    };
    let result = start(components, &context).await;
    let seen = seen.lock().unwrap().clone();
    (result, seen)
}

#[tokio::test]
async fn a_store_waits_for_the_store_of_its_secrets() {
    let components = [
        dependent("third", "second", "token"),
        dependent("second", "first", "token"),
        vault("first", "x"),
    ];
    let (result, seen) = started(&components).await;
    assert_eq!(result.unwrap().registered.len(), 3);
    assert_eq!(seen, ["first=x", "second=x", "third=x"]);
}

#[tokio::test]
async fn what_waits_in_vain_is_left_out() {
    let components = [
        dependent("a", "b", "token"),
        dependent("b", "a", "token"),
        vault("other", "x"),
        dependent("no-secret", "other", "missing"),
        component("denied", "secretstores.denied"),
    ];
    let (result, seen) = started(&components).await;
    assert_eq!(result.unwrap().registered.len(), 2);
    assert_eq!(seen, ["other=x", "no-secret="]);
}

#[tokio::test]
async fn templates_and_variables_are_filled_in() {
    let mut from_env = component("env", "secretstores.vault");
    from_env.metadata = vec![NameValue {
        name: "value".to_owned(),
        value: None,
        secret: None,
        env: Some("HOME_TOWN".to_owned()),
    }];
    let (result, seen) = started(&[from_env, vault("text", "{appID}/{namespace}/{podName}/{other}")]).await;
    result.unwrap();
    assert_eq!(seen, ["env=Rome", "text=app/ns.app/pod-0/{other}"]);
    let (_, seen) = started(&[vault("ids", "{uuid} {uuid}")]).await;
    let (first, second) = seen[0].strip_prefix("ids=").unwrap().split_once(' ').unwrap();
    assert_ne!(first, second);
    assert_eq!((first.len(), second.len()), (36, 36));
}

#[tokio::test]
async fn a_start_takes_no_longer_than_it_may() {
    let slow = Component {
        init_timeout: Duration::from_millis(10),
        ..component("slow", "secretstores.slow")
    };
    let (result, _) = started(std::slice::from_ref(&slow)).await;
    let error = result.err().unwrap().to_string();
    assert!(
        error.contains(
            "[INIT_COMPONENT_FAILURE]: initialization error occurred for slow (secretstores.slow/v1): init timeout \
             for component slow (secretstores.slow/v1) exceeded after 10ms"
        ),
        "{error}"
    );
    let tolerated = Component {
        ignore_errors: true,
        ..slow
    };
    let (result, _) = started(&[tolerated, vault("other", "x")]).await;
    assert_eq!(result.unwrap().registered.len(), 1);
}

#[tokio::test]
async fn kinds_are_known_absent_or_wrong() {
    for (kind, text) in [
        (
            "pubsub.redis",
            "this release has no component of type pubsub.redis",
        ),
        ("nonsense", "incorrect type nonsense"),
        (
            "secretstores.nosuch",
            "couldn't find secretstores component secretstores.nosuch/v1",
        ),
    ] {
        let (result, _) = started(&[component("odd", kind)]).await;
        let error = result.err().unwrap().to_string();
        assert!(
            error.contains("[CREATE_COMPONENT_FAILURE]") && error.contains(text),
            "{error}"
        );
    }
}
