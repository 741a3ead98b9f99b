//! The life cycle of components in every block: which are started, in which order and with which properties,
//! how they change and end.
#![expect(clippy::unwrap_used, reason = "shared test helpers may panic")]

mod encryption;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outrigger_blocks::Blocks;
use outrigger_blocks::bindings::Dependencies;
use outrigger_blocks::secrets::SecretError;
use outrigger_component::catalog::{Entry, Version};
use outrigger_component::{Catalog, Error, Kind, Pairs, Result, SecretStore, Setup, secrets::Feature};
use outrigger_policy::resiliency::Resiliency;
use outrigger_resources::{Component, Configuration, NameValue, SecretKeyRef};
use outrigger_runtime::app::Health;
use outrigger_runtime::components::{Components, Context, Registered, StartError};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::middleware::Middlewares;
use outrigger_runtime::resilience::Resilience;
use outrigger_runtime::scheduler::{self, Scheduler};
use outrigger_telemetry::metrics::Metrics;
use outrigger_telemetry::trace::Tracer;
use outrigger_testing::log_lines::Lines;
use tracing::Level;

/// A secret store with one secret, `token`, whose value is its property `value`. Errors for other names show
/// that value.
struct Vault(String);

#[async_trait]
impl SecretStore for Vault {
    fn features(&self) -> &[Feature] {
        &[Feature::MultipleKeyValues]
    }

    async fn get(&self, name: &str, _metadata: &Pairs) -> Result<Pairs> {
        match name {
            "token" => Ok(Pairs::from([("token".to_owned(), self.0.clone())])),
            _ => Err(Error::new(
                Kind::NotFound,
                format!("{} has no such secret", self.0),
            )),
        }
    }

    async fn bulk_get(&self, _metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        Ok(HashMap::new())
    }
}

/// A secret store that responds once `open` was recorded.
struct Gate(Arc<Mutex<Vec<String>>>);

impl Gate {
    fn saw(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|seen| seen == what)
    }
}

#[async_trait]
impl SecretStore for Gate {
    fn features(&self) -> &[Feature] {
        &[]
    }

    async fn get(&self, name: &str, _metadata: &Pairs) -> Result<Pairs> {
        self.0.lock().unwrap().push("called".to_owned());
        while !self.saw("open") {
            tokio::task::yield_now().await;
        }
        Ok(Pairs::from([(name.to_owned(), "from the gate".to_owned())]))
    }

    async fn bulk_get(&self, _metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        Ok(HashMap::new())
    }

    async fn close(&self) {
        self.0.lock().unwrap().push("closed".to_owned());
    }
}

