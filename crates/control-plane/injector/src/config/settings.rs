//! Settings for all sidecars, from the injector's environment.

use outrigger_identity::{SpiffeId, TrustDomain};
use outrigger_kube::annotations::is_truthy;
use outrigger_kube::cluster_domain;
use serde_json::Value;

/// A service in the control plane's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The implementation: `placement`, or another name.
    pub kind: String,
    /// DNS name.
    pub host: String,
    /// Port in the addresses that sidecars get.
    pub port: u16,
}

/// Settings for all sidecars.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Namespace of the control plane.
    pub namespace: String,
    /// Trust domain of the control plane.
    pub trust_domain: String,
    /// SPIFFE id of sentry, the audience of tokens.
    pub sentry_id: String,
    /// DNS domain of the cluster.
    pub domain: String,
    /// Default image of the sidecar.
    pub image: String,
    /// Pull policy of that image.
    pub pull_policy: &'static str,
    /// Pods with one of these tolerations run where the entry point of an image is ignored.
    pub tolerations: Vec<Value>,
    /// The actors service; `None` disables actors.
    pub actors: Option<Service>,
    /// The reminders service, if it is not the default.
    pub reminders: Option<Service>,
    /// Whether sidecars get the address of the scheduler.
    pub scheduler: bool,
    /// `runAsNonRoot` in the security context of sidecars.
    pub run_as_non_root: bool,
    /// `runAsUser` in that context.
    pub run_as_user: Option<i64>,
    /// `runAsGroup` in that context.
    pub run_as_group: Option<i64>,
    /// `readOnlyRootFilesystem` in that context.
    pub read_only_root: bool,
    /// Whether that context drops all capabilities.
    pub drop_capabilities: bool,
    /// Whether sidecars get the address of their pod.
    pub downward: bool,
    /// Whether sidecars are native by default.
    pub native: bool,
    /// Default mount path of component sockets.
    pub sockets_folder: String,
}

impl Settings {
    /// The address of a control plane service.
    pub fn address(&self, host: &str, port: u16) -> String {
        format!("{host}.{}.svc.{}:{port}", self.namespace, self.domain)
    }
}

/// Reads the environment; adds its errors to `problems`.
pub(super) fn read(
    env: &impl Fn(&str) -> Option<String>,
    trust_domain: Option<&TrustDomain>,
    scheduler: bool,
    problems: &mut Vec<String>,
) -> Option<Settings> {
    let mut required = |name: &str, what: &str| {
        env(name).or_else(|| {
            problems.push(format!("{name} is required: {what}"));
            None
        })
    };
    let image = required("SIDECAR_IMAGE", "the image of the sidecar");
    let namespace = required("NAMESPACE", "the namespace of the control plane");
    let boolean = |name: &str, default| env(name).map_or(default, |text| is_truthy(&text));
    let mut id = |name: &str| {
        let text = env(name)?;
        let parsed = text.parse::<i64>();
        parsed
            .inspect_err(|_| problems.push(format!("{name} \"{text}\" is not a number")))
            .ok()
    };
    let (run_as_user, run_as_group) = (id("SIDECAR_RUN_AS_USER"), id("SIDECAR_RUN_AS_GROUP"));
    let mut service = |kind: String, name: &str, default: Option<Service>| {
        let Some(text) = env(name) else {
            if default.is_none() {
                problems.push(format!(
                    "{name} is required for the service {kind}: <service>:<port>"
                ));
            }
            return default;
        };
        let parsed = parse_service(kind, &text);
        if parsed.is_none() {
            problems.push(format!("{name} \"{text}\" is not <service>:<port>"));
        }
        parsed
    };
    let kind = env("ACTORS_SERVICE_NAME").unwrap_or_else(|| "placement".to_owned());
    let placement = (kind == "placement").then(|| Service {
        kind: kind.clone(),
        host: "dapr-placement-server".to_owned(),
        port: 50005,
    });
    let has_actors = boolean("ACTORS_ENABLED", true).then_some(kind);
    let actors = has_actors.and_then(|kind| service(kind, "ACTORS_SERVICE_ADDRESS", placement));
    let reminders = env("REMINDERS_SERVICE_NAME").filter(|kind| kind != "default");
    let reminders = reminders.and_then(|kind| service(kind, "REMINDERS_SERVICE_ADDRESS", None));
    let (image, namespace, trust_domain) = (image?, namespace?, trust_domain?);
    let sentry_id = SpiffeId::sentry(trust_domain, &namespace)
        .inspect_err(|error| problems.push(format!("NAMESPACE {namespace:?}: {error}")))
        .ok()?;
    Some(Settings {
        trust_domain: sentry_id.trust_domain().to_owned(),
        sentry_id: sentry_id.as_str().to_owned(),
        namespace,
        domain: env("KUBE_CLUSTER_DOMAIN").unwrap_or_else(cluster_domain),
        image,
        pull_policy: pull_policy(env("SIDECAR_IMAGE_PULL_POLICY").as_deref()),
        tolerations: tolerations(&env("IGNORE_ENTRYPOINT_TOLERATIONS").unwrap_or_default()),
        actors,
        reminders,
        scheduler,
        run_as_non_root: boolean("SIDECAR_RUN_AS_NON_ROOT", true),
        run_as_user,
        run_as_group,
        read_only_root: boolean("SIDECAR_READ_ONLY_ROOT_FILESYSTEM", true),
        drop_capabilities: boolean("SIDECAR_DROP_ALL_CAPABILITIES", false),
        downward: boolean("ENABLE_K8S_DOWNWARD_APIS", false),
        native: boolean("NATIVE_SIDECAR_ENABLED", false),
        sockets_folder: env("DAPR_COMPONENT_SOCKETS_FOLDER")
            .unwrap_or_else(|| "/tmp/dapr-components-sockets".to_owned()),
    })
}

fn pull_policy(text: Option<&str>) -> &'static str {
    match text {
        None | Some("Always") => "Always",
        Some("Never") => "Never",
        Some(_) => "IfNotPresent",
    }
}

fn parse_service(kind: String, text: &str) -> Option<Service> {
    let (host, port) = text.split_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let host = Some(host).filter(|host| !host.is_empty())?.to_owned();
    Some(Service { kind, host, port })
}

/// Parses tolerations. An invalid list is ignored, because it must not keep pods from their sidecars.
fn tolerations(text: &str) -> Vec<Value> {
    if text.is_empty() {
        return Vec::new();
    }
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::warn!(target: "dapr.injector", "IGNORE_ENTRYPOINT_TOLERATIONS is ignored: {error}");
        Vec::new()
    })
}
