//! The process log as a whole. One test: the log is process-wide.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use outrigger_telemetry::apilog::{ApiLog, HttpCall};
use outrigger_telemetry::log::{self, Level, LogConfig};

fn config(file: &Path, json: bool, level: Level) -> LogConfig {
    LogConfig {
        level,
        json,
        file: Some(file.to_owned()),
        app_id: "my-app".into(),
        version: "1.18.3".into(),
        instance: "host1".into(),
    }
}

/// The lines without their times.
fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| line[line.find(" level=").unwrap() + 1..].to_owned())
        .collect()
}

fn api_call() -> HttpCall<'static> {
    HttpCall {
        method: "GET",
        path: "/v1.0/state/s/k",
        route: "GetState",
        user_agent: Some("curl/8"),
        duration: Duration::from_micros(2500),
        code: 200,
        size: 12,
        health: false,
    }
}

#[test]
fn lines_levels_and_redirection() {
    let dir = tempfile::tempdir().unwrap();
    let (text, json) = (dir.path().join("text.log"), dir.path().join("json.log"));
    let common = "instance=host1 scope=dapr.runtime type=log ver=1.18.3";

    let at = |level| log::init(config(&text, false, level)).unwrap();
    let guard = at(Level::Info);
    tracing::info!(target: "dapr.runtime", component = %"store (state.redis/v1)", "Component loaded: {}", "store");
    tracing::debug!(target: "dapr.runtime", "hidden");
    tracing::info!(target: "hyper::proto", "hidden too");
    drop(guard);
    let guard = at(Level::Debug);
    tracing::debug!(target: "dapr.runtime", attempt = 2, ok = false, "shown");
    drop(guard);
    let _guard = at(Level::Error);
    tracing::warn!(target: "dapr.runtime", "hidden again");
    let api = ApiLog {
        enabled: true,
        obfuscate_urls: false,
        omit_health_checks: true,
    };
    api.http(&api_call());
    ApiLog {
        obfuscate_urls: true,
        ..api
    }
    .http(&HttpCall {
        user_agent: None,
        ..api_call()
    });
    api.http(&HttpCall {
        health: true,
        ..api_call()
    });
    api.grpc(
        "/dapr.proto.runtime.v1.Dapr/GetState",
        None,
        Duration::from_millis(3),
        5,
        false,
    );
    log::fatal("dapr.runtime", "Fatal error from runtime");
    let http = "app_id=my-app code=200 duration=2 instance=host1";
    assert_eq!(
        lines(&text),
        [
            format!(
                "level=info msg=\"Component loaded: store\" app_id=my-app component=\"store (state.redis/v1)\" {common}"
            ),
            format!(
                "level=debug msg=shown app_id=my-app attempt=2 instance=host1 ok=false {}",
                &common[15..]
            ),
            format!(
                "level=info msg=\"HTTP API Called\" {http} method=\"GET /v1.0/state/s/k\" \
                 scope=dapr.runtime.http-info size=12 type=log useragent=curl/8 ver=1.18.3"
            ),
            format!(
                "level=info msg=\"HTTP API Called\" {http} method=GetState scope=dapr.runtime.http-info size=12 \
                 type=log ver=1.18.3"
            ),
            "level=info msg=\"gRPC API Called\" app_id=my-app code=5 duration=3 instance=host1 \
             method=/dapr.proto.runtime.v1.Dapr/GetState scope=dapr.runtime.grpc.api-info type=log ver=1.18.3"
                .to_owned(),
            format!("level=fatal msg=\"Fatal error from runtime\" app_id=my-app {common}"),
        ]
    );

    // The second configuration takes over; dropping its guard flushes it.
    let second = log::init(config(&json, true, Level::Warn)).unwrap();
    tracing::warn!(target: "dapr.runtime", code = 7_u64, level = "x", "to \"json\"");
    drop(second);
    let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(line["level"], "warning");
    assert_eq!(line["msg"], "to \"json\"");
    assert_eq!(line["code"], 7);
    assert_eq!(line["fields.level"], "x");
    assert_eq!(line["scope"], "dapr.runtime");
    assert_eq!(line["type"], "log");
    line["time"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(lines(&text).len(), 6);

    let missing = dir.path().join("no/such/dir.log");
    let error = log::init(config(&missing, false, Level::Info))
        .unwrap_err()
        .to_string();
    assert!(error.contains("no/such/dir.log"), "{error}");
}
