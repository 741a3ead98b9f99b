//! Computes the patch of a pod: operations (RFC 6902) that add its sidecar. No I/O.

mod arguments;
mod components;
mod container;
mod environment;
mod known;
mod values;
mod volumes;

use std::collections::BTreeMap;

use outrigger_kube::annotations::{
    APP_ID, Annotations, DEFAULT_GRPC_PORT, ENABLE_METRICS, GRPC_PORT, HTTP_PORT, INJECTED, NATIVE,
    has_sidecar, is_truthy, service_name,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::Settings;

/// How long the sidecar keeps serving after a stop signal.
const BLOCK_SHUTDOWN: &str = "dapr.io/block-shutdown-duration";
/// Maximum size of all annotations of a pod in bytes, as in the API server.
const MAX_ANNOTATIONS: usize = 256 << 10;
/// Maximum number of containers of a pod with sidecar; each is patched.
const MAX_CONTAINERS: usize = 1000;

/// The inputs other than the pod and the settings.
#[derive(Debug, Clone)]
pub struct PatchContext {
    /// Namespace of the pod.
    pub namespace: String,
    /// The root certificates, PEM.
    pub trust_anchors: String,
    /// Whether sidecars use mTLS.
    pub mtls: bool,
    /// Whether sidecars authenticate with a separate token.
    pub token: bool,
    /// The components of the namespace, for pods that request component containers.
    pub components: Vec<Value>,
}

/// The relevant fields of a pod.
#[derive(Debug, Default, Clone, Deserialize)]
pub struct Pod {
    #[serde(default)]
    metadata: PodMeta,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Debug, Default, Clone, Deserialize)]
struct PodMeta {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    /// Started before the others; native sidecars are among them.
    #[serde(default)]
    init_containers: Option<Vec<Named>>,
    #[serde(default)]
    containers: Option<Vec<Container>>,
    #[serde(default)]
    volumes: Option<Vec<Named>>,
    #[serde(default)]
    tolerations: Option<Vec<Value>>,
    /// Operating system of the containers, if given.
    #[serde(default)]
    os: Option<Named>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    #[serde(default)]
    name: String,
    #[serde(default)]
    env: Option<Vec<Named>>,
    #[serde(default)]
    volume_mounts: Option<Vec<Mount>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    #[serde(default)]
    name: String,
    #[serde(default)]
    mount_path: String,
}

impl Pod {
    /// `metadata.annotations`; empty if absent.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.metadata.annotations.as_ref().unwrap_or(&NONE)
    }

    /// The app id, by default the pod's name.
    pub fn app_id(&self) -> &str {
        let given = Annotations(self.annotations())
            .text(APP_ID)
            .filter(|id| !id.is_empty());
        given.or(self.metadata.name.as_deref()).unwrap_or_default()
    }

    /// Checks that the pod does not exceed the limits of valid pods in any part that enlarges its patch.
    ///
    /// # Errors
    /// The excessive part.
    pub(crate) fn check_amounts(&self) -> Result<(), String> {
        let annotations = self.annotations().iter();
        let bytes: usize = annotations.map(|(name, value)| name.len() + value.len()).sum();
        let containers = self.containers().len();
        if bytes > MAX_ANNOTATIONS {
            return Err(format!(
                "its annotations have {bytes} bytes; API servers accept at most {MAX_ANNOTATIONS}"
            ));
        }
        if containers > MAX_CONTAINERS {
            return Err(format!(
                "it has {containers} containers, more than {MAX_CONTAINERS}"
            ));
        }
        Ok(())
    }

    /// Whether it requests component containers.
    pub fn wants_components(&self) -> bool {
        self.needs_sidecar() && Annotations(self.annotations()).boolean(components::INJECT, false)
    }

    /// Whether it wants a sidecar and has none.
    pub fn needs_sidecar(&self) -> bool {
        let containers = self.containers().iter().map(|container| container.name.as_str());
        let init = self
            .init_containers()
            .iter()
            .map(|container| container.name.as_str());
        Annotations(self.annotations()).wants_sidecar() && !has_sidecar(containers, init)
    }

    fn init_containers(&self) -> &[Named] {
        self.spec.init_containers.as_deref().unwrap_or_default()
    }

    fn containers(&self) -> &[Container] {
        self.spec.containers.as_deref().unwrap_or_default()
    }

    fn volumes(&self) -> &[Named] {
        self.spec.volumes.as_deref().unwrap_or_default()
    }

    fn is_for_windows(&self) -> bool {
        self.spec.os.as_ref().is_some_and(|os| os.name == "windows")
    }

    fn has_volume(&self, name: &str) -> bool {
        self.volumes().iter().any(|volume| volume.name == name)
    }
}

