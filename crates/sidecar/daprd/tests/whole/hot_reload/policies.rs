//! Hot reload of policies and of the Configuration.

use super::*;

/// A Resiliency resource for calls to the app itself; `policies` in one line of YAML.
fn policies(name: &str, policies: &str, target: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: {name}\nspec:\n  policies:\n    \
         {policies}\n  targets:\n    apps:\n      {target}\n"
    )
}

fn retries(times: usize) -> String {
    let rule = format!("retries: {{few: {{policy: constant, duration: 1ms, maxRetries: {times}}}}}");
    policies("few", &rule, "me: {retry: few}")
}

/// An app that always fails; returns how often a call reaches it.
async fn attempts(app: &App, node: &Node) -> usize {
    let calls = || app.seen().iter().filter(|seen| seen.target == "/fails").count();
    let before = calls();
    let answer = node.ask(get("/v1.0/invoke/me/method/fails")).await;
    assert_eq!(answer.status, 500, "{}", answer.text());
    calls() - before
}

#[tokio::test]
async fn reloads_policies() {
    let net = Net::plain();
    let app = App::start(async |_| crate::common::app::text(500, "down")).await;
    let node = plan(&net).app(app.port).start().await;
    assert_eq!(attempts(&app, &node).await, 1);
    put(&node, "policy.yaml", &retries(2));
    eventually(async || attempts(&app, &node).await == 3).await;
    node.counts("dapr_resiliency_loaded", &["name=\"few\""], 1.0)
        .await;
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    assert_eq!(metadata["resiliencies"], json!([{"name": "few"}]));

    for (marker, broken) in [
        ("one", "kind: [".to_owned()),
        ("two", policies("few", "timeouts: {t: soon}", "me: {timeout: t}")),
    ] {
        put(&node, "policy.yaml", &broken);
        // The marker is reconciled after the file that was written before it.
        put(&node, "marker.yaml", &memory(marker));
        until(&node, &[(marker, "state.in-memory")]).await;
        assert_eq!(attempts(&app, &node).await, 3, "the good version stays: {broken}");
    }
    put(&node, "policy.yaml", &retries(1));
    eventually(async || attempts(&app, &node).await == 2).await;
    delete(&node, "policy.yaml");
    eventually(async || attempts(&app, &node).await == 1).await;
    node.stop().await.unwrap();
}

#[tokio::test]
async fn reload_keeps_unchanged_breaker_open() {
    let net = Net::plain();
    let app = App::start(async |_| crate::common::app::text(500, "down")).await;
    let fuse = |timeout: &str| {
        let rule =
            format!("circuitBreakers: {{fuse: {{timeout: {timeout}, trip: consecutiveFailures > 0}}}}");
        policies("fuse", &rule, "me: {circuitBreaker: fuse}")
    };
    let node = plan(&net).app(app.port).resource(&fuse("1h")).start().await;
    let refused = async || {
        let answer = node.ask(get("/v1.0/invoke/me/method/m")).await;
        answer.text().contains("circuit breaker is open")
    };
    assert!(!refused().await);
    assert!(refused().await);
    let other = policies("other", "timeouts: {brief: 1s}", "other: {timeout: brief}");
    put(&node, "other.yaml", &other);
    node.counts("dapr_resiliency_loaded", &["name=\"other\""], 1.0)
        .await;
    assert!(refused().await, "its rules are the same");
    put(&node, "0.yaml", &fuse("2h"));
    eventually(async || !refused().await).await;
    node.stop().await.unwrap();
}

#[tokio::test]
async fn names_line_of_unusable_policy() {
    let net = Net::plain();
    let process = plan(&net).spawn().await;
    let file = process.resources().join("policy.yaml");
    let lines = ["timeouts:", "brief: 1s", "slow: soon"].join("\n      ");
    std::fs::write(&file, policies("late", &lines, "me: {timeout: slow}")).unwrap();
    let wanted = format!(
        "{}:9: Could not read resiliency policy late: invalid duration \\\"slow\\\", soon",
        file.display()
    );
    let plain = wanted.replace('\\', "");
    eventually(async || process.log().contains(&wanted) || process.log().contains(&plain)).await;
}

#[tokio::test]
async fn reloads_access_control() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).spawn().await;
    let caller = net.sidecar("caller").start().await;
    let status = async || {
        caller
            .ask(get("/v1.0/invoke/callee/method/m"))
            .await
            .status
            .as_u16()
    };
    assert_eq!(status().await, 200);
    let file = callee.resources().with_file_name("config.yaml");
    let before = std::fs::read_to_string(&file).unwrap();
    let denied = "  accessControl: {defaultAction: deny, trustDomain: public}\n";
    std::fs::write(&file, format!("{before}{denied}")).unwrap();
    eventually(async || status().await == 403).await;

    std::fs::write(&file, "spec: [").unwrap();
    let stays = "the Configuration stays as it is";
    eventually(async || callee.log().contains(stays)).await;
    assert!(
        callee.log().contains(&format!("{}:1", file.display())),
        "{}",
        callee.log()
    );
    assert_eq!(status().await, 403);
    // A file may be truncated while it is being written: access is granted by explicit rules, never by
    // missing ones.
    std::fs::write(&file, &before).unwrap();
    let unsettled = "accessControl was removed or has no rules";
    eventually(async || callee.log().contains(unsettled)).await;
    assert_eq!(status().await, 403);
    let other = "{appId: other, defaultAction: deny, trustDomain: public, namespace: default}";
    let opened = format!("  accessControl: {{defaultAction: allow, policies: [{other}]}}\n");
    std::fs::write(&file, format!("{before}{opened}")).unwrap();
    eventually(async || status().await == 200).await;
    assert!(!callee.log().contains("; restarting"), "applied in place");
}
