use std::process::Stdio;

use outrigger_resources::load;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use super::*;

/// Maximum size of an output, in bytes.
const MAX_OUTPUT: usize = 10_000;
/// The server in Python that the tests call.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server.py");

/// A server whose `spec.endpoint` is this YAML.
fn spec(endpoint: &str) -> Arc<McpServer> {
    let yaml = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: MCPServer\nmetadata: {{name: s}}\nspec:\n  endpoint: {endpoint}\n"
    );
    Arc::new(load::text(&yaml, "app").unwrap().mcp_servers.remove(0))
}

async fn register(endpoint: &str) -> Result<Server, String> {
    register_with(endpoint, &TaskTracker::new()).await
}

async fn register_with(endpoint: &str, tasks: &TaskTracker) -> Result<Server, String> {
    let with = Surroundings {
        resolve: Arc::new(|server| Box::pin(async move { server })),
        secret: Arc::new(|store, _, _| Box::pin(async move { Ok(format!("{store}'s secret")) })),
        identity: None,
        kubernetes: false,
        max_output: MAX_OUTPUT,
        tasks: tasks.clone(),
    };
    Server::register(spec(endpoint), Arc::new(with)).await
}

/// The server in this mode, and its port.
async fn start(mode: &str) -> (Child, u16) {
    let mut command = Command::new("python3");
    let command = command
        .args([PROGRAM, mode])
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let port = lines.next_line().await.unwrap().unwrap();
    (child, port.parse().unwrap())
}

/// The text of a call's result, and whether it is an error.
async fn call(server: &Server, tool: &str, arguments: Value) -> (bool, String) {
    let input = json!({"tool_name": tool, "arguments": arguments}).to_string();
    let result: Value = serde_json::from_str(&server.run(Activity::CallTool, &input).await).unwrap();
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    (result["isError"] == true, text.to_owned())
}

async fn answers(server: &Server) {
    let listed: Value = serde_json::from_str(&server.run(Activity::ListTools, "").await).unwrap();
    assert_eq!(listed["tools"].as_array().unwrap().len(), 5, "of all pages");
    assert!(server.has("exit") && !server.has("other"));
    assert_eq!(
        call(server, "echo", json!({"message": "x"})).await,
        (false, "x".to_owned())
    );
    let (is_error, text) = call(server, "echo", json!({"message": "x".repeat(MAX_OUTPUT)})).await;
    assert!(
        is_error && text.contains("more than 10000: request less, or raise --max-body-size"),
        "{text}"
    );
    let text = "call-tool: missing required argument(s) for tool \"echo\": message";
    assert_eq!(call(server, "echo", json!({})).await, (true, text.to_owned()));
}

#[tokio::test]
async fn calls_subprocess_and_restarts_it() {
    let endpoint =
        format!("{{stdio: {{command: python3, args: [{PROGRAM}, stdio], env: [{{name: KEY, value: v}}]}}}}");
    let tasks = TaskTracker::new();
    let server = register_with(&endpoint, &tasks).await.unwrap();
    answers(&server).await;
    let variable = call(&server, "variable", json!({"name": "KEY"})).await;
    assert_eq!(variable, (false, "v".to_owned()));
    let (is_error, text) = call(&server, "exit", json!({})).await;
    assert!(
        is_error && text.starts_with("call-tool: retry call failed for \"s\" after reconnect"),
        "{text}"
    );
    assert!(!call(&server, "echo", json!({"message": "x"})).await.0);
    drop(server);
    tasks.close();
    tasks.wait().await;
}

#[tokio::test]
async fn missing_program_is_named() {
    let failed = register("{stdio: {command: no-such-program}}")
        .await
        .err()
        .unwrap();
    assert!(failed.contains("cannot start \"no-such-program\""), "{failed}");
}

#[tokio::test]
async fn calls_over_http_with_headers() {
    let (_program, port) = start("http").await;
    let endpoint = format!(
        "{{streamableHTTP: {{url: 'http://127.0.0.1:{port}/mcp', headers: [{{name: X-Key, value: k}}], auth: {{secretStore: \
         vault, oauth2: {{issuer: 'http://127.0.0.1:{port}/token', clientID: c, audience: tools, secretKeyRef: {{name: \
         n}}}}}}}}}}"
    );
    let server = register(&endpoint).await.unwrap();
    answers(&server).await;
    for (header, expected) in [("X-Key", "k"), ("Authorization", "Bearer token-1")] {
        let found = call(&server, "header", json!({"name": header})).await;
        assert_eq!(found, (false, expected.to_owned()));
    }
}

#[tokio::test]
async fn late_answer_is_an_error() {
    let (_program, port) = start("http").await;
    let endpoint = format!("{{streamableHTTP: {{url: 'http://127.0.0.1:{port}', timeout: 2s}}}}");
    let server = register(&endpoint).await.unwrap();
    let text = "call-tool: initial call failed for \"s\": no answer within 2s (tool \"slow\")";
    assert_eq!(call(&server, "slow", json!({})).await, (true, text.to_owned()));
}

#[tokio::test]
async fn spiffe_needs_mtls() {
    let endpoint = "{sse: {url: 'http://127.0.0.1:1', auth: {spiffe: {jwt: {header: X, audience: a}}}}}";
    let failed = register(endpoint).await.err().unwrap();
    assert!(failed.contains("auth.spiffe needs mTLS"), "{failed}");
}

#[tokio::test]
async fn calls_over_event_stream() {
    let (_program, port) = start("sse").await;
    let server = register(&format!("{{sse: {{url: 'http://127.0.0.1:{port}/sse'}}}}"))
        .await
        .unwrap();
    answers(&server).await;
}

#[tokio::test]
async fn event_stream_keeps_origin() {
    let (_program, port) = start("elsewhere").await;
    let failed = register(&format!("{{sse: {{url: 'http://127.0.0.1:{port}/sse'}}}}")).await;
    let failed = failed.err().unwrap();
    assert!(failed.contains("its endpoint has another origin"), "{failed}");
}

#[test]
fn reads_required_arguments() {
    let tool = |name: &str, schema: Value| json!({"name": name, "inputSchema": schema});
    let long = "x".repeat(MAX_SCHEMA);
    let tools = [
        tool("a", json!({"required": ["x", 1, "y"]})),
        tool("b", json!({"type": "object"})),
        tool("c", json!({"required": ["x"], "description": long})),
    ];
    let found = required(&tools);
    assert_eq!(found["a"], ["x", "y"]);
    assert!(found["b"].is_empty() && found["c"].is_empty());
}
