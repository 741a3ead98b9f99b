//! The desired service of an app.

use outrigger_kube::Meta;
use outrigger_kube::annotations::{
    APP_ID, ENABLED, GRPC_PORT, HTTP_PORT, INTERNAL_GRPC_PORT, METRICS_PORT, SERVICE_ANNOTATIONS,
};
use serde_json::{Map, Value, json};

use super::workload::{Owner, Workload};

/// Port of the service for the sidecar's HTTP API.
const SERVICE_HTTP_PORT: i32 = 80;

/// Annotations for Prometheus, if the sidecar has metrics.
const SCRAPED: [&str; 4] = [
    "prometheus.io/probe",
    "prometheus.io/scrape",
    "prometheus.io/port",
    "prometheus.io/path",
];
/// Lists the annotations that the workload requested, separated by commas, so that dropped ones can be
/// removed.
const ASKED: &str = "outrigger/service-annotations";

/// The desired service of a workload.
pub(super) fn service<K: Owner>(meta: &Meta, workload: &Workload<K>) -> Value {
    let mut annotations = Map::new();
    annotations.insert(APP_ID.to_owned(), workload.app_id.clone().into());
    if workload.metrics {
        let port = workload.metrics_port.to_string();
        for (name, value) in SCRAPED.into_iter().zip(["true", "true", &port, "/"]) {
            annotations.insert(name.to_owned(), value.into());
        }
    }
    let mut asked = Vec::new();
    for (name, value) in &workload.annotations {
        if !annotations.contains_key(name) && name != ASKED {
            annotations.insert(name.clone(), value.clone().into());
            asked.push(name.as_str());
        }
    }
    if !asked.is_empty() {
        annotations.insert(ASKED.to_owned(), asked.join(",").into());
    }
    let port = |name: &str, port: i32, target: i32| json!({"name": name, "protocol": "TCP", "port": port, "targetPort": target});
    let mut ports = vec![
        port("dapr-http", SERVICE_HTTP_PORT, HTTP_PORT.into()),
        port("dapr-grpc", workload.grpc, workload.grpc),
        port("dapr-internal", workload.internal, workload.internal),
    ];
    if has_metrics(workload) {
        ports.push(port("dapr-metrics", workload.metrics_port, workload.metrics_port));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": workload.service,
            "namespace": meta.namespace,
            "labels": {ENABLED: "true"},
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": K::API_VERSION,
                "kind": K::NAME,
                "name": meta.name,
                "uid": workload.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "selector": workload.selector,
            "clusterIP": "None",
            "ports": ports,
        },
    })
}

/// Whether the service has a metrics port: always, unless metrics are off and the port is used otherwise.
fn has_metrics<K>(workload: &Workload<K>) -> bool {
    workload.metrics
        || ![SERVICE_HTTP_PORT, workload.grpc, workload.internal].contains(&workload.metrics_port)
}

/// The annotations that may explain why the API server refused the service.
pub(super) fn reasons<K>(workload: &Workload<K>) -> String {
    let mut ports = vec![
        ("the HTTP API's at the service", SERVICE_HTTP_PORT),
        (GRPC_PORT, workload.grpc),
        (INTERNAL_GRPC_PORT, workload.internal),
    ];
    if has_metrics(workload) {
        ports.push((METRICS_PORT, workload.metrics_port));
    }
    let mut reasons = Vec::new();
    for (index, (name, port)) in ports.iter().enumerate() {
        if !(1..=65535).contains(port) {
            reasons.push(format!("{name} is {port}, not a port (1 to 65535)"));
        }
        if let Some((other, _)) = ports[..index].iter().find(|(_, other)| other == port) {
            reasons.push(format!("{name} is {port}, the same as {other}"));
        }
    }
    if reasons.is_empty() {
        return format!("correct {GRPC_PORT}, {INTERNAL_GRPC_PORT}, {METRICS_PORT} or {SERVICE_ANNOTATIONS}");
    }
    reasons.join(", ")
}

/// Annotations that are no longer wanted: those of metrics, and those requested by the workload.
fn stale<'a>(found: &'a Value, wanted: &Value) -> Vec<&'a str> {
    let annotations = found["metadata"]["annotations"].as_object();
    let asked = annotations
        .and_then(|all| all.get(ASKED)?.as_str())
        .unwrap_or_default();
    let asked: Vec<_> = asked.split(',').collect();
    annotations
        .into_iter()
        .flat_map(Map::keys)
        .map(String::as_str)
        .filter(|name| *name == ASKED || SCRAPED.contains(name) || asked.contains(name))
        .filter(|name| wanted["metadata"]["annotations"].get(name).is_none())
        .collect()
}

/// Whether a service differs from the desired one. Additions by others do not count.
pub(super) fn differs(found: &Value, wanted: &Value) -> bool {
    let places = [
        "/metadata/labels",
        "/metadata/annotations",
        "/metadata/ownerReferences",
        "/spec/ports",
    ];
    let spec = found["spec"]["selector"] != wanted["spec"]["selector"];
    spec || !stale(found, wanted).is_empty()
        || places
            .iter()
            .any(|place| match (found.pointer(place), wanted.pointer(place)) {
                (Some(found), Some(wanted)) => !covers(found, wanted),
                _ => true,
            })
}

/// Whether `found` has everything in `wanted`; lists are compared item by item.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(name, value)| found.get(name).is_some_and(|found| covers(found, value))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| covers(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

/// Applies the desired state to an existing service, keeping its version and fields set by the cluster.
pub(super) fn onto(mut found: Value, wanted: Value) -> Value {
    let stale: Vec<_> = stale(&found, &wanted).into_iter().map(str::to_owned).collect();
    if let Some(annotations) = found["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|name, _| !stale.contains(name));
    }
    for field in ["labels", "annotations"] {
        for (name, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            found["metadata"][field][name] = value.clone();
        }
    }
    found["metadata"]["ownerReferences"] = wanted["metadata"]["ownerReferences"].clone();
    for field in ["selector", "ports"] {
        found["spec"][field] = wanted["spec"][field].clone();
    }
    found
}