/// A catalog whose secret stores record their properties. `slow` ones never start, `broken` ones fail, and so
/// do bindings whose error shows their properties.
fn catalog(seen: &Arc<Mutex<Vec<String>>>) -> Catalog {
    let mut catalog = Catalog::empty();
    catalog.state = outrigger_components::builtin().state;
    let (seen, gated, tried) = (Arc::clone(seen), Arc::clone(seen), Arc::clone(seen));
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
        .secrets
        .add(Entry::new(&["broken"], Version::Only, move |_| {
            tried.lock().unwrap().push("tried".to_owned());
            async { Err(Error::new(Kind::Configuration, "broken")) }
        }));
    catalog
        .output_bindings
        .add(Entry::new(&["shows"], Version::Only, |setup: Setup| {
            let value = setup.metadata.text(&["value"]).unwrap_or("none").to_owned();
            async move { Err(Error::new(Kind::Unavailable, format!("no host {value}"))) }
        }));
    catalog
        .secrets
        .add(Entry::new(&["gate"], Version::Only, move |_| {
            let gate = Gate(Arc::clone(&gated));
            async move { Ok(Arc::new(gate) as Arc<dyn SecretStore>) }
        }));
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

/// A store whose value is a secret of another store.
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

fn new(seen: &Arc<Mutex<Vec<String>>>) -> Components {
    with_blocks(seen).0
}

fn with_blocks(seen: &Arc<Mutex<Vec<String>>>) -> (Components, Blocks) {
    let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
    let policies = Resiliency::build(&[], "app").0;
    let resilience = Arc::new(Resilience::new(policies, metrics));
    let context = Context {
        catalog: catalog(seen),
        app_id: "app".to_owned(),
        namespace: Some("ns".to_owned()),
        env_keys: String::new(),
        env: Arc::new(|name| match name {
            "HOME_TOWN" => Some("Rome".to_owned()),
            "POD_NAME" => Some("pod-0".to_owned()),
            _ => None,
        }),
        configuration: Arc::new(Configuration {
            denied_components: vec!["secretstores.denied".to_owned()],
            ..Configuration::default()
        }),
        metrics: Metrics::disabled(),
        max_answer: usize::MAX,
        actors: true,
    };
    let settings = Configuration::default();
    let middlewares = Arc::new(Middlewares::new(&settings));
    let dependencies = Dependencies {
        resilience,
        app: None,
        tracer: Tracer::off(),
        asking: Duration::ZERO,
        max_answer: 0,
    };
    let scheduler = Scheduler::new(scheduler::Settings {
        app_id: "app".into(),
        namespace: "default".into(),
        addresses: Vec::new(),
        streams: 1,
        identity: None,
        max_message: 0,
        limits: Vec::new(),
    });
    let blocks = Blocks::new(
        "app".into(),
        &settings,
        middlewares,
        Health::new(true).1,
        scheduler,
        true,
        dependencies,
    );
    let secrets = Arc::clone(&blocks.secrets) as _;
    (Components::new(context, blocks.categories(), secrets), blocks)
}

/// The started components or the error, and the recorded values.
async fn started(components: &[Component]) -> (Result<Vec<Registered>, StartError>, Vec<String>) {
    let seen = Arc::default();
    let all = new(&seen);
    let result = all.start(components).await;
    let seen = seen.lock().unwrap().clone();
    (result.map(|()| all.registered()), seen)
}

#[tokio::test]
async fn store_waits_for_its_secret_store() {
    let components = [
        dependent("third", "second", "token"),
        dependent("second", "first", "token"),
        vault("first", "x"),
    ];
    let (result, seen) = started(&components).await;
    assert_eq!(result.unwrap().len(), 3);
    assert_eq!(seen, ["first=x", "second=x", "third=x"]);
}

#[tokio::test]
async fn skips_component_without_secret_store() {
    let components = [
        dependent("a", "b", "token"),
        dependent("b", "a", "token"),
        vault("other", "x"),
        dependent("no-secret", "other", "missing"),
        component("denied", "secretstores.denied"),
    ];
    let (result, seen) = started(&components).await;
    assert_eq!(result.unwrap().len(), 2);
    assert_eq!(seen, ["other=x", "no-secret="]);
}

#[tokio::test]
async fn failed_binding_hides_secrets() {
    let binding = Component {
        kind: "bindings.shows".to_owned(),
        ..dependent("binding", "store", "token")
    };
    let (result, _) = started(&[binding, vault("store", "hush-hush")]).await;
    let error = result.err().unwrap().to_string();
    assert!(
        error.contains("no host ***") && !error.contains("hush-hush"),
        "{error}"
    );
}

#[tokio::test]
async fn running_component_hides_secrets() {
    let (components, blocks) = with_blocks(&Arc::default());
    let all = [dependent("second", "first", "token"), vault("first", "hush-hush")];
    components.start(&all).await.unwrap();
    let asked = blocks.secrets.get("second", "missing", &Pairs::new()).await;
    let Err(SecretError::Get { cause, .. }) = asked else {
        panic!("{asked:?}");
    };
    let error = cause.to_string();
    assert!(
        error.contains("*** has no such secret") && !error.contains("hush-hush"),
        "{error}"
    );
}

#[tokio::test]
async fn expands_templates_and_variables() {
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
async fn bounds_start_time() {
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
    assert_eq!(result.unwrap().len(), 1);
}

#[tokio::test]
async fn reports_start_error_once() {
    for ignore_errors in [false, true] {
        let lines = Lines::new();
        let odd = Component {
            ignore_errors,
            ..component("odd", "pubsub.nosuch")
        };
        let (result, _) = started(&[odd]).await;
        assert_eq!(result.is_ok(), ignore_errors);
        let told = lines.take("dapr.runtime.processor", Level::INFO);
        let told: Vec<_> = told.iter().filter(|line| line.message.contains("odd")).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].level, Level::ERROR);
        let text = &told[0].message;
        assert!(
            text.starts_with("couldn't find pubsub component pubsub.nosuch/v1"),
            "{text}"
        );
        assert_eq!(text.matches("odd (pubsub.nosuch/v1)").count(), 1, "{text}");
    }
}