/// Warnings for the creator of the pod.
pub(crate) fn warnings(pod: &Pod, settings: &Settings) -> Vec<String> {
    let annotations = Annotations(pod.annotations());
    let mut all = known::warnings(pod.annotations());
    let has_components = components::own(pod).next().is_some() || pod.wants_components();
    if annotations.boolean(NATIVE, settings.native) {
        if has_components && annotations.text(NATIVE).is_some() {
            all.push(format!(
                "annotation {NATIVE} is ignored: pluggable components start after native sidecars, which wait for them"
            ));
        } else if !has_components && annotations.text(BLOCK_SHUTDOWN).is_some() {
            all.push(format!(
                "annotation {BLOCK_SHUTDOWN} is ignored: a native sidecar is stopped after the app"
            ));
        }
    }
    all
}

/// The operations that add a pod's sidecar; none if nothing is needed.
///
/// # Errors
/// An invalid app id, an annotation that would make the API server reject the container, or a missing setting
/// of a Windows pod.
pub fn operations(pod: &Pod, settings: &Settings, context: &PatchContext) -> Result<Vec<Value>, String> {
    if !pod.needs_sidecar() {
        return Ok(Vec::new());
    }
    service_name(pod.app_id())?;
    let counting = known::counting(pod.annotations())?;
    let mut counts = pod.clone();
    counts.metadata.annotations = Some(counting);
    // The app's variables use the annotations as given.
    let (pod, given) = (&counts, pod);
    let annotations = Annotations(pod.annotations());
    if pod.is_for_windows() && container::own_image(annotations).is_none() {
        let image = known::IMAGE;
        return Err(format!(
            "no sidecar image exists for Windows: name one in the annotation {image}"
        ));
    }
    let plan = volumes::Plan::new(pod, settings, context);
    let refused = plan.refused(pod);
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    let extra = components::containers(pod, context, &plan);
    // Component containers start after native sidecars, which would wait for them.
    let native = annotations.boolean(NATIVE, settings.native) && plan.sockets.is_none();
    let sidecar = container::sidecar(pod, settings, context, &plan, native);

    let mut operations = Vec::new();
    let mut add =
        |path: String, value: Value| operations.push(json!({"op": "add", "path": path, "value": value}));
    if pod.containers().is_empty() {
        add("/spec/containers".to_owned(), json!([]));
    }
    if pod.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty) {
        add("/metadata/labels".to_owned(), json!({}));
    }
    let added = plan.volumes(pod, &extra);
    match pod.volumes().is_empty() {
        true if added.is_empty() => {}
        true => add("/spec/volumes".to_owned(), added.into()),
        false => added
            .into_iter()
            .for_each(|volume| add("/spec/volumes/-".to_owned(), volume)),
    }
    if native {
        // After the pod's own init containers, which prepare the sidecar's inputs and never had a sidecar.
        if pod.init_containers().is_empty() {
            add("/spec/initContainers".to_owned(), json!([]));
        }
        add("/spec/initContainers/-".to_owned(), sidecar);
    } else {
        add("/spec/containers/-".to_owned(), sidecar);
    }
    let metrics = annotations.boolean(ENABLE_METRICS, true).to_string();
    for (label, value) in [
        (INJECTED, "true"),
        (APP_ID, pod.app_id()),
        ("dapr.io/metrics-enabled", &metrics),
    ] {
        add(
            format!("/metadata/labels/{}", label.replace('/', "~1")),
            value.into(),
        );
    }
    add_to_apps(&mut add, given, &plan);
    add_to_components(&mut add, pod, &plan);
    for container in extra {
        add("/spec/containers/-".to_owned(), container);
    }
    Ok(operations)
}

