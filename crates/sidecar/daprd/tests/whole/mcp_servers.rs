//! MCP servers of whole sidecars: their tools are called as workflows, without a worker.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Control, Net, Node, Placement, eventually, get, post};

const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  \
                     type: state.in-memory\n  version: v1\n  metadata:\n  - name: actorStateStore\n    value: 'true'\n";
/// The server in Python that the tests call.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../mcp/tests/server.py");

fn server(name: &str, mode: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: MCPServer\nmetadata:\n  name: {name}\nspec:\n  ignoreErrors: true\n  \
         endpoint:\n    stdio:\n      command: python3\n      args: [{PROGRAM}, {mode}]\n"
    )
}

/// The end of a workflow: its status, and its output.
async fn run(node: &Node, id: &str, name: &str, input: Value) -> (String, String) {
    let path = "/v1.0-beta1/workflows/dapr";
    let started = node
        .ask(post(
            &format!("{path}/{name}/start?instanceID={id}"),
            input.to_string(),
        ))
        .await;
    assert_eq!(started.status, 202, "{}", started.text());
    let mut state = Value::Null;
    eventually(async || {
        state = node.ask(get(&format!("{path}/{id}"))).await.json();
        !["PENDING", "RUNNING"].contains(&state["runtimeStatus"].as_str().unwrap_or_default())
    })
    .await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let output = text(&state["properties"]["dapr.workflow.output"]);
    (text(&state["runtimeStatus"]), output)
}

async fn names(node: &Node) -> Vec<String> {
    let metadata = node.ask(get("/v1.0/metadata")).await.json();
    let servers = metadata["mcpServers"].as_array().cloned().unwrap_or_default();
    servers
        .iter()
        .map(|server| server["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_are_workflows_without_worker() {
    let (net, placement, control) = (Net::plain(), Placement::start().await, Control::scheduler().await);
    let plan = net
        .sidecar("agent")
        .resource(STORE)
        .resource(&server("tools", "stdio"));
    let plan = control.with_scheduler(plan).flag(&placement.flag());
    let node = plan
        .spec("  features:\n  - name: HotReload\n    enabled: true\n")
        .start()
        .await;
    eventually(async || node.ask(get("/v1.0/healthz/outbound")).await.status == 204).await;
    assert_eq!(names(&node).await, ["tools"]);
    let listed = run(&node, "list", "dapr.internal.mcp.tools.ListTools", Value::Null).await;
    let tools: Value = serde_json::from_str(&listed.1).unwrap();
    assert_eq!(
        (listed.0.as_str(), tools["tools"][0]["name"].as_str()),
        ("COMPLETED", Some("echo"))
    );
    let call = "dapr.internal.mcp.tools.CallTool.echo";
    let (status, output) = run(&node, "call", call, json!({"arguments": {"message": "hello"}})).await;
    assert_eq!(status, "COMPLETED");
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output["content"], json!([{"type": "text", "text": "hello"}]));
    let (status, _) = run(
        &node,
        "unknown",
        "dapr.internal.mcp.tools.CallTool.none",
        Value::Null,
    )
    .await;
    assert_eq!(status, "FAILED");
    std::fs::write(
        node.resources().join("broken.yaml"),
        server("broken", "no-such-mode"),
    )
    .unwrap();
    eventually(async || names(&node).await == ["broken", "tools"]).await;
    tokio::time::timeout(Duration::from_secs(60), node.stop())
        .await
        .unwrap()
        .unwrap();
}