#[tokio::test]
async fn refuses_unknown_types() {
    for (kind, text) in [
        ("pubsub.nosuch", "couldn't find pubsub component pubsub.nosuch/v1"),
        ("nonsense", "incorrect type nonsense"),
        (
            "secretstores.nosuch",
            "couldn't find secretstores component secretstores.nosuch/v1",
        ),
    ] {
        let (result, _) = started(&[component("odd", kind)]).await;
        let error = result.err().unwrap().to_string();
        assert!(
            error.starts_with("process component odd error: ") && error.contains(text),
            "{error}"
        );
        assert_eq!(
            error.contains("[CREATE_COMPONENT_FAILURE]"),
            kind != "nonsense",
            "{error}"
        );
    }
}

#[tokio::test]
async fn adds_changes_and_removes_components() {
    let seen = Arc::default();
    let (all, blocks) = with_blocks(&seen);
    all.start(&[vault("a", "1")]).await.unwrap();
    all.add(&vault("b", "1")).await.unwrap();
    let secret = async |store: &str| blocks.secrets.get(store, "token", &Pairs::new()).await;
    assert_eq!(secret("b").await.unwrap()["token"], "1");
    all.replace(&vault("a", "2")).await.unwrap();
    assert_eq!(secret("a").await.unwrap()["token"], "2");
    let names: Vec<_> = all.registered().into_iter().map(|r| r.name).collect();
    assert_eq!(names, ["a", "b"], "a change keeps the place");

    let broken = component("a", "secretstores.nosuch");
    all.replace(&broken).await.unwrap_err();
    assert_eq!(secret("a").await.unwrap()["token"], "2", "the old one stays");
    let tolerated = Component {
        ignore_errors: true,
        ..broken
    };
    all.replace(&tolerated).await.unwrap();
    assert!(secret("a").await.is_err(), "nobody wants the old one");
    all.remove("b").await;
    assert!(secret("b").await.is_err());
    all.remove("never there").await;
    assert!(all.registered().is_empty());
}

#[tokio::test]
async fn starts_once_secret_store_is_added() {
    let seen = Arc::default();
    let all = new(&seen);
    let waiting = [
        dependent("third", "second", "token"),
        dependent("second", "first", "token"),
    ];
    all.start(&waiting).await.unwrap();
    assert!(all.registered().is_empty());
    all.add(&vault("first", "x")).await.unwrap();
    assert_eq!(all.registered().len(), 3);

    all.add(&dependent("late", "other", "token")).await.unwrap();
    all.remove("late").await;
    all.add(&vault("other", "y")).await.unwrap();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen, ["first=x", "second=x", "third=x", "other=y"]);
}

#[tokio::test]
async fn closes_component_after_last_call() {
    let seen = Arc::default();
    let (all, blocks) = with_blocks(&seen);
    all.start(&[component("a", "secretstores.gate")]).await.unwrap();
    let secrets = Arc::clone(&blocks.secrets);
    let call = tokio::spawn(async move { secrets.get("a", "token", &Pairs::new()).await });
    let gate = Gate(Arc::clone(&seen));
    while !gate.saw("called") {
        tokio::task::yield_now().await;
    }
    all.replace(&vault("a", "new")).await.unwrap();
    // Lets all other tasks run many times.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!gate.saw("closed"));
    seen.lock().unwrap().push("open".to_owned());
    assert_eq!(call.await.unwrap().unwrap()["token"], "from the gate");
    all.close().await;
    assert_eq!(*seen.lock().unwrap(), ["called", "a=new", "open", "closed"]);
}

