//! A model behind an HTTP API: code shared by both protocols.

use std::{borrow::Cow, env, sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    Conversation, Error, Kind, Metadata, Result, Unit,
    conversation::{Message, Request, Response, Tool, ToolChoice},
};
use outrigger_offload::offload;
use outrigger_webclient::{BodyError, Secrets, causes, read_body};
use reqwest::{
    Client, StatusCode, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde_json::{Map, Value};

use super::cache::{Cache, Key};

/// Maximum response size in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// Timeout for the whole response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);
/// Assumed overhead of a message, a message part or a JSON value, bytes.
const PART_OVERHEAD: usize = 16;
/// Maximum bytes of a provider's error text to show.
const MAX_ERROR_TEXT: usize = 1024;

/// Encoding of requests and responses.
pub(super) trait Protocol: Send + Sync + 'static {
    /// Encodes a request body.
    fn question(&self, model: &str, request: &Request) -> Result<Value>;

    /// Decodes a response body.
    fn answer(&self, body: &[u8]) -> Result<Response, serde_json::Error>;
}

/// A model behind an HTTP API.
pub(super) struct Remote<P> {
    protocol: Arc<P>,
    model: Arc<str>,
    url: Url,
    headers: HeaderMap,
    /// Removed from provider errors before apps see them.
    secrets: Secrets,
    client: Client,
    cache: Option<Cache>,
}

impl<P: Protocol> Remote<P> {
    /// A model at `url`; `credentials` are the name and value of a header.
    pub(super) fn new(
        protocol: P,
        model: String,
        url: Url,
        credentials: (&'static str, &str),
        metadata: &Metadata,
    ) -> Result<Self> {
        let (name, value) = credentials;
        let mut secret = HeaderValue::try_from(value)
            .map_err(|_| metadata.wrong(&["key"], "a key may contain only visible ASCII characters"))?;
        secret.set_sensitive(true);
        let key = value.strip_prefix("Bearer ").unwrap_or(value);
        let mut headers = HeaderMap::new();
        headers.insert(name, secret);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let ttl = metadata.duration(&["responseCacheTTL", "cacheTTL"], Unit::Seconds)?;
        Ok(Self {
            protocol: Arc::new(protocol),
            model: model.into(),
            client: outrigger_webclient::client(&url)
                .map_err(|error| Error::new(Kind::Configuration, error.to_string()))?,
            url,
            headers,
            secrets: Secrets::new([key]),
            cache: ttl.and_then(|ttl| ttl.positive()).map(Cache::new),
        })
    }

    /// Adds a header to every request.
    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.insert(name, HeaderValue::from_static(value));
        self
    }

    async fn ask(&self, question: Vec<u8>) -> Result<Response> {
        let request = self
            .client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .timeout(RESPONSE_TIMEOUT);
        let response = request
            .body(question)
            .send()
            .await
            .map_err(|error| unreachable(&error))?;
        let status = response.status();
        let body = read_body(response, MAX_ANSWER)
            .await
            .map_err(|error| match error {
                BodyError::Http(error) => unreachable(&error),
                large @ BodyError::TooLarge(_) => {
                    Error::new(Kind::Internal, "the model's provider").because(large)
                }
            })?;
        if !status.is_success() {
            return Err(refused(status, &body, &self.secrets));
        }
        self.read(body).await
    }

    /// Decodes a response body.
    async fn read(&self, body: Vec<u8>) -> Result<Response> {
        let protocol = Arc::clone(&self.protocol);
        let answer = offload(body.len(), move || protocol.answer(&body)).await;
        answer.map_err(|error| {
            let text = "the model's provider sent an unreadable response";
            Error::new(Kind::Internal, text).because(self.secrets.redact(&error.to_string()))
        })
    }

    /// The request body, and its cache key if caching is on.
    async fn written(&self, request: &Request) -> Result<(Vec<u8>, Option<Key>)> {
        let (protocol, model) = (Arc::clone(&self.protocol), Arc::clone(&self.model));
        let (size, request) = (size(request), request.clone());
        let kept = self.cache.is_some();
        let work = move || {
            let question = protocol.question(&model, &request)?.to_string().into_bytes();
            let key = kept.then(|| Cache::key(&question));
            Ok((question, key))
        };
        offload(size, work).await
    }
}

