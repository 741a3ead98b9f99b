//! The service that an app should have.

use outrigger_kube::Meta;
use outrigger_kube::annotations::{APP_ID, ENABLED, HTTP_PORT};
use serde_json::{Map, Value, json};

use super::workload::{Owner, Workload};

/// Port of the sidecar's HTTP API at its service.
const SERVICE_HTTP_PORT: u16 = 80;

/// Annotations that Prometheus reads, where the sidecar has metrics.
const SCRAPED: [&str; 4] = [
    "prometheus.io/probe",
    "prometheus.io/scrape",
    "prometheus.io/port",
    "prometheus.io/path",
];
/// Names the annotations of a service that its workload asked for, with commas: those that it no longer asks for go.
const ASKED: &str = "outrigger/service-annotations";

/// The service of a workload.
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
    let port =
        |name: &str, port: i32| json!({"name": name, "protocol": "TCP", "port": port, "targetPort": port});
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
            "ports": [
                {"name": "dapr-http", "protocol": "TCP", "port": SERVICE_HTTP_PORT, "targetPort": HTTP_PORT},
                port("dapr-grpc", workload.grpc),
                port("dapr-internal", workload.internal),
                port("dapr-metrics", workload.metrics_port),
            ],
        },
    })
}

/// Annotations of a service that were wanted once and are no more: those of metrics, and those that its workload asked for.
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

/// Whether a service is not what it should be. What others added to it does not matter.
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

/// Whether all that is wanted is there; lists item by item.
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

/// A service that exists, made what it should be: its version, and what the cluster gave it, stay.
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
