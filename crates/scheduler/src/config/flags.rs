//! The flags of the scheduler binary: names and defaults are those of Dapr 1.17.

use outrigger_flags::{Flag, Kind};
use outrigger_resources::value::{go_duration, quantity};

fn check_duration(text: &str) -> Result<(), String> {
    go_duration(text).map(drop).map_err(|error| error.to_string())
}

fn check_quantity(text: &str) -> Result<(), String> {
    quantity(text).map(drop).map_err(|error| error.to_string())
}

const DURATION: Kind = Kind::Checked {
    name: "duration",
    expected: "a duration such as 100ms or 1s",
    check: check_duration,
};

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
        "Address of the gRPC and the metrics server, all addresses when empty",
    ),
    Flag::text(
        "override-broadcast-host-port",
        "",
        "host:port that sidecars are told; by default the listen address or that of this machine, and the port",
    ),
    Flag::int("healthz-port", "8080", "Port of the health server"),
    Flag::text(
        "healthz-listen-address",
        "",
        "No effect: the health server listens on all addresses",
    ),
    Flag::boolean("tls-enabled", "false", "mTLS with certificates of sentry"),
    Flag::text("trust-domain", "localhost", "Trust domain of the control plane"),
    Flag::text(
        "trust-anchors-file",
        "/var/run/secrets/dapr.io/tls/ca.crt",
        "File of the root certificates; unless given, they are those of the variable DAPR_TRUST_ANCHORS",
    ),
    Flag::text(
        "sentry-address",
        "",
        "Address of sentry; by default dapr-sentry.<NAMESPACE>.svc:443",
    ),
    Flag::text(
        "mode",
        "standalone",
        "Where the scheduler runs: standalone; kubernetes is not supported yet",
    ),
    Flag::text("kubeconfig", "", "Path of a kubeconfig file, for Kubernetes mode").hidden(),
    Flag::text(
        "id",
        "dapr-scheduler-server-0",
        "Id of this scheduler, which the store belongs to; one of --etcd-initial-cluster",
    ),
    Flag::boolean(
        "etcd-embed",
        "true",
        "Keep jobs in the embedded store; false, for an etcd of yours, is not supported yet",
    ),
    Flag::list(
        "etcd-initial-cluster",
        "id=url of each scheduler; more than one is not supported yet, and the url is not used",
    ),
    Flag::text("etcd-data-dir", "./data", "Folder of the embedded store"),
    Flag::uint(
        "etcd-client-port",
        "2379",
        "Port where the embedded store answers etcd's clients (ranges, puts, deletes, transactions)",
    ),
    Flag::text(
        "etcd-client-listen-address",
        "localhost",
        "Address of that port; whoever reaches it can read and change all jobs",
    ),
    Flag::new(
        "etcd-space-quota",
        QUANTITY,
        "9.2E",
        "Largest size of the embedded store",
    ),
    Flag::text(
        "etcd-compaction-mode",
        "revision",
        "No effect: the embedded store keeps the latest revision only",
    ),
    Flag::text(
        "etcd-compaction-retention",
        "1000000",
        "No effect: the embedded store keeps the latest revision only",
    ),
    Flag::uint(
        "etcd-snapshot-count",
        "100000",
        "No effect: the embedded store has no raft log",
    ),
    Flag::uint(
        "etcd-max-snapshots",
        "10",
        "No effect: the embedded store has no raft log",
    ),
    Flag::uint(
        "etcd-max-wals",
        "10",
        "No effect: the embedded store bounds its log by itself",
    ),
    Flag::int(
        "etcd-backend-batch-limit",
        "10000",
        "No effect: calls that come together share a write of the embedded store",
    ),
    Flag::new(
        "etcd-backend-batch-interval",
        DURATION,
        "100ms",
        "No effect: the embedded store writes at once",
    ),
    Flag::uint(
        "etcd-max-txn-ops",
        "10000",
        "No effect: 10000 operations of a transaction are the limit",
    ),
    Flag::uint(
        "etcd-experimental-bootstrap-defrag-threshold-megabytes",
        "100",
        "No effect: the embedded store gives unused space back by itself",
    ),
    Flag::boolean(
        "etcd-initial-election-tick-advance",
        "false",
        "No effect: the embedded store has no elections",
    ),
    Flag::text(
        "etcd-metrics",
        "basic",
        "No effect: the embedded store has no metrics of etcd",
    ),
    Flag::list(
        "etcd-client-endpoints",
        "Addresses of an etcd of yours: not supported yet",
    ),
    Flag::text(
        "etcd-client-username",
        "",
        "User name for an etcd of yours: not supported yet",
    ),
    Flag::text(
        "etcd-client-password",
        "",
        "Password for an etcd of yours: not supported yet",
    ),
    Flag::text(
        "identity-directory-write",
        "",
        "No effect: only an etcd needs the certificate as files",
    )
    .hidden(),
    Flag::uint(
        "workers",
        "2048",
        "Triggers that wait for an answer at a time, at least 1",
    ),
    Flag::text(
        "snapshot-to",
        "",
        "Copy the embedded store to this file, also while a scheduler runs on it, and exit",
    ),
    Flag::text(
        "restore-from",
        "",
        "Make the embedded store from this copy, if there is none, and exit",
    ),
    Flag::text(
        "log-level",
        "info",
        "Lowest severity logged: debug, info, warn, error or fatal",
    ),
    Flag::boolean("log-as-json", "false", "Log JSON lines"),
    Flag::text("log-file", "", "Append the log to this file"),
    Flag::boolean("enable-metrics", "true", "Serve Prometheus metrics"),
    Flag::text("metrics-port", "9090", "Port of the metrics server"),
    Flag::text(
        "metrics-listen-address",
        "0.0.0.0",
        "No effect: the metrics server listens on the address of --listen-address",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_flags_has_them_all() {
        outrigger_pages::Page::read("flags.md").check("scheduler", &outrigger_flags::reference(FLAGS));
    }
}
