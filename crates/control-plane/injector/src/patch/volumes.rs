//! Volumes and mounts.

use outrigger_kube::annotations::Annotations;
use serde_json::{Value, json};

use super::{Container, PatchContext, Pod, components};
use crate::config::Settings;

/// Path at which the app expects the API sockets.
pub(super) const SOCKET: &str = "dapr.io/unix-domain-socket-path";
/// Path at which the sidecar creates them.
pub(super) const SOCKET_FOLDER: &str = "/var/run/dapr-sockets";
const SOCKET_VOLUME: &str = "dapr-unix-domain-socket";
const TOKEN_VOLUME: &str = "dapr-identity-token";
const TOKEN_FOLDER: &str = "/var/run/secrets/dapr.io/sentrytoken";
/// Lifetime of a token in seconds.
const TOKEN_LASTS: u32 = 7200;
const COMPONENTS_VOLUME: &str = "dapr-components-unix-domain-socket";
/// The effect of invalid mounts.
const REJECTED: &str = "and the API server rejects such a container";

/// The mounts and their paths.
#[derive(Debug)]
pub(super) struct Plan {
    /// Path of the API sockets in the app.
    socket: Option<String>,
    /// Audience of the token.
    token: Option<String>,
    /// Path of the component sockets.
    pub(super) sockets: Option<String>,
}

fn mount(name: &str, path: &str, read_only: bool) -> Value {
    match read_only {
        true => json!({"name": name, "mountPath": path, "readOnly": true}),
        false => json!({"name": name, "mountPath": path}),
    }
}

impl Plan {
    pub(super) fn new(pod: &Pod, settings: &Settings, context: &PatchContext) -> Self {
        let annotations = Annotations(pod.annotations());
        let text = |name: &str| {
            annotations
                .text(name)
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        let has_components =
            components::own(pod).next().is_some() || components::wanted(pod, context).next().is_some();
        let folder = || text("dapr.io/pluggable-components-sockets-folder");
        Self {
            socket: text(SOCKET),
            token: context.token.then(|| settings.sentry_id.clone()),
            sockets: has_components.then(|| folder().unwrap_or_else(|| settings.sockets_folder.clone())),
        }
    }

    /// The volumes that the pod lacks.
    pub(super) fn volumes(&self, pod: &Pod, extra: &[Value]) -> Vec<Value> {
        let mut all = Vec::new();
        if self.socket.is_some() {
            all.push(json!({"name": SOCKET_VOLUME, "emptyDir": {"medium": "Memory"}}));
        }
        if let Some(audience) = &self.token {
            let token = json!({"audience": audience, "expirationSeconds": TOKEN_LASTS, "path": "token"});
            let sources = json!([{"serviceAccountToken": token}]);
            all.push(json!({"name": TOKEN_VOLUME, "projected": {"defaultMode": 420, "sources": sources}}));
        }
        if self.sockets.is_some() {
            all.push(json!({"name": COMPONENTS_VOLUME, "emptyDir": {}}));
        }
        let mounts = extra
            .iter()
            .filter_map(|container| container["volumeMounts"].as_array())
            .flatten();
        for name in mounts.filter_map(|mount| mount["name"].as_str()) {
            if !all.iter().any(|volume| volume["name"] == name) {
                all.push(json!({"name": name, "emptyDir": {}}));
            }
        }
        all.retain(|volume| !volume["name"].as_str().is_some_and(|name| pod.has_volume(name)));
        all
    }

    /// The mounts of the sidecar.
    pub(super) fn mounts(&self, pod: &Pod) -> Vec<Value> {
        let wanted = self.wanted(pod).into_iter();
        wanted
            .map(|(_, name, path, read_only)| mount(name, path, read_only))
            .collect()
    }

    /// The mounts that the API server would reject.
    pub(super) fn refused(&self, pod: &Pod) -> Vec<String> {
        let wanted = self.wanted(pod);
        let mut refused = Vec::new();
        for (index, (origin, name, path, _)) in wanted.iter().enumerate() {
            let before = wanted[..index].iter().find(|(.., other, _)| other == path);
            if path.is_empty() {
                refused.push(format!("{origin}: the volume {name:?} has no path, {REJECTED}"));
            } else if let Some((first, ..)) = before {
                refused.push(format!(
                    "{first} and {origin}: both are mounted at {path:?}, {REJECTED}"
                ));
            }
        }
        refused
    }

    /// The requested mounts of the sidecar: the annotation, volume, path, and whether it is read-only.
    fn wanted<'a>(&'a self, pod: &'a Pod) -> Vec<(&'static str, &'a str, &'a str, bool)> {
        let annotations = Annotations(pod.annotations());
        let mut all = Vec::new();
        for (annotation, origin, read_only) in [
            ("dapr.io/volume-mounts", "annotation dapr.io/volume-mounts", true),
            (
                "dapr.io/volume-mounts-rw",
                "annotation dapr.io/volume-mounts-rw",
                false,
            ),
        ] {
            for (name, path) in given(annotations.text(annotation).unwrap_or_default()) {
                if pod.has_volume(name) {
                    all.push((origin, name, path, read_only));
                }
            }
        }
        if self.socket.is_some() {
            all.push((
                "the sockets of the sidecar's API",
                SOCKET_VOLUME,
                SOCKET_FOLDER,
                false,
            ));
        }
        if self.token.is_some() {
            all.push(("the sidecar's token", TOKEN_VOLUME, TOKEN_FOLDER, true));
        }
        if let Some(folder) = &self.sockets {
            all.push(("the sockets of components", COMPONENTS_VOLUME, folder, false));
        }
        all
    }

    /// The mount of the component sockets.
    pub(super) fn sockets_mount(&self) -> Option<Value> {
        self.sockets
            .as_deref()
            .map(|folder| mount(COMPONENTS_VOLUME, folder, false))
    }

    /// The mount for a component, unless its path is taken.
    pub(super) fn component_socket(&self, container: &Container) -> Option<Value> {
        self.sockets_mount().filter(|mount| is_free(container, mount))
    }

    /// The mount for an app, unless its path is taken.
    pub(super) fn app_socket(&self, container: &Container) -> Option<Value> {
        let mount = mount(SOCKET_VOLUME, self.socket.as_deref()?, false);
        Some(mount).filter(|mount| is_free(container, mount))
    }
}

fn is_free(container: &Container, mount: &Value) -> bool {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    !mounts
        .iter()
        .any(|known| mount["name"] == known.name || mount["mountPath"] == known.mount_path)
}

/// Parses `name:path,...`; other entries are ignored.
pub(super) fn given(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',').filter_map(|part| {
        let (name, path) = part.trim().split_once(':')?;
        (!path.contains(':')).then_some((name, path))
    })
}
