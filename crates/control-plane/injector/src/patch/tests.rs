use outrigger_kube::testing::apply_patch;
use serde_json::{Value, json};

use super::*;
use crate::config::Service;

mod native;
mod volumes;
mod windows;
mod wrong;

fn settings() -> Settings {
    Settings {
        namespace: "dapr-system".to_owned(),
        trust_domain: "cluster.local".to_owned(),
        sentry_id: "spiffe://cluster.local/ns/dapr-system/dapr-sentry".to_owned(),
        domain: "cluster.local".to_owned(),
        image: "daprd:1".to_owned(),
        pull_policy: "Always",
        tolerations: Vec::new(),
        actors: Some(Service {
            kind: "placement".to_owned(),
            host: "dapr-placement-server".to_owned(),
            port: 50005,
        }),
        reminders: None,
        scheduler: true,
        run_as_non_root: true,
        run_as_user: None,
        run_as_group: None,
        read_only_root: true,
        drop_capabilities: false,
        downward: false,
        native: false,
        sockets_folder: "/tmp/dapr-components-sockets".to_owned(),
    }
}

fn context() -> PatchContext {
    PatchContext {
        namespace: "shop".to_owned(),
        trust_anchors: "PEM".to_owned(),
        mtls: true,
        token: true,
        components: Vec::new(),
    }
}

/// A pod with an app, with these annotations in addition to those of every pod with a sidecar.
fn pod(annotations: &Value) -> Value {
    let mut all = json!({"dapr.io/enabled": "true", "dapr.io/app-id": "cart"});
    for (name, value) in annotations.as_object().unwrap() {
        all[format!("dapr.io/{name}")] = value.clone();
    }
    json!({"metadata": {"name": "cart-0", "labels": {"app": "cart"}, "annotations": all},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]}})
}

fn operations_of(pod: &Value, settings: &Settings, context: &PatchContext) -> Vec<Value> {
    let read: Pod = serde_json::from_value(pod.clone()).unwrap();
    operations(&read, settings, context).unwrap()
}

/// The patched pod.
fn patched_in(pod: Value, settings: &Settings, context: &PatchContext) -> Value {
    let mut patched = pod;
    let operations = operations_of(&patched, settings, context);
    apply_patch(&mut patched, &operations.into());
    patched
}

fn patched(annotations: &Value) -> Value {
    patched_in(pod(annotations), &settings(), &context())
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let containers = pod["spec"]["containers"].as_array().unwrap();
    containers
        .iter()
        .find(|container| container["name"] == name)
        .unwrap()
}

fn sidecar(annotations: &Value) -> Value {
    container(&patched(annotations), "daprd").clone()
}

fn args(sidecar: &Value) -> Vec<&str> {
    sidecar["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap())
        .collect()
}

fn variable<'a>(container: &'a Value, name: &str) -> Option<&'a Value> {
    container["env"]
        .as_array()?
        .iter()
        .find(|variable| variable["name"] == name)
}

#[test]
fn builds_default_arguments() {
    let sidecar = sidecar(&json!({"app-port": "8080"}));
    let expected = "/daprd --dapr-http-port 3500 --dapr-grpc-port 50001 --dapr-internal-grpc-port 50002 \
        --dapr-listen-addresses [::1],127.0.0.1 --dapr-public-port 3501 --app-id cart --app-protocol http \
        --log-level info --dapr-graceful-shutdown-seconds -1 --mode kubernetes \
        --control-plane-address dapr-api.dapr-system.svc.cluster.local:443 \
        --sentry-address dapr-sentry.dapr-system.svc.cluster.local:443 --app-port 8080 --enable-metrics \
        --metrics-port 9090 --placement-host-address dapr-placement-server.dapr-system.svc.cluster.local:50005 \
        --enable-mtls --scheduler-host-address dapr-scheduler-server-a.dapr-system.svc.cluster.local:443";
    assert_eq!(args(&sidecar).join(" "), expected);
    assert!(sidecar["command"].is_null());
}

