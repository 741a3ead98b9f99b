//! Conversation components against a fake provider.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request as HttpRequest, Response as HttpResponse, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use outrigger_component::{
    Conversation, Kind, Pairs,
    conversation::{Message, Request, Role, Tool, ToolCall, ToolChoice},
};
use outrigger_component_conformance as conformance;
use outrigger_components_testing::Components;
use serde_json::{Value, json};

fn components() -> Components {
    Components::of(outrigger_components_conversation::add)
}

/// A request received by the provider.
#[derive(Clone, Debug)]
struct Seen {
    target: String,
    headers: Vec<(String, String)>,
    body: Value,
}

impl Seen {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A provider whose responses are computed by `answer`.
struct Provider {
    url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Provider {
    async fn start(answer: impl Fn(&Value) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (seen, answer) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(answer));
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                let service = service_fn(move |request: HttpRequest<Incoming>| {
                    let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let headers = head.headers.iter();
                        let text = |value: &hyper::header::HeaderValue| value.to_str().unwrap().to_owned();
                        log.lock().unwrap().push(Seen {
                            target: head.uri.to_string(),
                            headers: headers
                                .map(|(name, value)| (name.to_string(), text(value)))
                                .collect(),
                            body: body.clone(),
                        });
                        let (status, answer) = answer(&body);
                        let mut response = HttpResponse::new(Full::new(Bytes::from(answer.to_string())));
                        *response.status_mut() = status.try_into().unwrap();
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(TokioIo::new(connection), service));
            }
        });
        Self { url, seen }
    }

    async fn model(&self, kind: &str, more: &[(&str, &str)]) -> Arc<dyn Conversation> {
        let mut properties = vec![
            ("key", "s3cret"),
            ("endpoint", self.url.as_str()),
            ("model", "m-1"),
        ];
        properties.retain(|(name, _)| more.iter().all(|(other, _)| other != name));
        properties.extend(more);
        components().conversation(kind, "v1", &properties).await.unwrap()
    }

    fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    #[track_caller]
    fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

/// A chat completions server that calls the first tool until it gets the tool's answer.
fn chat(body: &Value) -> (u16, Value) {
    let last = body["messages"].as_array().unwrap().last().unwrap();
    let tool = &body["tools"][0]["function"]["name"];
    let message = if tool.is_string() && last["role"] != "tool" {
        json!({ "role": "assistant", "content": null, "tool_calls": [{
            "id": "call_1", "type": "function", "function": { "name": tool, "arguments": "{\"city\":\"Oslo\"}" } }] })
    } else {
        json!({ "role": "assistant", "content": "It rains." })
    };
    let reason = if message["content"].is_null() {
        "tool_calls"
    } else {
        "stop"
    };
    let answer = json!({
        "id": "x", "object": "chat.completion", "model": "m-1-2025",
        "choices": [{ "index": 0, "message": message, "finish_reason": reason }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12,
            "prompt_tokens_details": { "cached_tokens": 3, "audio_tokens": 0 },
            "completion_tokens_details": { "reasoning_tokens": 2, "accepted_prediction_tokens": null } },
    });
    (200, answer)
}

/// The same with the Messages API.
fn messages(body: &Value) -> (u16, Value) {
    let last = body["messages"].as_array().unwrap().last().unwrap();
    let tool = &body["tools"][0]["name"];
    let mut content = vec![json!({ "type": "thinking", "thinking": "hm", "signature": "s" })];
    content.push(json!({ "type": "text", "text": "It rains." }));
    let answered = last["content"][0]["type"] == "tool_result";
    if tool.is_string() && !answered {
        content
            .push(json!({ "type": "tool_use", "id": "toolu_1", "name": tool, "input": { "city": "Oslo" } }));
    }
    let reason = if content.len() == 3 {
        "tool_use"
    } else {
        "end_turn"
    };
    let answer = json!({
        "id": "msg", "type": "message", "role": "assistant", "model": "claude", "content": content,
        "stop_reason": reason, "usage": { "input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 3 },
    });
    (200, answer)
}

fn say(role: Role, parts: &[&str]) -> Message {
    Message::new(role, parts.iter().map(|part| (*part).to_owned()).collect())
}

fn weather() -> Tool {
    let Value::Object(parameters) = json!({ "properties": { "city": { "type": "string" } } }) else {
        unreachable!()
    };
    Tool {
        name: "weather".to_owned(),
        description: "The weather.".to_owned(),
        parameters,
    }
}

/// A conversation that uses all features.
fn everything() -> Request {
    let mut called = say(Role::Assistant, &["let me see"]);
    called.calls.push(ToolCall {
        id: "c1".to_owned(),
        name: "weather".to_owned(),
        arguments: r#"{"city":"Oslo"}"#.to_owned(),
    });
    let mut answer = say(Role::Tool, &["rain"]);
    (answer.tool_id, answer.tool) = ("c1".to_owned(), "weather".to_owned());
    let Value::Object(schema) = json!({ "type": "object", "name": "report", "strict": true }) else {
        unreachable!()
    };
    Request {
        messages: vec![
            say(Role::System, &["be brief"]),
            say(Role::Developer, &["in English"]),
            say(Role::User, &["weather?", "in Oslo"]),
            called,
            answer,
        ],
        tools: vec![weather()],
        tool_choice: Some(ToolChoice::Tool("weather".to_owned())),
        temperature: 0.5,
        response_format: Some(schema),
        prompt_cache_retention: Some(std::time::Duration::from_secs(86_400)),
        metadata: Pairs::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]),
    }
}

