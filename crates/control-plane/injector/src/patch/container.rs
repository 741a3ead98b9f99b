//! The container of the sidecar.

use outrigger_kube::annotations::{
    Annotations, CONTAINER, DEFAULT_GRPC_PORT, DEFAULT_INTERNAL_GRPC_PORT, DEFAULT_METRICS_PORT, GRPC_PORT,
    HTTP_PORT, INTERNAL_GRPC_PORT, METRICS_PORT,
};
use serde_json::{Map, Value, json};

use super::arguments::arguments;
use super::environment::variables;
use super::known::{DEBUGGER, ENABLE_DEBUG, IMAGE};
use super::values::is_quantity;
use super::volumes::Plan;
use super::{PatchContext, Pod};
use crate::config::Settings;

/// Port of the sidecar's health endpoint for the cluster.
pub(super) const PUBLIC_PORT: u16 = 3501;
/// Port of the debugger.
const DEBUG_PORT: i32 = 40000;
/// Reports whether a sidecar can be called. Independent of its app, which starts after a native sidecar.
const STARTED: &str = "/v1.0/healthz/outbound";
/// Period in seconds and failure threshold of a native sidecar's startup probe: it is restarted after two
/// minutes.
const START: (i32, i32) = (1, 120);
const BINARY: &str = "/daprd";
/// If set, a Windows container must install certificates, which requires an administrator.
const CERTIFICATES: &str = "SSL_CERT_DIR";

/// Builds the container.
pub(super) fn sidecar(
    pod: &Pod,
    settings: &Settings,
    context: &PatchContext,
    plan: &Plan,
    native: bool,
) -> Value {
    let annotations = Annotations(pod.annotations());
    let environment = variables(annotations, settings, context, plan);
    let debug = annotations.boolean(ENABLE_DEBUG, false);
    let debug_port = annotations.number("dapr.io/debug-port").unwrap_or(DEBUG_PORT);
    let (binary, args) = command(
        arguments(pod, settings, context, native),
        debug.then_some(debug_port),
    );
    let mut container = json!({
        "name": CONTAINER,
        "image": own_image(annotations).unwrap_or(&settings.image),
        "imagePullPolicy": settings.pull_policy,
        "ports": ports(annotations, debug.then_some(debug_port)),
        "securityContext": security(pod, settings, &environment),
        "readinessProbe": probe(annotations, "readiness", READINESS,
            ("httpGet", json!({"path": "/v1.0/healthz", "port": PUBLIC_PORT}))),
        "livenessProbe": probe(annotations, "liveness", LIVENESS, ("tcpSocket", json!({"port": PUBLIC_PORT}))),
        "env": environment,
    });
    if native {
        container["restartPolicy"] = "Always".into();
        container["startupProbe"] = json!({"httpGet": {"path": STARTED, "port": PUBLIC_PORT},
            "timeoutSeconds": 3, "periodSeconds": START.0, "failureThreshold": START.1});
    }
    let mounts = plan.mounts(pod);
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    let tolerated = pod.spec.tolerations.as_deref().unwrap_or_default();
    // Otherwise not set, since a command would replace the image's entry point.
    if settings
        .tolerations
        .iter()
        .any(|wanted| tolerated.contains(wanted))
    {
        container["command"] = json!([binary]);
        container["args"] = args.into();
    } else {
        container["args"] = std::iter::once(binary.to_owned())
            .chain(args)
            .collect::<Vec<_>>()
            .into();
    }
    if let Some(resources) = resources(annotations) {
        container["resources"] = resources;
    }
    container
}

/// The image that the pod names.
pub(super) fn own_image(annotations: Annotations<'_>) -> Option<&str> {
    annotations.text(IMAGE).filter(|image| !image.is_empty())
}