#[test]
fn maps_annotations_to_arguments() {
    for (annotations, expected) in [
        (json!({"app-protocol": "grpc"}), "--app-protocol grpc"),
        (json!({"log-level": "debug"}), "--log-level debug"),
        (json!({"config": "c"}), "--config c"),
        (
            json!({"app-channel-address": "10.0.0.1"}),
            "--app-channel-address 10.0.0.1",
        ),
        (json!({"app-max-concurrency": "7"}), "--app-max-concurrency 7"),
        (json!({"log-as-json": "yes"}), "--log-as-json"),
        (json!({"actors-handover": "true"}), "--actors-handover"),
        (
            json!({"enable-api-logging": "false"}),
            "--enable-api-logging=false",
        ),
        (json!({"enable-api-logging": "true"}), "--enable-api-logging=true"),
        (json!({"enable-profiling": "1"}), "--enable-profiling"),
        (json!({"metrics-port": "9191"}), "--metrics-port 9191"),
        (json!({"grpc-port": "1"}), "--dapr-grpc-port 1"),
        (json!({"internal-grpc-port": "2"}), "--dapr-internal-grpc-port 2"),
        (
            json!({"sidecar-listen-addresses": "0.0.0.0"}),
            "--dapr-listen-addresses 0.0.0.0",
        ),
        (
            json!({"graceful-shutdown-seconds": "5"}),
            "--dapr-graceful-shutdown-seconds 5",
        ),
        (
            json!({"block-shutdown-duration": "9s"}),
            "--dapr-block-shutdown-duration 9s",
        ),
        (
            json!({"disable-builtin-k8s-secret-store": "true"}),
            "--disable-builtin-k8s-secret-store",
        ),
        (json!({"app-ssl": "true"}), "--app-ssl"),
        (
            json!({"http-max-request-size": "8"}),
            "--dapr-http-max-request-size 8",
        ),
        (json!({"max-body-size": "8Mi"}), "--max-body-size 8Mi"),
        (
            json!({"http-read-buffer-size": "8"}),
            "--dapr-http-read-buffer-size 8",
        ),
        (json!({"read-buffer-size": "8Ki"}), "--read-buffer-size 8Ki"),
        (
            json!({"unix-domain-socket-path": "/sockets"}),
            "--unix-domain-socket /var/run/dapr-sockets",
        ),
        (
            json!({"sentry-request-jwt-audiences": "a,b"}),
            "--sentry-request-jwt-audiences a,b",
        ),
        (
            json!({"app-binding-options-timeout": "4s"}),
            "--app-binding-options-timeout 4s",
        ),
        (
            json!({"disable-init-endpoints": "config"}),
            "--disable-init-endpoints config",
        ),
        (
            json!({"placement-host-address": "\"h:1\""}),
            "--placement-host-address h:1",
        ),
        (
            json!({"scheduler-host-address": "\"s:1\""}),
            "--scheduler-host-address s:1",
        ),
        (
            json!({"enable-app-health-check": "true", "app-health-threshold": "9"}),
            "--enable-app-health-check --app-health-check-path /healthz --app-health-probe-interval 5 \
             --app-health-probe-timeout 500 --app-health-threshold 9",
        ),
    ] {
        let text = args(&sidecar(&annotations)).join(" ");
        assert!(
            format!("{text} ").contains(&format!(" {expected} ")),
            "{annotations}: {text}"
        );
    }
}

#[test]
fn omits_disabled_and_invalid_values() {
    for (annotations, absent) in [
        (json!({"enable-metrics": "false"}), "metrics"),
        (json!({"app-port": "0"}), "--app-port"),
        (json!({"app-port": "http"}), "--app-port"),
        (json!({"app-max-concurrency": "many"}), "--app-max-concurrency"),
        (json!({"placement-host-address": " "}), "--placement-host-address"),
        (json!({}), "--enable-api-logging"),
    ] {
        let sidecar = sidecar(&annotations);
        let text = args(&sidecar).join(" ");
        assert!(!text.contains(absent), "{annotations}: {text}");
    }
    assert_eq!(
        sidecar(&json!({"grpc-port": "x"}))["ports"][1]["containerPort"],
        50001
    );
    let off = sidecar(&json!({"scheduler-host-address": ""}));
    let at = args(&off)
        .iter()
        .position(|arg| *arg == "--scheduler-host-address")
        .unwrap();
    assert_eq!(
        args(&off)[at + 1],
        "",
        "an empty address switches the scheduler off"
    );
}

#[test]
fn uses_custom_actor_and_reminder_services() {
    let mut settings = settings();
    settings.scheduler = false;
    settings.reminders = Some(Service {
        kind: "r".to_owned(),
        host: "rem".to_owned(),
        port: 2,
    });
    settings.actors = Some(Service {
        kind: "mine".to_owned(),
        host: "act".to_owned(),
        port: 1,
    });
    let text = |annotations: &Value, settings: &Settings| {
        let patched = patched_in(pod(annotations), settings, &context());
        args(container(&patched, "daprd")).join(" ")
    };
    let all = text(&json!({}), &settings);
    assert!(
        all.contains("--actors-service mine:act.dapr-system.svc.cluster.local:1"),
        "{all}"
    );
    assert!(
        all.contains("--reminders-service r:rem.dapr-system.svc.cluster.local:2"),
        "{all}"
    );
    assert!(
        !all.contains("--placement-host-address") && !all.contains("scheduler"),
        "{all}"
    );
    let annotated = text(&json!({"placement-host-address": "p:1"}), &settings);
    assert!(
        annotated.contains("--placement-host-address p:1") && !annotated.contains("actors-service"),
        "{annotated}"
    );
    settings.actors = None;
    let none = text(&json!({}), &settings);
    assert!(
        !none.contains("placement") && !none.contains("actors-service"),
        "{none}"
    );
    assert!(
        text(&json!({"placement-host-address": "p:1"}), &settings).contains("--placement-host-address p:1")
    );
}

