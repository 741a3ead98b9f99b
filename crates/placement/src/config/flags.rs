//! The flags of the placement binary: names and defaults are those of Dapr 1.17.

use outrigger_flags::{Flag, Kind};
use outrigger_resources::value::go_duration;

/// The replica, where one is enough.
pub(super) const DEFAULT_CLUSTER: &str = "dapr-placement-0=127.0.0.1:8201";

fn check_duration(text: &str) -> Result<(), String> {
    go_duration(text).map(drop).map_err(|error| error.to_string())
}

const DURATION: Kind = Kind::Checked {
    name: "duration",
    expected: "a duration such as 500ms or 2s",
    check: check_duration,
};

/// All flags of the placement binary.
pub const FLAGS: &[Flag] = &[
    Flag::int("port", "50005", "Port of the gRPC server"),
    Flag::text(
        "listen-address",
        "",
        "Address of the gRPC and the metrics server, all addresses when empty",
    ),
    Flag::int("healthz-port", "8080", "Port of the health server"),
    Flag::text(
        "healthz-listen-address",
        "",
        "No effect: the health server listens on all addresses",
    ),
    Flag::text(
        "id",
        "dapr-placement-0",
        "Id of this replica; one of --initial-cluster",
    ),
    Flag::list(
        "initial-cluster",
        "id=host:port of every replica, the same for all; each listens on its own, and one is elected leader \
         (default dapr-placement-0=127.0.0.1:8201)",
    ),
    Flag::boolean("inmem-store-enabled", "true", "No effect: nothing is stored"),
    Flag::text("raft-logstore-path", "", "No effect: nothing is stored"),
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
        "Where the service runs: standalone; kubernetes is not supported yet",
    ),
    Flag::boolean(
        "metadata-enabled",
        "false",
        "Tell the tables at /placement/state of the health server; by default as DAPR_PLACEMENT_METADATA_ENABLED says",
    ),
    Flag::int(
        "replicationFactor",
        "100",
        "Points of each host on the ring of an actor type, which sidecars are told, 1 to 10000",
    ),
    Flag::new(
        "keepalive-time",
        DURATION,
        "2s",
        "Silence on a connection before a ping, 1s to 10s",
    ),
    Flag::new(
        "keepalive-timeout",
        DURATION,
        "3s",
        "Time to answer it, 1s to 10s",
    ),
    Flag::new(
        "disseminate-timeout",
        DURATION,
        "8s",
        "Time that a sidecar has to answer in a round before the others go on without it",
    ),
    Flag::int("max-api-level", "10", "No effect").hidden(),
    Flag::int("min-api-level", "0", "No effect").hidden(),
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
        outrigger_pages::Page::read("flags.md").check("placement", &outrigger_flags::reference(FLAGS));
    }
}