/// The binary and its arguments; run by the debugger if a port for it is set.
fn command(args: Vec<String>, debug: Option<i32>) -> (&'static str, Vec<String>) {
    let Some(port) = debug else {
        return (BINARY, args);
    };
    let listen = format!(":{port}");
    let debugger = [
        "--listen",
        &listen,
        "--accept-multiclient",
        "--headless=true",
        "--log",
        "--api-version=2",
        "exec",
        BINARY,
        "--",
    ];
    (
        DEBUGGER,
        debugger.into_iter().map(str::to_owned).chain(args).collect(),
    )
}

fn ports(annotations: Annotations<'_>, debug: Option<i32>) -> Vec<Value> {
    let number = |name, default| annotations.number(name).unwrap_or(default);
    let mut all = vec![
        ("dapr-http", i32::from(HTTP_PORT)),
        ("dapr-grpc", number(GRPC_PORT, DEFAULT_GRPC_PORT)),
        (
            "dapr-internal",
            number(INTERNAL_GRPC_PORT, DEFAULT_INTERNAL_GRPC_PORT),
        ),
        ("dapr-metrics", number(METRICS_PORT, DEFAULT_METRICS_PORT)),
    ];
    all.extend(debug.map(|port| ("dapr-debug", port)));
    all.into_iter()
        .map(|(name, port)| json!({"containerPort": port, "name": name}))
        .collect()
}

/// Seconds before the first probe, of its timeout, and between probes, and failed probes in a row; unless annotated.
type Pace = (i32, i32, i32, i32);

const LIVENESS: Pace = (180, 3, 10, 5);
const READINESS: Pace = (1, 1, 1, 5);

fn probe(annotations: Annotations<'_>, kind: &str, pace: Pace, (handler, settings): (&str, Value)) -> Value {
    let number = |what: &str, default| {
        annotations
            .number(&format!("dapr.io/sidecar-{kind}-probe-{what}"))
            .unwrap_or(default)
    };
    let (delay, timeout, period, threshold) = pace;
    json!({
        handler: settings,
        "initialDelaySeconds": number("delay-seconds", delay),
        "timeoutSeconds": number("timeout-seconds", timeout),
        "periodSeconds": number("period-seconds", period),
        "failureThreshold": number("threshold", threshold),
    })
}

fn security(pod: &Pod, settings: &Settings, environment: &[Value]) -> Value {
    let administrator = environment
        .iter()
        .any(|variable| variable["name"] == CERTIFICATES);
    let mut context = json!({"runAsNonRoot": settings.run_as_non_root && !administrator});
    if administrator {
        context["windowsOptions"] = json!({"runAsUserName": "ContainerAdministrator"});
    }
    if pod.is_for_windows() {
        // The API server rejects the fields below on Windows.
        return context;
    }
    context["allowPrivilegeEscalation"] = false.into();
    context["readOnlyRootFilesystem"] = (settings.read_only_root && !administrator).into();
    if !administrator {
        for (field, id) in [
            ("runAsUser", settings.run_as_user),
            ("runAsGroup", settings.run_as_group),
        ] {
            if let Some(id) = id {
                context[field] = id.into();
            }
        }
    }
    if let Some(profile) = Annotations(pod.annotations())
        .text("dapr.io/sidecar-seccomp-profile-type")
        .filter(|text| !text.is_empty())
    {
        context["seccompProfile"] = json!({"type": profile});
    }
    if settings.drop_capabilities {
        context["capabilities"] = json!({"drop": ["ALL"]});
    }
    context
}

/// Requests and limits; `None` if one of them cannot be parsed.
fn resources(annotations: Annotations<'_>) -> Option<Value> {
    let mut resources = Map::new();
    for (kind, field) in [("request", "requests"), ("limit", "limits")] {
        let mut amounts = Map::new();
        for what in ["cpu", "memory"] {
            let text = annotations
                .text(&format!("dapr.io/sidecar-{what}-{kind}"))
                .unwrap_or_default();
            if text.is_empty() {
                continue;
            }
            if !is_quantity(text) {
                return None;
            }
            amounts.insert(what.to_owned(), text.into());
        }
        if !amounts.is_empty() {
            resources.insert(field.to_owned(), amounts.into());
        }
    }
    (!resources.is_empty()).then(|| resources.into())
}