fn hello() -> Request {
    Request {
        messages: vec![say(Role::User, &["hello"])],
        ..Request::default()
    }
}

#[tokio::test]
async fn all_models_pass_conformance() {
    let echo = components()
        .conversation("conversation.echo", "v1", &[("key", "unused")])
        .await
        .unwrap();
    conformance::conversation(&echo).await;
    for kind in [
        "openai",
        "deepseek",
        "googleai",
        "huggingface",
        "mistral",
        "ollama",
    ] {
        let provider = Provider::start(chat).await;
        let model = provider.model(&format!("conversation.{kind}"), &[]).await;
        conformance::conversation(&model).await;
    }
    let provider = Provider::start(messages).await;
    conformance::conversation(&provider.model("conversation.anthropic", &[]).await).await;
}

#[tokio::test]
async fn openai_gets_chat_completions() {
    let provider = Provider::start(chat).await;
    let model = provider.model("conversation.openai", &[]).await;
    let response = model.converse(&everything()).await.unwrap();
    let seen = provider.last();
    assert_eq!(seen.target, "/v1/chat/completions");
    assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
    assert_eq!(seen.header("content-type"), Some("application/json"));
    let function = json!({ "name": "weather", "description": "The weather.",
        "parameters": { "properties": { "city": { "type": "string" } } } });
    assert_eq!(
        seen.body,
        json!({
            "model": "m-1",
            "messages": [
                { "role": "system", "content": "be brief" },
                { "role": "user", "content": "in English" },
                { "role": "user", "content": [
                    { "type": "text", "text": "weather?" }, { "type": "text", "text": "in Oslo" }] },
                { "role": "assistant", "content": "let me see", "tool_calls": [{ "id": "c1", "type": "function",
                    "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" } }] },
                { "role": "tool", "content": "rain", "tool_call_id": "c1" },
            ],
            "tools": [{ "type": "function", "function": function }],
            "tool_choice": { "type": "function", "function": { "name": "weather" } },
            "temperature": 0.5,
            "response_format": { "type": "json_schema", "json_schema": {
                "name": "report", "strict": true, "schema": { "type": "object", "name": "report", "strict": true } } },
            "prompt_cache_retention": "24h",
            "metadata": { "a": "1", "b": "2" },
        })
    );
    assert_eq!(response.model, "m-1-2025");
    assert_eq!(
        (
            response.choices[0].content.as_str(),
            response.choices[0].finish_reason.as_str()
        ),
        ("It rains.", "stop")
    );
    let usage = response.usage.unwrap();
    assert_eq!((usage.prompt, usage.completion, usage.total), (7, 5, 12));
    assert_eq!(
        (usage.prompt_details.cached, usage.completion_details.reasoning),
        (3, 2)
    );
}