fn unreachable(error: &reqwest::Error) -> Error {
    let kind = if error.is_timeout() {
        Kind::Timeout
    } else {
        Kind::Unavailable
    };
    Error::new(kind, format!("the model's provider: {}", causes(error)))
}

/// Approximate size of the encoded request in bytes.
fn size(request: &Request) -> usize {
    let said = |message: &Message| {
        let texts: usize = message
            .content
            .iter()
            .map(|text| PART_OVERHEAD + text.len())
            .sum();
        let calls = message.calls.iter();
        let calls: usize = calls
            .map(|call| PART_OVERHEAD + call.id.len() + call.name.len() + call.arguments.len())
            .sum();
        PART_OVERHEAD + texts + calls + message.tool_id.len() + message.tool.len()
    };
    let offered = |tool: &Tool| tool.name.len() + tool.description.len() + object_size(&tool.parameters);
    let messages: usize = request.messages.iter().map(said).sum();
    let tools: usize = request.tools.iter().map(offered).sum();
    messages + tools + request.response_format.as_ref().map_or(0, object_size)
}

fn object_size(object: &Map<String, Value>) -> usize {
    let members = object.iter();
    members
        .map(|(name, value)| name.len() + value_size(value))
        .sum::<usize>()
        + PART_OVERHEAD
}

fn value_size(value: &Value) -> usize {
    match value {
        Value::String(text) => PART_OVERHEAD + text.len(),
        Value::Array(values) => values.iter().map(value_size).sum::<usize>() + PART_OVERHEAD,
        Value::Object(object) => object_size(object),
        Value::Null | Value::Bool(_) | Value::Number(_) => PART_OVERHEAD,
    }
}