#[test]
fn runs_sidecar_under_debugger() {
    let sidecar = sidecar(&json!({"enable-debug": "true", "debug-port": "4444"}));
    let text = args(&sidecar).join(" ");
    let expected = "/dlv --listen :4444 --accept-multiclient --headless=true --log --api-version=2 exec /daprd -- --dapr-http-port";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(
        sidecar["ports"][4],
        json!({"containerPort": 4444, "name": "dapr-debug"})
    );
}

#[test]
fn builds_sidecar_container() {
    let plain = sidecar(&json!({}));
    assert_eq!(
        (&plain["image"], &plain["imagePullPolicy"]),
        (&json!("daprd:1"), &json!("Always"))
    );
    assert_eq!(
        plain["securityContext"],
        json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
        "readOnlyRootFilesystem": true})
    );
    assert_eq!(
        plain["readinessProbe"],
        json!({"httpGet": {"path": "/v1.0/healthz", "port": 3501},
        "initialDelaySeconds": 1, "timeoutSeconds": 1, "periodSeconds": 1, "failureThreshold": 5})
    );
    assert_eq!(plain["livenessProbe"]["tcpSocket"], json!({"port": 3501}));
    assert!(plain["resources"].is_null());
    let annotated = sidecar(
        &json!({"sidecar-image": "other:2", "sidecar-liveness-probe-threshold": "9",
        "sidecar-readiness-probe-delay-seconds": "8", "sidecar-cpu-request": "100m", "sidecar-memory-limit": "64Mi",
        "sidecar-seccomp-profile-type": "RuntimeDefault"}),
    );
    assert_eq!(annotated["image"], "other:2");
    assert_eq!(annotated["livenessProbe"]["failureThreshold"], 9);
    assert_eq!(annotated["readinessProbe"]["initialDelaySeconds"], 8);
    assert_eq!(
        annotated["resources"],
        json!({"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}})
    );
    assert_eq!(
        annotated["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let wrong = sidecar(&json!({"sidecar-cpu-request": "100m", "sidecar-memory-limit": "lots"}));
    assert!(wrong["resources"].is_null(), "one wrong amount leaves all out");
}

#[test]
fn applies_security_context_settings() {
    let mut settings = settings();
    settings.run_as_user = Some(1000);
    settings.run_as_group = Some(2000);
    settings.drop_capabilities = true;
    let of = |annotations: &Value| {
        let patched = patched_in(pod(annotations), &settings, &context());
        container(&patched, "daprd")["securityContext"].clone()
    };
    assert_eq!(
        of(&json!({})),
        json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000,
        "runAsGroup": 2000, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    assert_eq!(
        of(&json!({"env": "SSL_CERT_DIR=/certs"})),
        json!({"allowPrivilegeEscalation": false,
        "runAsNonRoot": false, "readOnlyRootFilesystem": false, "capabilities": {"drop": ["ALL"]},
        "windowsOptions": {"runAsUserName": "ContainerAdministrator"}})
    );
}

#[test]
fn builds_sidecar_environment() {
    let mut settings = settings();
    settings.downward = true;
    let annotations = json!({"env": "A=1,2,B=3", "env-from-secret": "S=s,T=t:k", "api-token-secret": "api",
        "app-token-secret": "app"});
    let patched = patched_in(pod(&annotations), &settings, &context());
    let names: Vec<_> = container(&patched, "daprd")["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "NAMESPACE",
            "DAPR_TRUST_ANCHORS",
            "POD_NAME",
            "DAPR_CONTROLPLANE_NAMESPACE",
            "DAPR_CONTROLPLANE_TRUST_DOMAIN",
            "DAPR_HOST_IP",
            "A",
            "B",
            "S",
            "T",
            "DAPR_ENV_KEYS",
            "DAPR_API_TOKEN",
            "APP_API_TOKEN"
        ]
    );
    let sidecar = container(&patched, "daprd");
    assert_eq!(variable(sidecar, "NAMESPACE").unwrap()["value"], "shop");
    assert_eq!(variable(sidecar, "DAPR_TRUST_ANCHORS").unwrap()["value"], "PEM");
    assert_eq!(variable(sidecar, "A").unwrap()["value"], "1,2");
    assert_eq!(variable(sidecar, "DAPR_ENV_KEYS").unwrap()["value"], "A B S T");
    let secret = |name: &str| variable(sidecar, name).unwrap()["valueFrom"]["secretKeyRef"].clone();
    assert_eq!(secret("S"), json!({"name": "s", "key": "s"}));
    assert_eq!(secret("T"), json!({"name": "t", "key": "k"}));
    assert_eq!(secret("DAPR_API_TOKEN"), json!({"name": "api", "key": "token"}));
}

#[test]
fn adds_sidecar_variables_to_apps() {
    for (annotations, protocol) in [
        (json!({}), Some("http")),
        (json!({"app-protocol": "GRPC"}), Some("grpc")),
        (json!({"app-protocol": "grpc", "app-ssl": "true"}), Some("grpcs")),
        (json!({"app-ssl": "true"}), Some("https")),
        (json!({"app-protocol": "h2c"}), Some("h2c")),
        (json!({"app-protocol": "soap"}), None),
    ] {
        let patched = patched(&annotations);
        let found = variable(container(&patched, "app"), "APP_PROTOCOL")
            .map(|variable| variable["value"].as_str().unwrap());
        assert_eq!(found, protocol, "{annotations}");
    }
    let mut own = pod(&json!({"grpc-port": "1"}));
    own["spec"]["containers"][0]["env"] = json!([{"name": "DAPR_HTTP_PORT", "value": "mine"}]);
    own["spec"]["initContainers"] = json!([{"name": "init"}]);
    let patched = patched_in(own, &settings(), &context());
    let app = container(&patched, "app");
    assert_eq!(
        variable(app, "DAPR_HTTP_PORT").unwrap()["value"],
        "mine",
        "a variable of the pod stays"
    );
    assert_eq!(variable(app, "DAPR_GRPC_PORT").unwrap()["value"], "1");
    assert_eq!(patched["spec"]["initContainers"], json!([{"name": "init"}]));
}

#[test]
fn adds_labels() {
    let mut bare = pod(&json!({"enable-metrics": "no"}));
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    let patched = patched_in(bare, &settings(), &context());
    assert_eq!(
        patched["metadata"]["labels"],
        json!({"dapr.io/sidecar-injected": "true", "dapr.io/app-id": "cart",
        "dapr.io/metrics-enabled": "false"})
    );
}

#[test]
fn sets_command_for_tolerations() {
    let mut settings = settings();
    settings.tolerations = vec![json!({"key": "eci", "operator": "Exists", "effect": "NoSchedule"})];
    let mut with = pod(&json!({}));
    with["spec"]["tolerations"] = settings.tolerations.clone().into();
    let patched = patched_in(with, &settings, &context());
    let sidecar = container(&patched, "daprd");
    assert_eq!(sidecar["command"], json!(["/daprd"]));
    assert_eq!(args(sidecar)[0], "--dapr-http-port");
    let elsewhere = patched_in(pod(&json!({})), &settings, &context());
    assert!(container(&elsewhere, "daprd")["command"].is_null());
}

#[test]
fn patches_pod_only_once() {
    let once = patched(&json!({"unix-domain-socket-path": "/sockets"}));
    assert_eq!(operations_of(&once, &settings(), &context()), Vec::<Value>::new());
    let mut off = pod(&json!({}));
    off["metadata"]["annotations"]["dapr.io/enabled"] = "false".into();
    assert_eq!(operations_of(&off, &settings(), &context()), Vec::<Value>::new());
}

#[test]
fn validates_app_id() {
    let of = |metadata: Value| {
        let pod = json!({"metadata": metadata, "spec": {"containers": []}});
        operations(&serde_json::from_value(pod).unwrap(), &settings(), &context())
    };
    let enabled = json!({"dapr.io/enabled": "true"});
    let named = of(json!({"name": "cart-0", "annotations": enabled})).unwrap();
    assert!(named.iter().any(
        |operation| operation["path"] == "/metadata/labels/dapr.io~1app-id" && operation["value"] == "cart-0"
    ));
    assert_eq!(
        named[0],
        json!({"op": "add", "path": "/spec/containers", "value": []})
    );
    for (metadata, text) in [
        (json!({"annotations": enabled}), "is empty"),
        (
            json!({"annotations": {"dapr.io/enabled": "true", "dapr.io/app-id": "Cart"}}),
            "invalid app id (input: Cart",
        ),
        (
            json!({"annotations": {"dapr.io/enabled": "true", "dapr.io/app-id": "a".repeat(60)}}),
            "no more than 63",
        ),
    ] {
        let error = of(metadata).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}
