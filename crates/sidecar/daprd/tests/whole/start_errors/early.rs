//! The steps before resources are read.

use std::net::TcpListener;

use outrigger_transport::listen;
use tempfile::TempDir;

use super::{component, log, says};

/// A folder with a Configuration of this `spec`, and resources with various errors.
fn with_wrong_resources(spec: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let resources = folder.path().join("resources");
    std::fs::create_dir(&resources).unwrap();
    let policy = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                  timeouts:\n      slow: soon\n";
    for (file, text) in [
        ("type.yaml", component("state.sqlit", "one", &[])),
        ("first.yaml", component("state.in-memory", "two", &[])),
        ("second.yaml", component("state.in-memory", "two", &[])),
        ("policy.yaml", policy.to_owned()),
    ] {
        std::fs::write(resources.join(file), text).unwrap();
    }
    std::fs::write(folder.path().join("config.yaml"), configuration(spec)).unwrap();
    folder
}

fn configuration(spec: &str) -> String {
    format!("apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: c\nspec:\n{spec}")
}

#[test]
fn signing_without_mtls_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "  features:\n  - name: WorkflowHistorySigning\n    enabled: true\n";
    std::fs::write(folder.path().join("config.yaml"), configuration(spec)).unwrap();
    says(
        &log(folder.path(), &["--config=config.yaml"]),
        &[
            "level=fatal",
            "WorkflowHistorySigning feature flag is enabled but mTLS is not configured",
            "--enable-mtls",
        ],
    );
}

#[test]
fn names_flags_of_unavailable_ports() {
    let folder = tempfile::tempdir().unwrap();
    let taken = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [http, grpc, metrics, internal] = taken.each_ref().map(|taken| taken.local_addr().unwrap().port());
    let flags = [
        format!("--dapr-http-port={http}"),
        format!("--dapr-grpc-port={grpc}"),
        format!("--metrics-port={metrics}"),
        "--metrics-listen-address=127.0.0.1".to_owned(),
        format!("--dapr-internal-grpc-port={internal}"),
        "--dapr-public-port=0".to_owned(),
        "--dapr-public-listen-address=192.0.2.1".to_owned(),
    ];
    let log = log(folder.path(), &flags.each_ref().map(String::as_str));
    let told = |flag: &str, port| format!("{flag}: 127.0.0.1:{port}: Address already in use");
    says(
        &log,
        &[
            "level=fatal",
            "could not listen on any endpoint: ",
            &told("--dapr-http-port", http),
            &told("--dapr-grpc-port", grpc),
            &told("--metrics-port", metrics),
            &told("--dapr-internal-grpc-port", internal),
            "--dapr-public-listen-address: 192.0.2.1:0: ",
        ],
    );
}

#[test]
fn names_both_flags_of_shared_port() {
    let folder = tempfile::tempdir().unwrap();
    // Bound, so that no other process takes them, but without a listener.
    let held = [(); 2].map(|()| listen::bind(&["127.0.0.1".to_owned()], 0).unwrap());
    let [one, two] = held.each_ref().map(|held| held[0].port().unwrap());
    let flags = [
        format!("--dapr-http-port={one}"),
        format!("--metrics-port={one}"),
        "--metrics-listen-address=127.0.0.1".to_owned(),
        format!("--dapr-grpc-port={two}"),
        "--enable-profiling".to_owned(),
        format!("--profile-port={two}"),
    ];
    let log = log(folder.path(), &flags.each_ref().map(String::as_str));
    says(
        &log,
        &[
            &format!("--profile-port: {two} is also the port of --dapr-grpc-port"),
            &format!("--metrics-port: {one} is also the port of --dapr-http-port"),
        ],
    );
}

#[test]
fn early_failure_hides_no_resource_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--dapr-grpc-port={}", taken.local_addr().unwrap().port());
    let tracing = "  tracing: {otel: {endpointAddress: a:1, protocol: gprc}}\n";
    let metrics = "  metrics: {latencyDistributionBuckets: [2, 1]}\n";
    let identity = ["--enable-mtls", "--control-plane-trust-domain=not/one"];
    for (spec, flags, told) in [
        ("  {}\n", &[&port[..]][..], "could not listen on any endpoint"),
        (tracing, &[], "invalid protocol gprc provided for Otel endpoint"),
        (metrics, &[], "latencyDistributionBuckets must be ascending"),
        (
            "  accessControl: {policies: [{}]}\n",
            &[],
            "invalid access control spec",
        ),
        (
            "  secrets: {scopes: [{defaultAccess: no}]}\n",
            &[],
            "defaultAccess no",
        ),
        ("  {}\n", &identity, "--control-plane-trust-domain"),
    ] {
        let folder = with_wrong_resources(spec);
        let files = ["--config=config.yaml", "--resources-path=resources"];
        let log = log(folder.path(), &[&files, flags].concat());
        says(&log, &["level=fatal", told]);
        for parts in [
            ["type.yaml:6", "did you mean state.sqlite?"],
            ["policy.yaml:8: ", "invalid duration"],
            ["level=error", "second.yaml:1: duplicate definition"],
        ] {
            says(&log, &parts);
            let lines = log
                .lines()
                .filter(|line| line.contains("level=error") && line.contains(parts[1]));
            assert!(lines.count() < 2, "twice:\n{log}");
        }
    }
}

#[test]
fn reports_errors_of_all_steps() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--dapr-grpc-port={}", taken.local_addr().unwrap().port());
    let folder = with_wrong_resources(
        "  tracing: {zipkin: {endpointAddress: nowhere}}\n  metrics: {latencyDistributionBuckets: [2, 1]}\n",
    );
    let files = ["--config=config.yaml", "--resources-path=resources", &port];
    let log = log(folder.path(), &files);
    says(
        &log,
        &[
            "level=fatal",
            "could not listen on any endpoint",
            "invalid collector URL",
            "latencyDistributionBuckets must be ascending",
            "failed to load components",
        ],
    );
}

#[test]
fn names_lines_of_unusable_configuration() {
    let folder = with_wrong_resources(
        r#"  tracing:
    zipkin: {endpointAddress: nowhere}
    otel:
      endpointAddress: http://collector:4317
      protocol: gprc
      headers: [x key=hidden]
  metrics:
    latencyDistributionBuckets: [10, 5]
    http: {pathMatching: ["/orders/{id"]}
    rules: [{name: m, labels: [{name: l, regex: {one: "("}}]}]
  nameResolution: {component: mdsn}
  features: [{name: HotReloading, enabled: true}]
  secrets: {scopes: [{storeName: a, defaultAccess: dney}]}
"#,
    );
    let log = log(folder.path(), &["--config=config.yaml"]);
    for parts in [
        &["config.yaml:7: ", "\\\"nowhere\\\"", "http://HOST:9411"][..],
        &["config.yaml:9: ", "it has a scheme", "write HOST:PORT"],
        &["config.yaml:10: ", "did you mean grpc?"],
        &["config.yaml:11: ", "spec.tracing.otel.headers[0]"],
        &["config.yaml:13: ", "5 comes after 10"],
        &["config.yaml:14: ", "a wildcard must be a whole path segment"],
        &["config.yaml:15: ", "unclosed group"],
        &["config.yaml:16: ", "did you mean mdns?"],
        &["config.yaml:17: ", "did you mean HotReload?"],
        &["config.yaml:18: defaultAccess dney can be", "did you mean deny?"],
        &["level=fatal", "defaultAccess dney can be either allow or deny"],
    ] {
        says(&log, parts);
    }
    assert!(!log.contains("hidden"), "{log}");
}
