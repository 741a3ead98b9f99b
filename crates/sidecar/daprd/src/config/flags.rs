//! All flags of the sidecar.

use outrigger_flags::{Flag, Kind};
use outrigger_resources::value::go_nanos;

const DURATION: Kind = Kind::Checked {
    name: "duration",
    expected: "a duration such as 5s or 1m30s",
    check: check_duration,
};

fn check_duration(text: &str) -> Result<(), String> {
    go_nanos(text).map(drop).map_err(|error| error.to_string())
}

/// Sorted by name, as in the usage text. Names and defaults are Dapr's.
pub(super) const FLAGS: &[Flag] = &[
    Flag::new(
        "actors-disseminate-timeout",
        DURATION,
        "30s",
        "Time limit of a dissemination; actors drain within 80 % of it",
    ),
    Flag::boolean(
        "actors-handover",
        "false",
        "Hand moving actors over to new hosts; needs --handover of placement; not in Dapr",
    ),
    Flag::text("actors-service", "", "").deprecated("flag no longer has any effect"),
    Flag::text(
        "allowed-origins",
        "",
        "Allowed origins of browsers: * or a comma list; empty disables CORS",
    ),
    Flag::new(
        "app-binding-options-timeout",
        DURATION,
        "3s",
        "Timeout for asking the app about an input binding",
    ),
    Flag::text("app-channel-address", "127.0.0.1", "Host of the app"),
    Flag::text(
        "app-health-check-path",
        "/healthz",
        "Path of app health probes (HTTP only)",
    ),
    Flag::int(
        "app-health-probe-interval",
        "5",
        "Seconds between app health probes",
    ),
    Flag::int(
        "app-health-probe-timeout",
        "500",
        "Timeout of an app health probe in milliseconds",
    ),
    Flag::int(
        "app-health-threshold",
        "3",
        "Number of consecutive failed probes that make the app unhealthy",
    ),
    Flag::text("app-id", "", "Name of the app, unique in its namespace"),
    Flag::int(
        "app-max-concurrency",
        "-1",
        "Maximum number of concurrent calls to the app; -1 for no limit",
    ),
    Flag::text("app-port", "", "Port of the app; empty if it does not listen"),
    Flag::text(
        "app-protocol",
        "http",
        "Protocol of the app: http, https, h2c, grpc, grpcs",
    ),
    Flag::boolean("app-ssl", "false", "").deprecated("use '--app-protocol https|grpcs'"),
    Flag::boolean("build-info", "false", "Print build information and exit"),
    Flag::text("components-path", "", "").deprecated("use --resources-path"),
    Flag::list(
        "config",
        "Configuration files (standalone, merged in order) or resource name (kubernetes)",
    ),
    Flag::text("control-plane-address", "", "Address of the operator"),
    Flag::text(
        "control-plane-namespace",
        "default",
        "Namespace of the control plane",
    ),
    Flag::text(
        "control-plane-trust-domain",
        "localhost",
        "Trust domain of the control plane",
    ),
    Flag::new(
        "dapr-block-shutdown-duration",
        DURATION,
        "0s",
        "How long to keep serving after a stop signal",
    ),
    Flag::int(
        "dapr-graceful-shutdown-seconds",
        "5",
        "Deadline of a graceful shutdown in seconds; 0 for none",
    ),
    Flag::text("dapr-grpc-port", "50001", "Port of the gRPC API"),
    Flag::int("dapr-http-max-request-size", "4", "").deprecated("use '--max-body-size 4Mi'"),
    Flag::text("dapr-http-port", "3500", "Port of the HTTP API"),
    Flag::int("dapr-http-read-buffer-size", "4", "").deprecated("use '--read-buffer-size 4Ki'"),
    Flag::text(
        "dapr-internal-grpc-listen-address",
        "",
        "Bind address of the server for other sidecars",
    ),
    Flag::text(
        "dapr-internal-grpc-port",
        "",
        "Port of the server for other sidecars; empty for a stable port",
    ),
    Flag::text(
        "dapr-listen-addresses",
        "",
        "Comma list of bind addresses of the APIs; empty for all",
    ),
    Flag::text(
        "dapr-public-listen-address",
        "",
        "Bind address of the public health and metadata server",
    ),
    Flag::text(
        "dapr-public-port",
        "",
        "Port of the public health and metadata server; empty disables it",
    ),
    Flag::boolean(
        "disable-builtin-k8s-secret-store",
        "false",
        "Disable the built-in Kubernetes secret store",
    ),
    Flag::list(
        "disable-init-endpoints",
        "App endpoints to skip at start: config, subscribe",
    ),
    Flag::boolean(
        "enable-api-logging",
        "false",
        "Log API calls; defaults to the Configuration's setting",
    ),
    Flag::boolean("enable-app-health-check", "false", "Probe the app's health"),
    Flag::boolean("enable-metrics", "true", "Serve metrics"),
    Flag::boolean("enable-mtls", "false", "Mutual TLS between sidecars"),
    Flag::boolean("enable-profiling", "false", "Serve profiles"),
    Flag::new(
        "hot-reload-reconcile-interval",
        DURATION,
        "0",
        "How often to list resources without reported changes; 0 for 60s",
    ),
    Flag::boolean("log-as-json", "false", "Log lines as JSON"),
    Flag::text(
        "log-file",
        "",
        "Append logs to this file instead of standard output",
    ),
    Flag::text("log-level", "info", "debug, info, warn, error or fatal"),
    Flag::text(
        "max-body-size",
        "4Mi",
        "Maximum size of a body or message, as a quantity; 0 for no limit",
    ),
    Flag::text(
        "metrics-listen-address",
        "0.0.0.0",
        "Bind address of the metrics server",
    ),
    Flag::text("metrics-port", "9090", "Port of the metrics server"),
    Flag::text("mode", "standalone", "standalone or kubernetes"),
    Flag::text("placement-host-address", "", "Comma list of placement host:port"),
    Flag::text("profile-port", "7777", "Port of the profiling server"),
    Flag::text(
        "read-buffer-size",
        "4Ki",
        "Maximum size of an HTTP request head, as a quantity",
    ),
    Flag::text("reminders-service", "", "").deprecated("flag no longer has any effect"),
    Flag::list("resources-path", "Folders with resource files; repeatable"),
    Flag::list("scheduler-host-address", "Comma list of scheduler host:port"),
    Flag::uint("scheduler-job-streams", "3", "Job streams per scheduler address"),
    Flag::text("sentry-address", "", "Address of the certificate authority"),
    Flag::list(
        "sentry-request-jwt-audiences",
        "Audiences of the identity token; empty for the trust domain",
    ),
    Flag::text(
        "unix-domain-socket",
        "",
        "Folder for API sockets, used instead of ports",
    ),
    Flag::boolean("version", "false", "Print the contract version and exit"),
    Flag::boolean(
        "wait",
        "false",
        "Wait until a sidecar is ready for outbound calls and exit",
    ),
];

/// The text of `--help`, without deprecated flags.
pub fn usage() -> String {
    outrigger_flags::usage("daprd", FLAGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sorted_and_unique() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn flags_are_documented() {
        outrigger_testing::pages::Page::read("reference/flags.md")
            .check("daprd", &outrigger_flags::reference(FLAGS));
    }

    #[test]
    fn usage_lists_every_flag() {
        let text = usage();
        assert!(
            text.contains("--app-id string") && text.contains("(default \"4Mi\")"),
            "{text}"
        );
        assert!(
            !text.contains("components-path") && !text.contains("actors-service"),
            "{text}"
        );
    }
}
