//! The flags of the injector binary, with the names and defaults of Dapr 1.18.

use outrigger_controlplane::config::{
    ENABLE_METRICS, HEALTHZ_LISTEN_ADDRESS, HEALTHZ_PORT, LOG_AS_JSON, LOG_FILE, LOG_LEVEL,
    METRICS_LISTEN_ADDRESS, METRICS_PORT,
};
use outrigger_flags::Flag;

/// All flags of the injector binary.
pub const FLAGS: &[Flag] = &[
    Flag::int("port", "4000", "Port of the webhook"),
    Flag::text(
        "listen-address",
        "",
        "Address of the webhook; empty means all addresses",
    ),
    HEALTHZ_PORT,
    HEALTHZ_LISTEN_ADDRESS,
    Flag::boolean(
        "scheduler-enabled",
        "true",
        "Give sidecars the address of the scheduler",
    ),
    Flag::text(
        "kubeconfig",
        "",
        "Path of a kubeconfig file, for use outside of a pod",
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
            .check("injector", &outrigger_flags::reference(FLAGS));
    }
}
