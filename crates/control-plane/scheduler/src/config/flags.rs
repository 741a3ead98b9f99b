//! The flags of the scheduler binary, with the names and defaults of Dapr 1.18.

use outrigger_controlplane::config::{
    DURATION, ENABLE_METRICS, HEALTHZ_LISTEN_ADDRESS_IGNORED, HEALTHZ_PORT, LOG_AS_JSON, LOG_FILE, LOG_LEVEL,
    METRICS_LISTEN_ADDRESS_IGNORED, METRICS_PORT, SENTRY_ADDRESS, TLS_ENABLED, TRUST_ANCHORS_FILE,
    TRUST_DOMAIN,
};
use outrigger_flags::{Flag, Kind};
use outrigger_resources::value::quantity;

fn check_quantity(text: &str) -> Result<(), String> {
    quantity(text).map(drop).map_err(|error| error.to_string())
}

const QUANTITY: Kind = Kind::Checked {
    name: "quantity",
    expected: "a size such as 16Gi",
    check: check_quantity,
};

/// All flags of the scheduler binary.
pub const FLAGS: &[Flag] = &[
    Flag::int("port", "50006", "Port of the gRPC server"),
    Flag::text(
        "listen-address",
        "",
        "Address of the gRPC and the metrics server; empty means all addresses",
    ),
    Flag::text(
        "override-broadcast-host-port",
        "",
        "host:port announced to sidecars; by default the listen address or this machine's, and the port",
    ),
    HEALTHZ_PORT,
    HEALTHZ_LISTEN_ADDRESS_IGNORED,
    TLS_ENABLED,
    TRUST_DOMAIN,
    TRUST_ANCHORS_FILE,
    SENTRY_ADDRESS,
    Flag::text(
        "mode",
        "standalone",
        "standalone or kubernetes; in Kubernetes mTLS is always on and jobs end with their namespace",
    ),
    Flag::text("kubeconfig", "", "Path of a kubeconfig file for Kubernetes mode outside of a pod").hidden(),
    Flag::text(
        "id",
        "dapr-scheduler-server-0",
        "Id of this scheduler, which owns the store; one of --etcd-initial-cluster",
    ),
    Flag::boolean(
        "etcd-embed",
        "true",
        "Store jobs in the embedded store; false: in an external etcd",
    ),
    Flag::list(
        "etcd-initial-cluster",
        "id=url of each scheduler; with several, each runs an etcd that listens on its url",
    ),
    Flag::text("etcd-data-dir", "./data", "Folder of the embedded store, or of the etcd that the scheduler runs"),
    Flag::uint(
        "etcd-client-port",
        "2379",
        "Port for clients of etcd; the embedded store answers ranges, puts, deletes and transactions",
    ),
    Flag::text(
        "etcd-client-listen-address",
        "localhost",
        "Address of that port; every client that can connect can read and change all jobs",
    ),
    Flag::new(
        "etcd-space-quota",
        QUANTITY,
        "9.2E",
        "Maximum size of the store",
    ),
    Flag::text(
        "etcd-compaction-mode",
        "revision",
        "For an etcd that the scheduler runs; the embedded store keeps the latest revision only",
    ),
    Flag::text(
        "etcd-compaction-retention",
        "1000000",
        "For an etcd that the scheduler runs; the embedded store keeps the latest revision only",
    ),
    Flag::uint(
        "etcd-snapshot-count",
        "100000",
        "For an etcd that the scheduler runs; the embedded store has no raft log",
    ),
    Flag::uint(
        "etcd-max-snapshots",
        "10",
        "For an etcd that the scheduler runs; the embedded store has no raft log",
    ),
    Flag::uint(
        "etcd-max-wals",
        "10",
        "For an etcd that the scheduler runs; the embedded store limits its log itself",
    ),
    Flag::int(
        "etcd-backend-batch-limit",
        "10000",
        "For an etcd that the scheduler runs; the embedded store groups concurrent writes",
    ),
    Flag::new(
        "etcd-backend-batch-interval",
        DURATION,
        "100ms",
        "For an etcd that the scheduler runs; the embedded store writes at once",
    ),
    Flag::uint(
        "etcd-max-txn-ops",
        "10000",
        "For an etcd that the scheduler runs; the embedded store allows 10000",
    ),
    Flag::uint(
        "etcd-experimental-bootstrap-defrag-threshold-megabytes",
        "100",
        "For an etcd that the scheduler runs; the embedded store frees space itself",
    ),
    Flag::boolean(
        "etcd-initial-election-tick-advance",
        "false",
        "For an etcd that the scheduler runs; the embedded store has no elections",
    ),
    Flag::text(
        "etcd-metrics",
        "basic",
        "For an etcd that the scheduler runs; the embedded store has no metrics of etcd",
    ),
    Flag::list(
        "etcd-client-endpoints",
        "host:port, or http:// or https:// URL, of each member of an external etcd",
    ),
    Flag::text("etcd-client-username", "", "User name for an external etcd"),
    Flag::text("etcd-client-password", "", "Password for an external etcd"),
    Flag::text(
        "identity-directory-write",
        "",
        "Folder in which the scheduler's own etcd finds the certificate; by default below the temporary folder",
    )
    .hidden(),
    Flag::text(
        "postgres",
        "",
        "Keep jobs in PostgreSQL: postgres://user@host/database or key=value pairs; use SCHEDULER_POSTGRES for passwords",
    ),
    Flag::uint(
        "workers",
        "2048",
        "Maximum number of triggers in flight, at least 1",
    ),
    Flag::text(
        "snapshot-to",
        "",
        "Copy the embedded store to this file, also while in use, and exit",
    ),
    Flag::text(
        "restore-from",
        "",
        "Restore the embedded store from this copy, if none exists, and exit",
    ),
    Flag::text(
        "migrate",
        "",
        "--migrate FROM TO: copy all jobs between stores and exit; embedded, etcd://USER:PASSWORD@HOST:PORT,... or postgres://USER:PASSWORD@HOST/DATABASE",
    ),
    Flag::text(
        "migrate-to",
        "",
        "The TO of --migrate, if it does not follow the FROM",
    ),
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
    fn flags_are_documented() {
        outrigger_testing::pages::Page::read("reference/flags.md")
            .check("scheduler", &outrigger_flags::reference(FLAGS));
    }
}
