//! Every flag, in one table: the parser and the usage text are generated from it.

use std::fmt::Write;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    Text,
    Int,
    Uint,
    Duration,
    /// A comma list; repeated flags add up.
    List,
    /// `--f` alone means true.
    Bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    pub(super) default: &'static str,
    pub(super) about: &'static str,
    /// What to do instead, for flags that are still accepted but should not be used.
    pub(super) deprecated: Option<&'static str>,
}

const fn flag(name: &'static str, takes: Takes, default: &'static str, about: &'static str) -> Flag {
    Flag {
        name,
        takes,
        default,
        about,
        deprecated: None,
    }
}

const fn deprecated(name: &'static str, takes: Takes, default: &'static str, instead: &'static str) -> Flag {
    Flag {
        name,
        takes,
        default,
        about: "",
        deprecated: Some(instead),
    }
}

use Takes::{Bool, Duration, Int, List, Text, Uint};

/// Sorted by name, as the usage text lists them. Names and defaults are Dapr's.
pub(super) const FLAGS: &[Flag] = &[
    deprecated("actors-service", Text, "", "flag no longer has any effect"),
    flag(
        "allowed-origins",
        Text,
        "",
        "Origins that browsers may call from: * or a comma list; empty turns CORS off",
    ),
    flag(
        "app-binding-options-timeout",
        Duration,
        "3s",
        "Time limit for asking the app about an input binding",
    ),
    flag(
        "app-channel-address",
        Text,
        "127.0.0.1",
        "Host the app listens on",
    ),
    flag(
        "app-health-check-path",
        Text,
        "/healthz",
        "Path of app health probes (HTTP only)",
    ),
    flag(
        "app-health-probe-interval",
        Int,
        "5",
        "Seconds between app health probes",
    ),
    flag(
        "app-health-probe-timeout",
        Int,
        "500",
        "Time limit of an app health probe, in milliseconds",
    ),
    flag(
        "app-health-threshold",
        Int,
        "3",
        "Failed probes in a row that make the app unhealthy",
    ),
    flag("app-id", Text, "", "Name of the app, unique in its namespace"),
    flag(
        "app-max-concurrency",
        Int,
        "-1",
        "Calls into the app at once; -1 for no limit",
    ),
    flag(
        "app-port",
        Text,
        "",
        "Port the app listens on; empty when it does not",
    ),
    flag(
        "app-protocol",
        Text,
        "http",
        "How to talk to the app: http, https, h2c, grpc, grpcs",
    ),
    deprecated("app-ssl", Bool, "false", "use '--app-protocol https|grpcs'"),
    flag("build-info", Bool, "false", "Print build information and exit"),
    deprecated("components-path", Text, "", "use --resources-path"),
    flag(
        "config",
        List,
        "",
        "Configuration files (standalone, merged in order) or resource name (kubernetes)",
    ),
    flag("control-plane-address", Text, "", "Address of the operator"),
    flag(
        "control-plane-namespace",
        Text,
        "default",
        "Namespace of the control plane",
    ),
    flag(
        "control-plane-trust-domain",
        Text,
        "localhost",
        "Trust domain of the control plane",
    ),
    flag(
        "dapr-block-shutdown-duration",
        Duration,
        "0s",
        "How long to keep serving after a stop signal",
    ),
    flag(
        "dapr-graceful-shutdown-seconds",
        Int,
        "5",
        "Time limit of an orderly stop; 0 for none",
    ),
    flag("dapr-grpc-port", Text, "50001", "Port of the gRPC API"),
    deprecated(
        "dapr-http-max-request-size",
        Int,
        "4",
        "use '--max-body-size 4Mi'",
    ),
    flag("dapr-http-port", Text, "3500", "Port of the HTTP API"),
    deprecated(
        "dapr-http-read-buffer-size",
        Int,
        "4",
        "use '--read-buffer-size 4Ki'",
    ),
    flag(
        "dapr-internal-grpc-listen-address",
        Text,
        "",
        "Address the server for other sidecars binds to",
    ),
    flag(
        "dapr-internal-grpc-port",
        Text,
        "",
        "Port of the server for other sidecars; empty for a stable choice",
    ),
    flag(
        "dapr-listen-addresses",
        Text,
        "",
        "Comma list of addresses the APIs bind to; empty for all",
    ),
    flag(
        "dapr-public-listen-address",
        Text,
        "",
        "Address the public health and metadata server binds to",
    ),
    flag(
        "dapr-public-port",
        Text,
        "",
        "Port of the public health and metadata server; empty turns it off",
    ),
    flag(
        "disable-builtin-k8s-secret-store",
        Bool,
        "false",
        "Do not offer the built-in Kubernetes secret store",
    ),
    flag(
        "disable-init-endpoints",
        List,
        "",
        "App endpoints not to call at start: config, subscribe",
    ),
    flag(
        "enable-api-logging",
        Bool,
        "false",
        "Log API calls; when not given the Configuration decides",
    ),
    flag("enable-app-health-check", Bool, "false", "Probe the app's health"),
    flag("enable-metrics", Bool, "true", "Serve metrics"),
    flag("enable-mtls", Bool, "false", "Mutual TLS between sidecars"),
    flag("enable-profiling", Bool, "false", "Serve profiles"),
    flag("log-as-json", Bool, "false", "Log lines as JSON"),
    flag(
        "log-file",
        Text,
        "",
        "Append logs to this file instead of standard output",
    ),
    flag("log-level", Text, "info", "debug, info, warn, error or fatal"),
    flag(
        "max-body-size",
        Text,
        "4Mi",
        "Largest body or message of the APIs, as a quantity; 0 for no limit",
    ),
    flag(
        "metrics-listen-address",
        Text,
        "0.0.0.0",
        "Address the metrics server binds to",
    ),
    flag("metrics-port", Text, "9090", "Port of the metrics server"),
    flag("mode", Text, "standalone", "standalone or kubernetes"),
    flag(
        "placement-host-address",
        Text,
        "",
        "Comma list of placement host:port",
    ),
    flag("profile-port", Text, "7777", "Port of the profiling server"),
    flag(
        "read-buffer-size",
        Text,
        "4Ki",
        "Largest HTTP request head, as a quantity",
    ),
    deprecated("reminders-service", Text, "", "flag no longer has any effect"),
    flag(
        "resources-path",
        List,
        "",
        "Folders with resource files; repeatable",
    ),
    flag(
        "scheduler-host-address",
        List,
        "",
        "Comma list of scheduler host:port",
    ),
    flag(
        "scheduler-job-streams",
        Uint,
        "3",
        "Job streams per scheduler address",
    ),
    flag("sentry-address", Text, "", "Address of the certificate authority"),
    flag(
        "sentry-request-jwt-audiences",
        List,
        "",
        "Audiences of the identity token; empty for the trust domain",
    ),
    flag(
        "unix-domain-socket",
        Text,
        "",
        "Folder for API sockets, used instead of ports",
    ),
    flag("version", Bool, "false", "Print the contract version and exit"),
    flag(
        "wait",
        Bool,
        "false",
        "Wait until a sidecar is ready for outbound calls and exit",
    ),
];

/// The flag of a name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The text of `--help`. Deprecated flags are left out.
pub fn usage() -> String {
    let mut out = String::from("Usage of daprd:\n");
    for flag in FLAGS.iter().filter(|flag| flag.deprecated.is_none()) {
        let takes = match flag.takes {
            Text => " string",
            Int => " int",
            Uint => " uint",
            Duration => " duration",
            List => " strings",
            Bool => "",
        };
        let left = format!("--{}{takes}", flag.name);
        let default = match flag.default {
            "" | "false" => String::new(),
            value => format!(" (default {value})"),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "      {left:<45} {}{default}", flag.about);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_without_repetition() {
        assert!(FLAGS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn usage_lists_every_flag_in_use() {
        let text = usage();
        assert!(
            text.contains("--app-id string") && text.contains("(default 4Mi)"),
            "{text}"
        );
        assert!(
            !text.contains("components-path") && !text.contains("actors-service"),
            "{text}"
        );
    }
}