/// An error response; both protocols put the text in `error.message`.
fn refused(status: StatusCode, body: &[u8], secrets: &Secrets) -> Error {
    let kind = match status.as_u16() {
        401 | 403 => Kind::Denied,
        408 | 504 => Kind::Timeout,
        429 | 500.. => Kind::Unavailable,
        _ => Kind::InvalidRequest,
    };
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let message = parsed.as_ref().and_then(|body| body["error"]["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(body), Cow::Borrowed);
    // Redact before truncating: a truncated secret would not match.
    let text: String = secrets.redact(&text).chars().take(MAX_ERROR_TEXT).collect();
    let code = status.as_u16();
    Error::new(
        kind,
        format!("API returned unexpected status code: {code}: {text}"),
    )
}

#[async_trait]
impl<P: Protocol> Conversation for Remote<P> {
    async fn converse(&self, request: &Request) -> Result<Response> {
        let (question, key) = self.written(request).await?;
        let key = self.cache.as_ref().zip(key);
        if let Some((cache, key)) = &key
            && let Some(answer) = cache.get(key)
        {
            return Ok(answer);
        }
        let answer = self.ask(question).await?;
        let said = |choice: &outrigger_component::conversation::Choice| {
            !choice.content.is_empty() || !choice.calls.is_empty()
        };
        if answer.choices.is_empty() {
            return Err(Error::new(
                Kind::Internal,
                "the model's provider sent an empty response",
            ));
        }
        if request.tool_choice == Some(ToolChoice::Required) && !answer.choices.iter().any(said) {
            let count = request.tools.len();
            let text = format!(
                "LLM returned empty response with no tool calls despite {count} tools being available"
            );
            return Err(Error::new(Kind::Internal, text));
        }
        if let Some((cache, key)) = key {
            cache.put(key, answer.clone());
        }
        Ok(answer)
    }
}

/// The model from the environment, the metadata or the provider's default, in this order.
pub(super) fn model(variable: Option<&str>, metadata: &Metadata, default: &str) -> String {
    first_model(variable.and_then(|name| env::var(name).ok()), metadata, default)
}

fn first_model(environment: Option<String>, metadata: &Metadata, default: &str) -> String {
    environment
        .filter(|model| !model.is_empty())
        .unwrap_or_else(|| metadata.filled(&["model"]).unwrap_or(default).to_owned())
}

/// `endpoint`, or `default` if unset, with `path` appended.
pub(super) fn url(metadata: &Metadata, default: &str, path: &str) -> Result<Url> {
    let endpoint = metadata.filled(&["endpoint"]).unwrap_or(default);
    let wrong = || metadata.wrong(&["endpoint"], "a URL like https://api.example.com/v1 is expected");
    let url: Url = format!("{}{path}", endpoint.trim_end_matches('/'))
        .parse()
        .map_err(|_| wrong())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(wrong().into());
    }
    Ok(url)
}

/// Joins the parts of a message.
pub(super) fn joined(content: &[String]) -> String {
    content.join("\n")
}

#[cfg(test)]
mod tests {
    use outrigger_component::conversation::Role;
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    /// Returns its input.
    struct Plain;

    impl Protocol for Plain {
        fn question(&self, _model: &str, request: &Request) -> Result<Value> {
            Ok(joined(&request.messages[0].content).into())
        }

        fn answer(&self, body: &[u8]) -> Result<Response, serde_json::Error> {
            Ok(Response {
                model: serde_json::from_slice(body)?,
                ..Response::default()
            })
        }
    }

    #[tokio::test]
    async fn offloads_large_requests_and_responses() {
        let url = "http://localhost".parse().unwrap();
        let remote = Remote::new(
            Plain,
            "m".to_owned(),
            url,
            ("authorization", "key"),
            &metadata(&[]),
        );
        let remote = remote.unwrap();
        for (length, at_once) in [(INLINE - 2 * PART_OVERHEAD, true), (INLINE + 1, false)] {
            let text = "x".repeat(length);
            let request = Request {
                messages: vec![Message::new(Role::User, vec![text.clone()])],
                ..Request::default()
            };
            let (was_at_once, written) = done_at_once(remote.written(&request)).await;
            assert_eq!(was_at_once, at_once, "a question of {length} bytes");
            let (was_at_once, read) = done_at_once(remote.read(written.unwrap().0)).await;
            assert_eq!(was_at_once, at_once, "an answer of {length} bytes");
            assert!(read.unwrap().model == text);
        }
        let schema = || Map::from_iter([("description".to_owned(), Value::from("x".repeat(INLINE)))]);
        let tool = Tool {
            name: "f".to_owned(),
            description: String::new(),
            parameters: schema(),
        };
        let small = Request {
            messages: vec![Message::new(Role::User, vec!["x".to_owned()])],
            ..Request::default()
        };
        for large in [
            Request {
                tools: vec![tool],
                ..small.clone()
            },
            Request {
                response_format: Some(schema()),
                ..small.clone()
            },
        ] {
            let (was_at_once, written) = done_at_once(remote.written(&large)).await;
            assert!(!was_at_once);
            written.unwrap();
        }
    }

    fn metadata(properties: &[(&str, &str)]) -> Metadata {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Metadata::new("llm", owned).unwrap()
    }

    #[test]
    fn environment_model_overrides_metadata() {
        let named = metadata(&[("model", "m")]);
        assert_eq!(first_model(Some("e".into()), &named, "d"), "e");
        assert_eq!(first_model(Some(String::new()), &named, "d"), "m");
        assert_eq!(first_model(None, &metadata(&[]), "d"), "d");
    }

    #[test]
    fn rejects_invalid_endpoints() {
        let at = |endpoint: &str| url(&metadata(&[("endpoint", endpoint)]), "https://x", "/chat");
        assert_eq!(at("http://h:1/v1/").unwrap().as_str(), "http://h:1/v1/chat");
        assert_eq!(at("").unwrap().as_str(), "https://x/chat");
        for wrong in ["h:1", "ftp://h", "file:///etc/passwd", "/v1"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_show_provider_text() {
        let refused = |status, body: &[u8]| refused(status, body, &Secrets::new(["sk-secret"]));
        let error = refused(StatusCode::UNAUTHORIZED, br#"{"error":{"message":"bad key"}}"#);
        assert_eq!(error.kind(), Kind::Denied);
        assert_eq!(
            error.to_string(),
            "API returned unexpected status code: 401: bad key"
        );
        for echo in ["sk-secret", r#"{"error":{"message":"no such key: sk-secret"}}"#] {
            let error = refused(StatusCode::UNAUTHORIZED, echo.as_bytes()).to_string();
            assert!(!error.contains("sk-"), "{error}");
        }
        let cut = format!("{}sk-secret", "x".repeat(MAX_ERROR_TEXT - 4));
        let error = refused(StatusCode::UNAUTHORIZED, cut.as_bytes()).to_string();
        assert!(!error.contains("sk-"), "{error}");
        let error = refused(StatusCode::BAD_GATEWAY, b"<html>");
        assert!(error.retryable() && error.to_string().ends_with("502: <html>"));
    }
}
