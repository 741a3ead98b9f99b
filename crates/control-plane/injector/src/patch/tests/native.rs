//! Native sidecars.

use super::*;

/// The native sidecar of a pod.
fn native_of(pod: &Value) -> &Value {
    pod["spec"]["initContainers"].as_array().unwrap().last().unwrap()
}

#[test]
fn native_sidecar_outlives_app() {
    let patched = patched(
        &json!({"enable-native-sidecar": "true", "block-shutdown-duration": "9s",
        "unix-domain-socket-path": "/sockets", "app-port": "80"}),
    );
    let sidecar = native_of(&patched);
    assert_eq!(
        (&sidecar["name"], &sidecar["restartPolicy"]),
        (&json!("daprd"), &json!("Always"))
    );
    assert_eq!(
        sidecar["startupProbe"]["httpGet"],
        json!({"path": "/v1.0/healthz/outbound", "port": 3501}),
        "the other path waits for the app, which waits for this"
    );
    assert!(!args(sidecar).contains(&"--dapr-block-shutdown-duration"));
    let containers = patched["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "the app alone");
    assert_eq!(
        variable(&containers[0], "DAPR_GRPC_PORT").unwrap()["value"],
        "50001"
    );
    assert_eq!(containers[0]["volumeMounts"][0]["mountPath"], "/sockets");
    assert_eq!(patched["metadata"]["labels"]["dapr.io/sidecar-injected"], "true");

    let mut plain = sidecar.clone();
    for field in ["restartPolicy", "startupProbe"] {
        plain.as_object_mut().unwrap().remove(field);
    }
    let other = json!({"unix-domain-socket-path": "/sockets", "app-port": "80"});
    assert_eq!(
        plain,
        super::sidecar(&other),
        "all else is as it is with an ordinary one"
    );
}

#[test]
fn native_sidecar_follows_init_containers() {
    let mut own = pod(&json!({"enable-native-sidecar": "true"}));
    own["spec"]["initContainers"] = json!([{"name": "prepares"}]);
    let patched = patched_in(own, &settings(), &context());
    let names = patched["spec"]["initContainers"].as_array().unwrap();
    assert_eq!(names.len(), 2);
    assert_eq!(
        (&names[0]["name"], &names[1]["name"]),
        (&json!("prepares"), &json!("daprd"))
    );
}

#[test]
fn setting_is_default_for_native() {
    let mut settings = settings();
    settings.native = true;
    let by_setting = patched_in(pod(&json!({})), &settings, &context());
    assert_eq!(native_of(&by_setting)["name"], "daprd");
    let annotated = patched_in(
        pod(&json!({"enable-native-sidecar": "false"})),
        &settings,
        &context(),
    );
    assert!(annotated["spec"]["initContainers"].is_null());
    assert_eq!(container(&annotated, "daprd")["restartPolicy"], Value::Null);
}

#[test]
fn recognizes_both_kinds_of_sidecar() {
    for (ours, annotation) in [("containers", "true"), ("initContainers", "false")] {
        let mut has = pod(&json!({"enable-native-sidecar": annotation}));
        let mut list = has["spec"][ours].as_array().cloned().unwrap_or_default();
        list.push(json!({"name": "daprd", "restartPolicy": "Always"}));
        has["spec"][ours] = list.into();
        assert_eq!(
            operations_of(&has, &settings(), &context()),
            Vec::<Value>::new(),
            "{ours}"
        );
    }
    let native = patched(&json!({"enable-native-sidecar": "true"}));
    assert_eq!(
        operations_of(&native, &settings(), &context()),
        Vec::<Value>::new(),
        "reviewed again"
    );
}

#[test]
fn pluggable_components_prevent_native_sidecar() {
    let mut with_components = pod(&json!({"enable-native-sidecar": "true", "pluggable-components": "store"}));
    let containers = with_components["spec"]["containers"].as_array_mut().unwrap();
    containers.push(json!({"name": "store"}));
    let read: Pod = serde_json::from_value(with_components.clone()).unwrap();
    let warned = warnings(&read, &settings());
    assert!(
        warned.len() == 1 && warned[0].contains("is ignored"),
        "{warned:?}"
    );
    let patched = patched_in(with_components, &settings(), &context());
    assert!(patched["spec"]["initContainers"].is_null());
    assert_eq!(container(&patched, "daprd")["name"], "daprd");
}

#[test]
fn warns_of_block_shutdown_on_native() {
    for (annotations, count) in [
        (
            json!({"enable-native-sidecar": "true", "block-shutdown-duration": "9s"}),
            1,
        ),
        (json!({"block-shutdown-duration": "9s"}), 0),
        (json!({"enable-native-sidecar": "true"}), 0),
    ] {
        let read: Pod = serde_json::from_value(pod(&annotations)).unwrap();
        assert_eq!(warnings(&read, &settings()).len(), count, "{annotations}");
    }
}
