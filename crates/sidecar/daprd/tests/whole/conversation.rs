//! The conversation API over both protocols.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use outrigger_transport::body::Body;
use outrigger_wire::runtime::v1 as proto;
use serde_json::{Value, json};
use tonic::Code;

use crate::common::{Answer, App, Net, Node, grpc, post};

const ECHO: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: echo\nspec:\n  \
                    type: conversation.echo\n  version: v1\n";

async fn with_echo() -> Node {
    Net::plain().sidecar("me").resource(ECHO).start().await
}

async fn converse(node: &Node, version: u8, component: &str, body: &Value) -> Answer {
    let path = format!("/v1.0-alpha{version}/conversation/{component}/converse");
    node.ask(post(&path, body.to_string())).await
}

fn user(text: &str) -> Value {
    json!({ "messages": [{ "ofUser": { "content": [{ "text": text }] } }] })
}

#[tokio::test]
async fn returns_answers_and_tool_calls() {
    let node = with_echo().await;
    let question = json!({
        "name": "ignored: the path names it",
        "contextId": "c-1",
        "inputs": [
            { "messages": [
                { "ofSystem": { "content": [{ "text": "be kind" }] } },
                { "ofDeveloper": { "content": [{ "text": "be brief" }] } },
                { "ofUser": { "name": "me", "content": [{ "text": "call +12125550123" }] } },
            ], "scrubPii": true },
            { "messages": [
                { "ofAssistant": { "content": [{ "text": "ok" }], "toolCalls": [
                    { "id": "t-1", "function": { "name": "dial", "arguments": "{}" } }] } },
                { "ofTool": { "toolId": "t-1", "name": "dial", "content": [{ "text": "a@b.com" }] } },
            ] },
        ],
        "tools": [{ "function": { "name": "dial", "description": "d", "parameters": {
            "type": "object", "properties": { "b": {}, "a": {} } } } }],
        "temperature": 0.3,
        "scrubPii": true,
        "unknown": true,
    });
    let answer = converse(&node, 2, "echo", &question).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let content = "be kind\nbe brief\ncall <PHONE_NUMBER>\nok\n\
                   Tool Response for tool ID 't-1' with name 'dial': <EMAIL_ADDRESS>";
    assert_eq!(
        answer.json(),
        json!({
            "contextId": "c-1",
            "outputs": [{
                "choices": [{ "finishReason": "tool_calls", "message": { "content": content, "toolCalls": [
                    { "id": "0", "function": { "name": "dial", "arguments": "a,b" } },
                    { "id": "t-1", "function": { "name": "dial", "arguments": "{}" } }] } }],
                "usage": { "completionTokens": "17", "promptTokens": "17", "totalTokens": "34" },
            }],
        })
    );
    let labels = ["component=\"echo\"", "success=\"true\""];
    node.counts("dapr_component_conversation_count", &labels, 1.0)
        .await;
}

#[tokio::test]
async fn first_version_accepts_texts() {
    let node = with_echo().await;
    let parameters =
        json!({ "p": { "@type": "type.googleapis.com/google.protobuf.StringValue", "value": "v" } });
    let question = json!({
        "contextID": "c", "parameters": parameters, "metadata": { "k": "v" }, "scrubPII": true,
        "inputs": [{ "content": "from 10.8.9.1" }, { "content": "me", "role": "assistant", "scrubPII": true }],
    });
    let answer = converse(&node, 1, "echo", &question).await;
    assert_eq!(
        answer.json(),
        json!({ "contextID": "c", "outputs": [{ "result": "from <IP>\nme", "parameters": parameters }] })
    );
    let request = proto::ConversationRequest {
        name: "echo".to_owned(),
        inputs: vec![proto::ConversationInput {
            content: "hello".to_owned(),
            ..proto::ConversationInput::default()
        }],
        ..proto::ConversationRequest::default()
    };
    let method = "/dapr.proto.runtime.v1.Dapr/ConverseAlpha1";
    let outcome = grpc::unary(node.ports.grpc, method, &[], &request).await;
    let response: proto::ConversationResponse = outcome.message();
    assert_eq!(response.outputs[0].result, "hello");
}

