//! The flags of the operator binary, with the names and defaults of Dapr 1.18.

use outrigger_controlplane::config::{
    DURATION, ENABLE_METRICS, HEALTHZ_LISTEN_ADDRESS, HEALTHZ_PORT, LOG_AS_JSON, LOG_FILE, LOG_LEVEL,
    METRICS_LISTEN_ADDRESS, METRICS_PORT,
};
use outrigger_flags::Flag;

/// All flags of the operator binary.
pub const FLAGS: &[Flag] = &[
    Flag::text(
        "config",
        "daprsystem",
        "Name of the control plane's Configuration, in the operator's namespace",
    ),
    Flag::text(
        "kubeconfig",
        "",
        "Path of a kubeconfig file, for use outside of a pod",
    ),
    Flag::text(
        "watch-interval",
        "0",
        "How often to delete pods without sidecars: 1s or more, once, or 0 (never)",
    ),
    Flag::boolean(
        "watchdog-can-patch-pod-labels",
        "false",
        "Label pods that have a sidecar with dapr.io/watchdog-patched, so that they are not checked again",
    ),
    Flag::int(
        "max-pod-restarts-per-minute",
        "20",
        "Maximum number of pods without a sidecar deleted per minute; 0 for no limit",
    ),
    Flag::boolean(
        "disable-leader-election",
        "false",
        "Do the leader's work without an election; for a single replica",
    ),
    Flag::boolean(
        "disable-service-reconciler",
        "false",
        "Create no services for apps",
    ),
    Flag::boolean(
        "enable-argo-rollout-service-reconciler",
        "false",
        "Create services for Argo rollouts too",
    ),
    Flag::text(
        "watch-namespace",
        "",
        "Watch this namespace only; empty means all",
    ),
    Flag::new(
        "cache-sync-period",
        DURATION,
        "0",
        "How often to list all resources again, although their changes are watched; 0 for never",
    ),
    Flag::text(
        "trust-anchors-file",
        "/var/run/secrets/dapr.io/tls/ca.crt",
        "File of the root certificates",
    ),
    Flag::int("port", "6500", "Port of the gRPC server"),
    Flag::text(
        "listen-address",
        "",
        "Address of the gRPC server; empty means all addresses",
    ),
    HEALTHZ_PORT,
    HEALTHZ_LISTEN_ADDRESS,
    Flag::int(
        "webhook-server-port",
        "19443",
        "Port of the webhook that converts subscriptions between versions",
    ),
    Flag::text(
        "webhook-server-listen-address",
        "",
        "Address of the webhook; empty means all addresses",
    ),
    LOG_LEVEL,
    LOG_AS_JSON,
    LOG_FILE,
    ENABLE_METRICS,
    METRICS_PORT,
    METRICS_LISTEN_ADDRESS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_documented() {
        outrigger_testing::pages::Page::read("reference/flags.md")
            .check("operator", &outrigger_flags::reference(FLAGS));
    }
}