#[tokio::test]
async fn openai_sends_tool_choice() {
    let provider = Provider::start(chat).await;
    let model = provider.model("conversation.openai", &[]).await;
    for (choice, expected) in [
        (ToolChoice::Auto, "auto"),
        (ToolChoice::None, "none"),
        (ToolChoice::Required, "required"),
    ] {
        let request = Request {
            tools: vec![weather()],
            tool_choice: Some(choice),
            ..hello()
        };
        let response = model.converse(&request).await.unwrap();
        assert_eq!(provider.last().body["tool_choice"], expected);
        assert_eq!(response.choices[0].finish_reason, "tool_calls");
        assert_eq!(
            response.choices[0].calls,
            [ToolCall {
                id: "call_1".to_owned(),
                name: "weather".to_owned(),
                arguments: r#"{"city":"Oslo"}"#.to_owned(),
            }]
        );
    }
}

#[tokio::test]
async fn reasoning_models_get_no_temperature() {
    let provider = Provider::start(chat).await;
    for (name, expected) in [
        ("gpt-5-nano", Value::Null),
        ("o3-mini", Value::Null),
        ("o1", Value::Null),
        ("gpt-4.1", json!(0.0)),
        ("open-mistral-7b", json!(0.0)),
    ] {
        let model = provider.model("conversation.openai", &[("model", name)]).await;
        model.converse(&hello()).await.unwrap();
        assert_eq!(provider.last().body["temperature"], expected, "{name}");
    }
}

#[tokio::test]
async fn azure_uses_its_address_and_header() {
    let provider = Provider::start(chat).await;
    let more = [("apiType", "Azure"), ("apiVersion", "2025-01-01")];
    let model = provider.model("conversation.openai", &more).await;
    model.converse(&hello()).await.unwrap();
    let seen = provider.last();
    assert_eq!(
        seen.target,
        "/v1/openai/deployments/m-1/chat/completions?api-version=2025-01-01"
    );
    assert_eq!(
        (seen.header("api-key"), seen.header("authorization")),
        (Some("s3cret"), None)
    );
    for missing in [
        [("apiType", "azure"), ("key", "k")],
        [("apiType", "azure"), ("apiVersion", "1")],
    ] {
        let opened = components()
            .conversation("conversation.openai", "v1", &missing)
            .await;
        assert_eq!(opened.err().unwrap().kind(), Kind::Configuration);
    }
}

#[tokio::test]
async fn compatible_providers_have_defaults() {
    let provider = Provider::start(chat).await;
    let model = provider
        .model("conversation.deepseek", &[("maxTokens", "99"), ("model", "")])
        .await;
    model.converse(&everything()).await.unwrap();
    let body = provider.last().body;
    assert_eq!(
        (&body["model"], &body["max_tokens"]),
        (&json!("deepseek-chat"), &json!(99))
    );
    assert_eq!(body.get("prompt_cache_retention"), None, "only OpenAI knows it");
    let model = provider
        .model("conversation.ollama", &[("key", ""), ("model", "")])
        .await;
    model.converse(&hello()).await.unwrap();
    assert_eq!(provider.last().body["model"], "llama3.2:latest");
    for kind in ["deepseek", "googleai", "huggingface", "mistral"] {
        let opened = components()
            .conversation(&format!("conversation.{kind}"), "v1", &[])
            .await;
        let error = opened.err().unwrap();
        assert!(error.to_string().contains("key"), "{kind}: {error}");
    }
}

