//! Pluggable components in separate containers.

use std::collections::HashSet;

use outrigger_kube::annotations::Annotations;
use serde_json::Value;

use super::environment::literal;
use super::volumes::Plan;
use super::{Container, PatchContext, Pod};

/// Enables containers for the components of the namespace.
pub(super) const INJECT: &str = "dapr.io/inject-pluggable-components";
/// Variable with the folder of sockets, for components and the sidecar.
pub(super) const FOLDER: &str = "DAPR_COMPONENT_SOCKETS_FOLDER";
/// The container of a component, JSON.
const CONTAINER: &str = "dapr.io/component-container";

fn is_component(pod: &Pod, container: &Container) -> bool {
    let names = Annotations(pod.annotations())
        .text("dapr.io/pluggable-components")
        .unwrap_or_default();
    names.split(',').any(|name| name == container.name)
}

/// The pod's containers that are components.
pub(super) fn own(pod: &Pod) -> impl Iterator<Item = (usize, &Container)> {
    pod.containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| is_component(pod, container))
}

/// The pod's containers that are apps.
pub(super) fn apps(pod: &Pod) -> impl Iterator<Item = (usize, &Container)> {
    pod.containers()
        .iter()
        .enumerate()
        .filter(|(_, container)| !is_component(pod, container))
}

/// The containers of the namespace's components for the app, one per image.
pub(super) fn wanted<'a>(pod: &'a Pod, context: &'a PatchContext) -> impl Iterator<Item = Value> + 'a {
    let mut images = HashSet::new();
    let app_id = pod.app_id();
    let on = pod.wants_components();
    context.components.iter().filter(move |_| on).filter_map(move |component| {
        let text = component["metadata"]["annotations"][CONTAINER].as_str().filter(|text| !text.is_empty())?;
        let scopes = component["scopes"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !scopes.is_empty() && !scopes.iter().any(|scope| scope == app_id) {
            return None;
        }
        let name = &component["metadata"]["name"];
        let mut container: Value = match serde_json::from_str(text) {
            Ok(container @ Value::Object(_)) => container,
            _ => {
                tracing::warn!(
                    target: "dapr.injector",
                    "the annotation {CONTAINER} of the component {name} is ignored, because it is not a valid \
                     container object; correct its JSON"
                );
                return None;
            }
        };
        if !images.insert(container["image"].as_str().unwrap_or_default().to_owned()) {
            return None;
        }
        if container["name"].as_str().unwrap_or_default().is_empty() {
            container["name"] = name.clone();
        }
        Some(container)
    })
}

/// These containers as added to the pod.
pub(super) fn containers(pod: &Pod, context: &PatchContext, plan: &Plan) -> Vec<Value> {
    let add = |container: &mut Value, list: &str, item: Value| match container[list].as_array_mut() {
        Some(items) => items.push(item),
        None => container[list] = vec![item].into(),
    };
    let mut all: Vec<Value> = wanted(pod, context).collect();
    for container in &mut all {
        if let (Some(folder), Some(mount)) = (&plan.sockets, plan.sockets_mount()) {
            add(container, "env", literal(FOLDER, folder));
            add(container, "volumeMounts", mount);
        }
    }
    all
}