#[tokio::test]
async fn reconciles_wanted_components() {
    let seen = Arc::default();
    let all = new(&seen);
    all.start(&[vault("a", "1"), vault("b", "1")]).await.unwrap();
    let tolerated = Component {
        ignore_errors: true,
        ..component("odd", "secretstores.nosuch")
    };
    let wanted = [
        vault("new", "1"),
        vault("b", "2"),
        vault("a", "1"),
        component("denied", "secretstores.denied"),
        dependent("late", "other", "token"),
        tolerated,
    ];
    all.reconcile(&wanted).await.unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        ["a=1", "b=1", "b=2", "new=1"],
        "what is the same is left alone"
    );
    all.reconcile(&[vault("b", "2"), dependent("late", "b", "token")])
        .await
        .unwrap();
    let names: Vec<_> = all.registered().into_iter().map(|r| r.name).collect();
    assert_eq!(names, ["b", "late"]);
    assert_eq!(*seen.lock().unwrap(), ["a=1", "b=1", "b=2", "new=1", "late=2"]);
    all.reconcile(&[component("odd", "secretstores.nosuch")])
        .await
        .unwrap_err();
    assert!(all.registered().is_empty());
}

#[tokio::test]
async fn allows_one_actor_state_store() {
    let marked = |name: &str, kind: &str, value: &str| Component {
        metadata: vec![NameValue::new("ActorStateStore", value)],
        ignore_errors: true,
        ..component(name, kind)
    };
    let memory = "state.in-memory";
    let all = new(&Arc::default());
    all.start(&[
        marked("no", memory, "false"),
        marked("broken", "state.nosuch", "true"),
        marked("first", memory, "true"),
        marked("second", memory, "yes"),
    ])
    .await
    .unwrap();
    assert_eq!(all.actor_store().as_deref().map(String::as_str), Some("first"));
    let names: Vec<_> = all.registered().into_iter().map(|r| r.name).collect();
    assert_eq!(names, ["no", "first"], "a broken store claims nothing");
    let second = Component {
        ignore_errors: false,
        ..marked("second", memory, "true")
    };
    let error = all.add(&second).await.unwrap_err().to_string();
    assert!(
        error.starts_with(
            "process component second error: [INIT_COMPONENT_FAILURE]: initialization error occurred for second \
             (state.in-memory/v1): detected duplicate actor state store: first and second"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn bounds_secret_wait() {
    let waiting = Component {
        init_timeout: Duration::from_millis(10),
        ..dependent("waiting", "gate", "token")
    };
    let starting = [component("gate", "secretstores.gate"), waiting];
    let ended = tokio::time::timeout(Duration::from_secs(10), started(&starting)).await;
    let (result, seen) = ended.expect("the start has no timeout");
    let error = result.err().unwrap().to_string();
    assert!(error.contains("init timeout for component waiting"), "{error}");
    assert_eq!(seen, ["called", "closed"]);
}

#[tokio::test]
async fn built_in_runs_until_name_is_reused() {
    let seen = Arc::default();
    let all = new(&seen).with_implicit(Some(vault("cluster", "implicit")));
    // Components that need its secrets wait for it.
    let user = dependent("user", "cluster", "token");
    all.start(std::slice::from_ref(&user)).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["cluster=implicit", "user=implicit"]);
    let names = || -> Vec<String> { all.registered().into_iter().map(|one| one.name).collect() };
    all.reconcile(&[]).await.unwrap();
    assert_eq!(names(), ["cluster"], "it is never removed");
    all.reconcile(&[vault("cluster", "declared")]).await.unwrap();
    assert_eq!(names(), ["cluster"]);
    all.reconcile(&[]).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[2..], ["cluster=declared", "cluster=implicit"]);
}

#[tokio::test]
async fn user_component_replaces_built_in() {
    let seen = Arc::default();
    let all = new(&seen).with_implicit(Some(vault("cluster", "implicit")));
    all.start(&[vault("cluster", "declared")]).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["cluster=declared"]);
}

#[tokio::test]
async fn built_in_start_is_not_retried() {
    let broken = Component {
        ignore_errors: true,
        ..component("cluster", "secretstores.broken")
    };
    let denied = component("cluster", "secretstores.denied");
    for (implicit, tried) in [
        (broken, &["first=x", "tried", "second=y"][..]),
        (denied, &["first=x", "second=y"]),
    ] {
        let seen = Arc::default();
        let all = new(&seen).with_implicit(Some(implicit));
        all.start(&[vault("first", "x")]).await.unwrap();
        all.reconcile(&[vault("first", "x"), vault("second", "y")])
            .await
            .unwrap();
        assert_eq!(*seen.lock().unwrap(), tried);
    }
}
