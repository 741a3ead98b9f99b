//! Entry points of fuzzers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_flags::{Parsed, parse};
use outrigger_kube::annotations::CONTAINER;
use outrigger_kube::testing::apply_patch;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::{Config, FLAGS, Settings};
use crate::patch::{self, PatchContext, Pod};
use crate::review::{Review, Verdict, answer, is_wanted};

/// Reviews a body that the API server could post. Nothing panics. The patch can be applied, and a patched pod
/// has one sidecar and needs no other.
///
/// # Panics
/// If one of these properties does not hold.
pub fn review(body: &[u8]) {
    let Ok(review) = serde_json::from_slice::<Review>(body) else {
        return;
    };
    let pod = &review.request.object;
    let Ok(read) = Pod::deserialize(pod) else { return };
    if !is_wanted(pod) || !is_regular(pod) {
        return;
    }
    let settings = settings();
    let warnings = patch::warnings(&read, &settings);
    let Ok(operations) = patch::operations(&read, &settings, &patch_context()) else {
        return;
    };
    if operations.is_empty() {
        return;
    }
    let verdict = Verdict {
        operations,
        warnings,
        refused: None,
    };
    let answer = answer(&review, verdict);
    let response = &answer["response"];
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&json!(true), &json!("JSONPatch"))
    );
    let patch = STANDARD
        .decode(response["patch"].as_str().expect("a patch"))
        .expect("base64");
    let patch: Value = serde_json::from_slice(&patch).expect("JSON");
    let mut patched = pod.clone();
    apply_patch(&mut patched, &patch);
    let again = Pod::deserialize(&patched).expect("a patched pod is a pod");
    assert!(!again.needs_sidecar(), "a patched pod has its sidecar");
    let lists = ["containers", "initContainers"];
    let containers = lists
        .into_iter()
        .filter_map(|list| patched["spec"][list].as_array())
        .flatten();
    assert_eq!(
        containers
            .filter(|container| container["name"] == CONTAINER)
            .count(),
        1
    );
}

/// Whether everything that a patch touches has the API's type; the API server checks that before it calls a
/// webhook.
fn is_regular(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"].as_array();
    let mut containers = containers.into_iter().flatten();
    pod["metadata"].is_object() && pod["spec"].is_object() && containers.all(Value::is_object)
}

fn settings() -> Settings {
    let Ok(Parsed::Run(flags)) = parse(FLAGS, std::iter::empty()) else {
        panic!("no flag is required");
    };
    let env = |name: &str| match name {
        "SIDECAR_IMAGE" => Some("daprd:1".to_owned()),
        "NAMESPACE" => Some("dapr-system".to_owned()),
        "KUBE_CLUSTER_DOMAIN" => Some("cluster.local".to_owned()),
        "IGNORE_ENTRYPOINT_TOLERATIONS" => {
            Some(r#"[{"key":"azure.com/aci","effect":"NoSchedule"}]"#.to_owned())
        }
        _ => None,
    };
    Config::from_flags(&flags, env).expect("a configuration").settings
}

fn patch_context() -> PatchContext {
    let container = json!({"image": "one:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    PatchContext {
        namespace: "shop".to_owned(),
        trust_anchors: "-----BEGIN CERTIFICATE-----".to_owned(),
        mtls: true,
        token: true,
        components: vec![json!({"metadata": {"name": "one", "namespace": "shop",
            "annotations": {"dapr.io/component-container": container.to_string()}}})],
    }
}
