use serde_json::{Value, json};

use super::*;

#[test]
fn adds_volumes_for_tokens_and_sockets() {
    let annotations = json!({"unix-domain-socket-path": "/sockets", "volume-mounts": "data:/ro,none:/x",
        "volume-mounts-rw": "data:/rw"});
    let mut with = pod(&annotations);
    with["spec"]["volumes"] = json!([{"name": "data"}]);
    let patched = patched_in(with, &settings(), &context());
    let names: Vec<_> = patched["spec"]["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| volume["name"].clone())
        .collect();
    assert_eq!(names, ["data", "dapr-unix-domain-socket", "dapr-identity-token"]);
    assert_eq!(
        patched["spec"]["volumes"][2]["projected"],
        json!({"defaultMode": 420, "sources": [{"serviceAccountToken":
        {"audience": "spiffe://cluster.local/ns/dapr-system/dapr-sentry", "expirationSeconds": 7200, "path": "token"}}]})
    );
    assert_eq!(
        container(&patched, "daprd")["volumeMounts"],
        json!([
        {"name": "data", "mountPath": "/ro", "readOnly": true},
        {"name": "data", "mountPath": "/rw"},
        {"name": "dapr-unix-domain-socket", "mountPath": "/var/run/dapr-sockets"},
        {"name": "dapr-identity-token", "mountPath": "/var/run/secrets/dapr.io/sentrytoken", "readOnly": true}])
    );
    assert_eq!(
        container(&patched, "app")["volumeMounts"],
        json!([{"name": "dapr-unix-domain-socket", "mountPath": "/sockets"}])
    );
    let mut without = context();
    without.token = false;
    let patched = patched_in(pod(&json!({})), &settings(), &without);
    assert!(patched["spec"]["volumes"].is_null());
}

#[test]
fn mounts_sockets_in_components() {
    let mut with =
        pod(&json!({"pluggable-components": "store", "pluggable-components-sockets-folder": "/s"}));
    let store =
        json!({"name": "store", "volumeMounts": [{"name": "x", "mountPath": "/x"}], "env": [{"name": "A"}]});
    with["spec"]["containers"].as_array_mut().unwrap().push(store);
    let patched = patched_in(with, &settings(), &context());
    let mount = json!({"name": "dapr-components-unix-domain-socket", "mountPath": "/s"});
    let store = container(&patched, "store");
    assert_eq!(store["volumeMounts"][1], mount);
    assert_eq!(
        variable(store, "DAPR_COMPONENT_SOCKETS_FOLDER").unwrap()["value"],
        "/s"
    );
    assert!(variable(store, "DAPR_HTTP_PORT").is_none(), "it is no app");
    let sidecar = container(&patched, "daprd");
    assert!(sidecar["volumeMounts"].as_array().unwrap().contains(&mount));
    assert_eq!(
        variable(sidecar, "DAPR_COMPONENT_SOCKETS_FOLDER").unwrap()["value"],
        "/s"
    );
    let volumes = patched["spec"]["volumes"].as_array().unwrap();
    assert!(
        volumes
            .iter()
            .any(|volume| volume["name"] == "dapr-identity-token"),
        "both volumes are there: {volumes:?}"
    );
    assert!(volumes.contains(&json!({"name": "dapr-components-unix-domain-socket", "emptyDir": {}})));
}

#[test]
fn adds_component_containers() {
    let component = |name: &str, container: &str, scopes: Value| json!({"metadata": {"name": name, "annotations": {"dapr.io/component-container": container}}, "scopes": scopes});
    let mut context = context();
    context.components = vec![
        component(
            "one",
            r#"{"image": "i:1", "volumeMounts": [{"name": "scratch", "mountPath": "/t"}]}"#,
            json!([]),
        ),
        component("same-image", r#"{"image": "i:1"}"#, json!([])),
        component("others", r#"{"image": "i:2"}"#, json!(["other"])),
        component("mine", r#"{"image": "i:3", "name": "named"}"#, json!(["cart"])),
        component("broken", "{", json!([])),
        json!({"metadata": {"name": "built-in"}}),
    ];
    let patched = patched_in(
        pod(&json!({"inject-pluggable-components": "true"})),
        &settings(),
        &context,
    );
    let names: Vec<_> = patched["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| container["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["app", "daprd", "one", "named"]);
    let one = container(&patched, "one");
    assert_eq!(
        variable(one, "DAPR_COMPONENT_SOCKETS_FOLDER").unwrap()["value"],
        "/tmp/dapr-components-sockets"
    );
    assert_eq!(one["volumeMounts"].as_array().unwrap().len(), 2);
    let volumes = patched["spec"]["volumes"].as_array().unwrap();
    assert!(
        volumes.contains(&json!({"name": "scratch", "emptyDir": {}})),
        "{volumes:?}"
    );
    let without = patched_in(pod(&json!({})), &settings(), &context);
    assert_eq!(without["spec"]["containers"].as_array().unwrap().len(), 2);
}
