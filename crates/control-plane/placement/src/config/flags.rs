//! The flags of the placement binary, with the names and defaults of Dapr 1.18.

use outrigger_controlplane::config::{
    DURATION, ENABLE_METRICS, HEALTHZ_LISTEN_ADDRESS_IGNORED, HEALTHZ_PORT, LOG_AS_JSON, LOG_FILE, LOG_LEVEL,
    METRICS_LISTEN_ADDRESS_IGNORED, METRICS_PORT, SENTRY_ADDRESS, TLS_ENABLED, TRUST_ANCHORS_FILE,
    TRUST_DOMAIN,
};
use outrigger_flags::Flag;

/// The cluster of a single replica.
pub(super) const DEFAULT_CLUSTER: &str = "dapr-placement-0=127.0.0.1:8201";

/// All flags of the placement binary.
pub const FLAGS: &[Flag] = &[
    Flag::int("port", "50005", "Port of the gRPC server"),
    Flag::text(
        "listen-address",
        "",
        "Address of the gRPC and the metrics server; empty means all addresses",
    ),
    HEALTHZ_PORT,
    HEALTHZ_LISTEN_ADDRESS_IGNORED,
    Flag::text(
        "id",
        "dapr-placement-0",
        "Id of this replica; one of --initial-cluster, where there is one",
    ),
    Flag::list(
        "initial-cluster",
        "id=host:port of every replica, the same for all; one is elected leader (default dapr-placement-0=127.0.0.1:8201)",
    ),
    Flag::text(
        "leader-election",
        "raft",
        "Leader election: raft (--initial-cluster), or lease (a Kubernetes Lease); not in Dapr",
    ),
    Flag::text(
        "kubeconfig",
        "",
        "Path of a kubeconfig file outside of a pod; not in Dapr",
    ),
    Flag::boolean("inmem-store-enabled", "true", "No effect: nothing is stored"),
    Flag::text("raft-logstore-path", "", "No effect: nothing is stored"),
    TLS_ENABLED,
    TRUST_DOMAIN,
    TRUST_ANCHORS_FILE,
    SENTRY_ADDRESS,
    Flag::text(
        "mode",
        "standalone",
        "Where the service runs: standalone or kubernetes, where mTLS is always on",
    ),
    Flag::boolean(
        "metadata-enabled",
        "false",
        "Serve the tables at /placement/state of the health server; by default as DAPR_PLACEMENT_METADATA_ENABLED \
         says",
    ),
    Flag::int(
        "replicationFactor",
        "100",
        "Virtual nodes of a host on the ring of an actor type, 1 to 10000",
    ),
    Flag::new(
        "keepalive-time",
        DURATION,
        "2s",
        "Time without traffic on a connection before a ping, 1s to 10s",
    ),
    Flag::new(
        "keepalive-timeout",
        DURATION,
        "3s",
        "Time to answer that ping, 1s to 10s",
    ),
    Flag::new(
        "disseminate-timeout",
        DURATION,
        "8s",
        "Time for a sidecar to answer a dissemination before it is disconnected",
    ),
    Flag::new(
        "disseminate-coalesce-window",
        DURATION,
        "0s",
        "Pause after a dissemination; changes within it share the next one",
    ),
    Flag::boolean(
        "handover",
        "false",
        "Stop only moving actors, if all sidecars have --actors-handover; not in Dapr",
    ),
    Flag::int("max-api-level", "10", "No effect").hidden(),
    Flag::int("min-api-level", "0", "No effect").hidden(),
    LOG_LEVEL,
    LOG_AS_JSON,
    LOG_FILE,
    ENABLE_METRICS,
    METRICS_PORT,
    METRICS_LISTEN_ADDRESS_IGNORED,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_page_is_complete() {
        outrigger_testing::pages::Page::read("reference/flags.md")
            .check("placement", &outrigger_flags::reference(FLAGS));
    }
}