#[tokio::test]
async fn invalid_requests_have_contract_codes() {
    let node = with_echo().await;
    let asked = json!({ "inputs": [user("x")] });
    let message = converse(&node, 2, "other", &asked)
        .await
        .error(400, "ERR_CONVERSATION_NOT_FOUND");
    assert_eq!(message, "failed finding conversation component other");
    for version in [1, 2] {
        let message = converse(&node, version, "echo", &json!({}))
            .await
            .error(400, "ERR_CONVERSATION_MISSING_INPUTS");
        assert_eq!(
            message,
            "failed conversing with component echo: missing inputs in request"
        );
    }
    for (body, expected) in [
        (
            json!({ "inputs": [{ "messages": [{ "other": {} }] }] }),
            "message type cannot be nil",
        ),
        (
            json!({ "inputs": [{ "messages": [{ "ofAssistant": { "toolCalls": [{ "id": "t" }] } }] }] }),
            "tool types cannot be nil",
        ),
        (
            json!({ "inputs": [user("x")], "toolChoice": "required" }),
            "the tool choice \"required\" must be",
        ),
    ] {
        let message = converse(&node, 2, "echo", &body)
            .await
            .error(400, "ERR_CONVERSATION_INVALID_PARMS");
        assert!(
            message.starts_with("failed conversing with component echo: invalid params: ")
                && message.contains(expected),
            "{message}"
        );
    }
    let path = "/v1.0-alpha2/conversation/echo/converse";
    let message = node
        .ask(post(path, "{"))
        .await
        .error(400, "ERR_MALFORMED_REQUEST");
    assert!(
        message.starts_with("failed deserializing HTTP body: "),
        "{message}"
    );
    node.ask(post(path, ""))
        .await
        .error(400, "ERR_CONVERSATION_MISSING_INPUTS");
    let request = proto::ConversationRequestAlpha2::default();
    let method = "/dapr.proto.runtime.v1.Dapr/ConverseAlpha2";
    let outcome = grpc::unary(node.ports.grpc, method, &[], &request).await;
    assert_eq!(outcome.status.code(), Code::InvalidArgument);
}

/// A provider that fails this often before it answers.
async fn provider(failures: usize) -> (App, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let app = App::start(move |request| {
        let number = count.fetch_add(1, Ordering::SeqCst);
        async move {
            assert_eq!(request.uri().path(), "/v1/chat/completions");
            assert_eq!(request.headers()["authorization"], "Bearer from-the-vault");
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let (status, answer) = if number < failures {
                (503, json!({ "error": { "message": "busy" } }))
            } else {
                let said = body["messages"][0]["content"].as_str().unwrap();
                let message = json!({ "role": "assistant", "content": format!("you said {said}") });
                (200, json!({ "model": body["model"], "choices": [{ "message": message, "finish_reason": "stop" }] }))
            };
            let mut response = Response::new(Body::from(answer.to_string()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            response
        }
    })
    .await;
    (app, asked)
}

fn openai(port: u16) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: llm\nspec:\n  type: conversation.openai\n  \
         version: v1\n  metadata:\n  - name: key\n    value: from-the-vault\n  - name: model\n    value: tiny\n  \
         - name: endpoint\n    value: http://127.0.0.1:{port}/v1\n  - name: responseCacheTTL\n    value: 10m\n"
    )
}

const RETRIES: &str = "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
                       retries:\n      twice: {policy: constant, duration: 1ms, maxRetries: 2}\n  targets:\n    \
                       components:\n      llm: {outbound: {retry: twice}}\n";

#[tokio::test]
async fn calls_web_model_once_under_policy() {
    let (app, asked) = provider(2).await;
    let node = Net::plain()
        .sidecar("me")
        .resource(&openai(app.port))
        .resource(RETRIES)
        .start()
        .await;
    let question = json!({ "inputs": [user("hello")] });
    for _ in 0..2 {
        let answer = converse(&node, 2, "llm", &question).await.json();
        let output = &answer["outputs"][0];
        assert_eq!(output["choices"][0]["message"]["content"], "you said hello");
        assert_eq!((&output["model"], output.get("usage")), (&json!("tiny"), None));
    }
    assert_eq!(
        asked.load(Ordering::SeqCst),
        3,
        "two failures, one answer, then the answer that was kept"
    );
}

#[tokio::test]
async fn reports_provider_failures() {
    let (app, _asked) = provider(usize::MAX).await;
    let node = Net::plain()
        .sidecar("me")
        .resource(&openai(app.port))
        .start()
        .await;
    let question = json!({ "inputs": [user("hello")] });
    let message = converse(&node, 2, "llm", &question)
        .await
        .error(500, "ERR_CONVERSATION_INVOKE");
    assert_eq!(
        message,
        "failed conversing with component llm: API returned unexpected status code: 503: busy"
    );
    let labels = ["component=\"llm\"", "success=\"false\""];
    node.counts("dapr_component_conversation_count", &labels, 1.0)
        .await;
}
