//! Components that are added, changed and removed with their files while the sidecar runs.

mod actor_store;
mod policies;
mod restart;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::common::{App, Net, Node, Plan, eventually, get, post};

const DISABLED: &str = "  features:\n  - name: HotReload\n    enabled: false\n";

/// A component; `rest` continues its spec.
fn component(name: &str, kind: &str, rest: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  type: {kind}\n  \
         version: v1\n{rest}"
    )
}

fn memory(name: &str) -> String {
    component(name, "state.in-memory", "")
}

/// The same kind of store with a property, so that it differs.
fn memory_with(name: &str, value: &str) -> String {
    let rest = format!("  metadata:\n  - name: note\n    value: {value}\n");
    component(name, "state.in-memory", &rest)
}

fn plan(net: &Net) -> Plan<'_> {
    net.sidecar("me")
}

/// Writes a file atomically, like deployment tools.
fn put(node: &Node, file: &str, text: &str) {
    let new = node.folder().join("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, node.resources().join(file)).unwrap();
}

fn delete(node: &Node, file: &str) {
    std::fs::remove_file(node.resources().join(file)).unwrap();
}

/// Names and types of the running components, sorted.
async fn listed(node: &Node) -> Vec<(String, String)> {
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = metadata["components"].as_array().into_iter().flatten();
    let mut all: Vec<_> = all.map(|c| (text(&c["name"]), text(&c["type"]))).collect();
    all.sort();
    all
}

async fn until(node: &Node, wanted: &[(&str, &str)]) {
    let wanted: Vec<_> = wanted
        .iter()
        .map(|(n, k)| ((*n).to_owned(), (*k).to_owned()))
        .collect();
    eventually(async || listed(node).await == wanted).await;
}

async fn works(node: &Node, store: &str) {
    let saved = node
        .ask(post(
            &format!("/v1.0/state/{store}"),
            r#"[{"key":"k","value":1}]"#,
        ))
        .await;
    assert_eq!(saved.status, 204, "{store}: {}", saved.text());
    let found = node.ask(get(&format!("/v1.0/state/{store}/k"))).await;
    assert_eq!(found.text(), "1", "{store}");
}

#[tokio::test]
async fn reloads_components() {
    let net = Net::plain();
    let node = plan(&net).start().await;
    assert_eq!(listed(&node).await, []);
    put(&node, "a.yaml", &memory("one"));
    until(&node, &[("one", "state.in-memory")]).await;
    works(&node, "one").await;

    let both = format!("{}---\n{}", memory("one"), memory("two"));
    put(&node, "a.yaml", &both);
    until(&node, &[("one", "state.in-memory"), ("two", "state.in-memory")]).await;
    assert_eq!(
        node.ask(get("/v1.0/state/one/k")).await.text(),
        "1",
        "unchanged components stay"
    );

    let file = node.folder().join("db.sqlite");
    let rest = format!(
        "  metadata:\n  - name: connectionString\n    value: {}\n",
        file.display()
    );
    put(&node, "a.yaml", &component("one", "state.sqlite", &rest));
    until(&node, &[("one", "state.sqlite")]).await;
    works(&node, "one").await;
    node.ask(get("/v1.0/state/two/k"))
        .await
        .error(400, "ERR_STATE_STORE_NOT_FOUND");

    std::fs::rename(node.resources().join("a.yaml"), node.resources().join("b.yaml")).unwrap();
    put(&node, "c.yaml", &component("env", "secretstores.local.env", ""));
    let wanted = [("env", "secretstores.local.env"), ("one", "state.sqlite")];
    until(&node, &wanted).await;
    put(&node, "c.yaml", &memory("env"));
    until(&node, &[("env", "state.in-memory"), ("one", "state.sqlite")]).await;
    node.ask(get("/v1.0/secrets/env/x"))
        .await
        .error(500, "ERR_SECRET_STORES_NOT_CONFIGURED");

    delete(&node, "b.yaml");
    delete(&node, "c.yaml");
    until(&node, &[]).await;
    node.ask(get("/v1.0/state/one/k"))
        .await
        .error(500, "ERR_STATE_STORE_NOT_CONFIGURED");
    node.stop().await.unwrap();
}

/// An endpoint for an app.
fn endpoint(name: &str, port: u16) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: {name}\nspec:\n  baseUrl: \
         http://127.0.0.1:{port}\n"
    )
}