/// Adds the sidecar's variables to the app containers.
fn add_to_apps(add: &mut impl FnMut(String, Value), pod: &Pod, plan: &volumes::Plan) {
    let annotations = Annotations(pod.annotations());
    for (index, app) in components::apps(pod) {
        let environment = missing(app, app_environment(annotations));
        add_to_list(add, index, "env", app.env.is_none(), environment);
        let mount = plan.app_socket(app).into_iter().collect();
        add_to_list(add, index, "volumeMounts", app.volume_mounts.is_none(), mount);
    }
}

/// Mounts the folder of sockets into the component containers.
fn add_to_components(add: &mut impl FnMut(String, Value), pod: &Pod, plan: &volumes::Plan) {
    let Some(folder) = &plan.sockets else {
        return;
    };
    for (index, component) in components::own(pod) {
        let environment = missing(component, vec![environment::literal(components::FOLDER, folder)]);
        add_to_list(add, index, "env", component.env.is_none(), environment);
        let mount = plan.component_socket(component).into_iter().collect();
        add_to_list(
            add,
            index,
            "volumeMounts",
            component.volume_mounts.is_none(),
            mount,
        );
    }
}

/// Appends to a list of a container, which may not exist yet.
fn add_to_list(
    add: &mut impl FnMut(String, Value),
    index: usize,
    list: &str,
    absent: bool,
    items: Vec<Value>,
) {
    let path = format!("/spec/containers/{index}/{list}");
    match absent {
        _ if items.is_empty() => {}
        true => add(path, items.into()),
        false => items.into_iter().for_each(|item| add(format!("{path}/-"), item)),
    }
}

/// The variables that a container lacks.
fn missing(container: &Container, variables: Vec<Value>) -> Vec<Value> {
    let known = |variable: &Value| {
        let names = container.env.as_deref().unwrap_or_default();
        names.iter().any(|known| variable["name"] == known.name)
    };
    variables
        .into_iter()
        .filter(|variable| !known(variable))
        .collect()
}

/// The variables that describe the sidecar to apps.
fn app_environment(annotations: Annotations<'_>) -> Vec<Value> {
    let grpc = annotations.number(GRPC_PORT).unwrap_or(DEFAULT_GRPC_PORT);
    let mut variables = vec![
        environment::literal("DAPR_HTTP_PORT", &HTTP_PORT.to_string()),
        environment::literal("DAPR_GRPC_PORT", &grpc.to_string()),
    ];
    if let Some(protocol) = protocol(annotations) {
        variables.push(environment::literal("APP_PROTOCOL", protocol));
    }
    variables
}

/// The protocol of the app; `None` if the annotation is not valid.
fn protocol(annotations: Annotations<'_>) -> Option<&'static str> {
    let tls = annotations.text("dapr.io/app-ssl").is_some_and(is_truthy);
    let given = annotations
        .text("dapr.io/app-protocol")
        .unwrap_or_default()
        .to_lowercase();
    match (given.as_str(), tls) {
        ("" | "http", false) => Some("http"),
        ("" | "http", true) | ("https", _) => Some("https"),
        ("grpc", false) => Some("grpc"),
        ("grpc", true) | ("grpcs", _) => Some("grpcs"),
        ("h2c", _) => Some("h2c"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