#[tokio::test]
async fn anthropic_gets_messages() {
    let provider = Provider::start(messages).await;
    let model = provider.model("conversation.anthropic", &[]).await;
    let response = model.converse(&everything()).await.unwrap();
    let seen = provider.last();
    assert_eq!(seen.target, "/v1/messages");
    assert_eq!(seen.header("x-api-key"), Some("s3cret"));
    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(
        seen.body,
        json!({
            "model": "m-1",
            "max_tokens": 4096,
            "system": "be brief",
            "temperature": 0.5,
            "messages": [
                { "role": "user", "content": [
                    { "type": "text", "text": "in English" },
                    { "type": "text", "text": "weather?" },
                    { "type": "text", "text": "in Oslo" }] },
                { "role": "assistant", "content": [
                    { "type": "text", "text": "let me see" },
                    { "type": "tool_use", "id": "c1", "name": "weather", "input": { "city": "Oslo" } }] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c1", "content": "rain" }] },
            ],
            "tools": [{ "name": "weather", "description": "The weather.", "input_schema": {
                "type": "object", "properties": { "city": { "type": "string" } } } }],
            "tool_choice": { "type": "tool", "name": "weather" },
        })
    );
    assert_eq!(
        (
            response.choices[0].content.as_str(),
            response.choices[0].finish_reason.as_str()
        ),
        ("It rains.", "end_turn")
    );
    let usage = response.usage.unwrap();
    assert_eq!(
        (
            usage.prompt,
            usage.completion,
            usage.total,
            usage.prompt_details.cached
        ),
        (7, 5, 12, 3)
    );
    let request = Request {
        tools: vec![weather()],
        tool_choice: Some(ToolChoice::Required),
        ..hello()
    };
    let response = model.converse(&request).await.unwrap();
    assert_eq!(provider.last().body["tool_choice"], json!({ "type": "any" }));
    assert_eq!(response.choices[0].calls[0].arguments, r#"{"city":"Oslo"}"#);
    let mut request = everything();
    request.messages[3].calls[0].arguments = "no json".to_owned();
    assert_eq!(
        model.converse(&request).await.unwrap_err().kind(),
        Kind::InvalidRequest
    );
}

#[tokio::test]
async fn caches_repeated_questions() {
    let provider = Provider::start(chat).await;
    for alias in ["responseCacheTTL", "cacheTTL"] {
        let before = provider.count();
        let model = provider.model("conversation.openai", &[(alias, "10m")]).await;
        let first = model.converse(&everything()).await.unwrap();
        assert_eq!(model.converse(&everything()).await.unwrap(), first);
        assert_eq!(provider.count(), before + 1, "{alias}");
        let mut other = everything();
        other.temperature = 0.6;
        model.converse(&other).await.unwrap();
        assert_eq!(provider.count(), before + 2, "{alias}");
    }
    let model = provider.model("conversation.openai", &[]).await;
    let before = provider.count();
    for _ in 0..2 {
        model.converse(&hello()).await.unwrap();
    }
    assert_eq!(provider.count(), before + 2, "without a TTL nothing is kept");
}

#[tokio::test]
async fn does_not_cache_provider_failures() {
    for (status, kind) in [
        (401, Kind::Denied),
        (400, Kind::InvalidRequest),
        (429, Kind::Unavailable),
        (503, Kind::Unavailable),
    ] {
        let provider = Provider::start(move |_| (status, json!({ "error": { "message": "no way" } }))).await;
        let model = provider
            .model("conversation.openai", &[("cacheTTL", "10m")])
            .await;
        for _ in 0..2 {
            let error = model.converse(&hello()).await.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(
                error.to_string(),
                format!("API returned unexpected status code: {status}: no way")
            );
        }
        assert_eq!(provider.count(), 2);
    }
    for answer in [
        json!({}),
        json!({ "choices": [] }),
        json!([]),
        json!({ "choices": [{}] }),
    ] {
        let provider = Provider::start(move |_| (200, answer.clone())).await;
        let model = provider.model("conversation.openai", &[]).await;
        assert_eq!(model.converse(&hello()).await.unwrap_err().kind(), Kind::Internal);
    }
    let silent = json!({ "choices": [{ "message": { "content": "" } }] });
    let provider = Provider::start(move |_| (200, silent.clone())).await;
    let model = provider.model("conversation.openai", &[]).await;
    assert_eq!(
        model.converse(&hello()).await.unwrap().choices[0].finish_reason,
        "unknown"
    );
    let request = Request {
        tools: vec![weather()],
        tool_choice: Some(ToolChoice::Required),
        ..hello()
    };
    let error = model.converse(&request).await.unwrap_err().to_string();
    assert!(error.contains("despite 1 tools being available"), "{error}");
}

#[tokio::test]
async fn unreachable_provider_hides_keys() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let properties = [("key", "s3cret"), ("endpoint", gone.as_str())];
    let model = components()
        .conversation("conversation.openai", "v1", &properties)
        .await
        .unwrap();
    let error = model.converse(&hello()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(
        error.to_string().contains("cannot connect") && !format!("{error:?}").contains("s3cret"),
        "{error}"
    );
    for (property, value) in [
        ("key", "a\nb"),
        ("endpoint", "no url"),
        ("cacheTTL", "soon"),
        ("maxTokens", "many"),
    ] {
        let mut properties = vec![("key", "k"), ("endpoint", gone.as_str())];
        properties.retain(|(name, _)| *name != property);
        properties.push((property, value));
        let opened = components()
            .conversation("conversation.openai", "v1", &properties)
            .await;
        let error = opened
            .err()
            .unwrap_or_else(|| panic!("{property}={value:?} was taken"));
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
    }
}