#[tokio::test]
async fn reloads_endpoints() {
    let net = Net::plain();
    let (first, second) = (App::echo().await, App::echo().await);
    let node = plan(&net).resource(&endpoint("kept", first.port)).start().await;
    let endpoints = async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        let all = metadata["httpEndpoints"].as_array().into_iter().flatten();
        let names = all.map(|endpoint| endpoint["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(endpoints().await, ["kept"]);
    put(&node, "outside.yaml", &endpoint("outside", first.port));
    eventually(async || endpoints().await == ["kept", "outside"]).await;
    assert_eq!(node.ask(get("/v1.0/invoke/outside/method/x")).await.status, 200);
    put(&node, "outside.yaml", &endpoint("outside", second.port));
    eventually(async || {
        let status = node.ask(get("/v1.0/invoke/outside/method/y")).await.status;
        status == 200 && second.seen().iter().any(|seen| seen.target == "/y")
    })
    .await;
    delete(&node, "outside.yaml");
    eventually(async || endpoints().await == ["kept"]).await;
    node.stop().await.unwrap();
}

#[tokio::test]
async fn reloads_unless_disabled() {
    let net = Net::plain();
    let node = plan(&net).spec(DISABLED).start().await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(
        metadata["enabledFeatures"],
        serde_json::json!(["WorkflowsRemoteActivityReminder"])
    );
    let asks = net
        .sidecar("asks")
        .flag(&format!("--resources-path={}", node.resources().display()));
    let asks = asks.start().await;
    put(&node, "a.yaml", &memory("one"));
    until(&asks, &[("one", "state.in-memory")]).await;
    assert_eq!(listed(&node).await, []);
}

#[tokio::test]
async fn replacing_store_fails_no_call() {
    let net = Net::plain();
    let node = plan(&net).resource(&memory("mem")).start().await;
    let over = Arc::new(AtomicBool::new(false));
    let calls = (0..4).map(|_| {
        let (over, port) = (Arc::clone(&over), node.ports.http);
        tokio::spawn(async move {
            let mut calls = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let save = post("/v1.0/state/mem", r#"[{"key":"k","value":1}]"#);
                let saved = crate::common::client::send(port, save).await.unwrap();
                assert_eq!(saved.status(), 204);
                calls += 1;
            }
            calls
        })
    });
    let calls: Vec<_> = calls.collect();
    for round in 0..4 {
        put(&node, "0.yaml", &memory_with("mem", &format!("round{round}")));
        put(&node, "other.yaml", &memory(&format!("round{round}")));
        until(
            &node,
            &[
                ("mem", "state.in-memory"),
                (&format!("round{round}"), "state.in-memory"),
            ],
        )
        .await;
    }
    over.store(true, Ordering::Relaxed);
    for call in calls {
        assert!(call.await.unwrap() > 0);
    }
    node.stop().await.unwrap();
}

#[tokio::test]
async fn broken_file_keeps_components() {
    let net = Net::plain();
    let node = plan(&net).resource(&memory("mem")).start().await;
    works(&node, "mem").await;
    put(
        &node,
        "0.yaml",
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: [",
    );
    put(&node, "next.yaml", &memory("next"));
    until(&node, &[("mem", "state.in-memory"), ("next", "state.in-memory")]).await;
    assert_eq!(node.ask(get("/v1.0/state/mem/k")).await.text(), "1");
    put(&node, "0.yaml", "");
    until(&node, &[("next", "state.in-memory")]).await;
}

#[tokio::test]
async fn failed_component_replaces_predecessor() {
    let net = Net::plain();
    let node = plan(&net).resource(&memory("mem")).start().await;
    put(
        &node,
        "0.yaml",
        &component("mem", "state.sqlite", "  ignoreErrors: true\n"),
    );
    until(&node, &[]).await;
    put(&node, "0.yaml", &memory("mem"));
    until(&node, &[("mem", "state.in-memory")]).await;
    put(&node, "0.yaml", &component("mem", "state.sqlite", ""));
    let error = node.ended().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "component mem (state.sqlite/v1) did not start; its error is logged above"
    );
}

#[tokio::test]
async fn duplicate_component_ends_process() {
    let net = Net::plain();
    let node = plan(&net).resource(&memory("mem")).start().await;
    put(&node, "1.yaml", &component("mem", "secretstores.local.env", ""));
    let error = node.ended().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to load resources from disk: duplicate definition of Component name mem \
         (secretstores.local.env/v1) with existing mem (state.in-memory/v1)"
    );
}

#[tokio::test]
async fn components_wait_for_secret_store() {
    let net = Net::plain();
    let node = plan(&net).start().await;
    let secrets = node.folder().join("secrets.json");
    let file = node.folder().join("from-secret.sqlite");
    std::fs::write(&secrets, format!(r#"{{"dsn":"{}"}}"#, file.display())).unwrap();
    let dependent = component(
        "db",
        "state.sqlite",
        "  metadata:\n  - name: connectionString\n    secretKeyRef:\n      name: dsn\n      key: dsn\nauth:\n  \
         secretStore: vault\n",
    );
    put(&node, "db.yaml", &dependent);
    put(&node, "mem.yaml", &memory("mem"));
    until(&node, &[("mem", "state.in-memory")]).await;
    let vault = |note: &str| {
        let rest = format!(
            "  metadata:\n  - name: secretsFile\n    value: {}\n  - name: note\n    value: {note}\n",
            secrets.display()
        );
        component("vault", "secretstores.local.file", &rest)
    };
    put(&node, "vault.yaml", &vault("one"));
    let all = [
        ("db", "state.sqlite"),
        ("mem", "state.in-memory"),
        ("vault", "secretstores.local.file"),
    ];
    until(&node, &all).await;
    works(&node, "db").await;

    std::fs::write(&secrets, r#"{"other":"x"}"#).unwrap();
    put(&node, "vault.yaml", &vault("two"));
    eventually(async || node.ask(get("/v1.0/secrets/vault/other")).await.status == 200).await;
    works(&node, "db").await;
    delete(&node, "vault.yaml");
    until(&node, &all[..2]).await;
    works(&node, "db").await;
}

#[tokio::test]
async fn follows_replaced_folder() {
    let net = Net::plain();
    let node = plan(&net).resource(&memory("old")).start().await;
    let next = node.folder().join("next");
    std::fs::create_dir(&next).unwrap();
    std::fs::write(next.join("a.yaml"), memory("new")).unwrap();
    std::fs::rename(node.resources(), node.folder().join("before")).unwrap();
    std::fs::rename(&next, node.resources()).unwrap();
    until(&node, &[("new", "state.in-memory")]).await;
    let linked = behind_link(node.folder(), &memory("linked"));
    std::os::unix::fs::symlink(&linked, node.resources().join("link.yaml")).unwrap();
    until(
        &node,
        &[("linked", "state.in-memory"), ("new", "state.in-memory")],
    )
    .await;
    std::fs::write(&linked, memory("relinked")).unwrap();
    until(
        &node,
        &[("new", "state.in-memory"), ("relinked", "state.in-memory")],
    )
    .await;
}

#[tokio::test]
async fn missing_folder_changes_nothing() {
    let net = Net::plain();
    let process = plan(&net).resource(&memory("old")).spawn().await;
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::rename(process.resources(), elsewhere.path().join("resources")).unwrap();
    eventually(async || process.log().contains("cannot read resources folder")).await;
    let metadata = process.try_ask(get("/v1.0/metadata")).await.unwrap().json();
    assert_eq!(metadata["components"][0]["name"], "old");
}

#[tokio::test]
async fn reports_subscription_without_pubsub() {
    let net = Net::plain();
    let broker = component("broker", "pubsub.in-memory", "");
    let process = plan(&net).resource(&broker).spawn().await;
    let subscription = "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: s\nspec:\n  pubsubname: borker\n  \
                        topic: t\n  routes:\n    default: /t\n";
    std::fs::write(process.resources().join("s.yaml"), subscription).unwrap();
    let told = "is loaded: it gets no events until one comes (did you mean broker?";
    eventually(async || process.log().contains(told)).await;
}

fn behind_link(folder: &Path, text: &str) -> PathBuf {
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let file = elsewhere.join("target.yaml");
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test]
async fn pipe_blocks_no_reload() {
    let net = Net::plain();
    let node = plan(&net).start().await;
    let pipe = node.resources().join("pipe.yaml");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    std::os::unix::fs::symlink("/dev/zero", node.resources().join("zero.yaml")).unwrap();
    put(&node, "a.yaml", &memory("one"));
    until(&node, &[("one", "state.in-memory")]).await;
    put(&node, "b.yaml", &memory("two"));
    until(&node, &[("one", "state.in-memory"), ("two", "state.in-memory")]).await;
    // It also starts with them in place.
    let again = net
        .sidecar("again")
        .flag(&format!("--resources-path={}", node.resources().display()));
    let again = again.start().await;
    assert_eq!(listed(&again).await.len(), 2);
}
