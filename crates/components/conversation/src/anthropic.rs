//! `conversation.anthropic`: the Messages API.

use std::{env, sync::Arc};

use outrigger_component::{
    Catalog, Conversation, Entry, Error, Metadata, Result,
    catalog::Version,
    conversation::{
        Choice, Message, PromptDetails, Request, Response, Role, Tool, ToolCall, ToolChoice, Usage,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::remote::{Protocol, Remote, joined, model, url};

const ENDPOINT: &str = "https://api.anthropic.com/v1";
const MODEL: &str = "claude-sonnet-4-20250514";
/// API version that this client implements.
const VERSION: &str = "2023-06-01";
/// Default of the required token limit of an answer; `maxTokens` overrides it.
const DEFAULT_MAX_TOKENS: u64 = 4096;

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .conversation
        .add(Entry::new(&["anthropic"], Version::Only, |setup| async move {
            let model = open(&setup.metadata)?;
            Ok(Arc::new(model) as Arc<dyn Conversation>)
        }));
}

fn open(metadata: &Metadata) -> Result<Remote<Messages>> {
    let variable = env::var("ANTHROPIC_API_KEY").ok().filter(|key| !key.is_empty());
    let key = match (metadata.filled(&["key"]), &variable) {
        (Some(key), _) => key,
        (None, Some(key)) => key,
        (None, None) => metadata.required(&["key"])?,
    };
    let messages = Messages {
        most_tokens: metadata.number(&["maxTokens"])?.unwrap_or(DEFAULT_MAX_TOKENS),
    };
    let url = url(metadata, ENDPOINT, "/messages")?;
    let model = model(Some("ANTHROPIC_MODEL"), metadata, MODEL);
    let remote = Remote::new(messages, model, url, ("x-api-key", key), metadata)?;
    Ok(remote.with_header("anthropic-version", VERSION))
}

struct Messages {
    most_tokens: u64,
}

impl Protocol for Messages {
    fn question(&self, model: &str, request: &Request) -> Result<Value> {
        let (system, others): (Vec<_>, Vec<_>) = request
            .messages
            .iter()
            .partition(|message| message.role == Role::System);
        let mut messages: Vec<Value> = Vec::with_capacity(others.len());
        for message in others {
            push(&mut messages, message)?;
        }
        let mut body = json!({
            "model": model,
            "max_tokens": self.most_tokens,
            "messages": messages,
            "temperature": request.temperature,
        });
        if !system.is_empty() {
            let texts: Vec<_> = system.iter().map(|message| joined(&message.content)).collect();
            body["system"] = joined(&texts).into();
        }
        if !request.tools.is_empty() {
            body["tools"] = request.tools.iter().map(tool).collect();
            if let Some(choice) = &request.tool_choice {
                body["tool_choice"] = tool_choice(choice);
            }
        }
        if request.response_format.is_some() {
            tracing::debug!("conversation.anthropic does not support response formats; ignoring the schema");
        }
        Ok(body)
    }

    fn answer(&self, body: &[u8]) -> Result<Response, serde_json::Error> {
        outrigger_go_json::from_slice::<MessagesResponse>(body).map(MessagesResponse::into_response)
    }
}

/// Adds a message. The API requires alternating roles, and related tool answers in one message.
fn push(messages: &mut Vec<Value>, message: &Message) -> Result<()> {
    let role = if message.role == Role::Assistant {
        "assistant"
    } else {
        "user"
    };
    let blocks = blocks(message)?;
    if blocks.is_empty() {
        return Ok(());
    }
    match messages.last_mut() {
        Some(last) if last["role"] == role => {
            if let Some(content) = last["content"].as_array_mut() {
                content.extend(blocks);
            }
        }
        _ => messages.push(json!({ "role": role, "content": blocks })),
    }
    Ok(())
}

fn blocks(message: &Message) -> Result<Vec<Value>> {
    if message.role == Role::Tool {
        return Ok(vec![json!({
            "type": "tool_result",
            "tool_use_id": message.tool_id,
            "content": joined(&message.content),
        })]);
    }
    let texts = message.content.iter().filter(|text| !text.is_empty());
    let mut blocks: Vec<_> = texts
        .map(|text| json!({ "type": "text", "text": text }))
        .collect();
    for call in &message.calls {
        blocks.push(json!({
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": input(call)?,
        }));
    }
    Ok(blocks)
}

/// Arguments of a tool call. The API expects an object, not text.
fn input(call: &ToolCall) -> Result<Map<String, Value>> {
    if call.arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    outrigger_go_json::from_slice(call.arguments.as_bytes()).map_err(|error| {
        let text = format!("the arguments of the call of {} are not a JSON object", call.name);
        Error::invalid_request(text).because(error)
    })
}

fn tool(tool: &Tool) -> Value {
    let mut parameters = tool.parameters.clone();
    parameters.entry("type").or_insert_with(|| "object".into());
    let mut body = json!({ "name": tool.name, "input_schema": parameters });
    if !tool.description.is_empty() {
        body["description"] = tool.description.as_str().into();
    }
    body
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Required => json!({ "type": "any" }),
        ToolChoice::Tool(name) => json!({ "type": "tool", "name": name }),
    }
}

#[derive(Deserialize)]
struct MessagesResponse {
    #[serde(default)]
    content: Vec<Block>,
    #[serde(default)]
    model: String,
    stop_reason: Option<String>,
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    /// Thinking blocks, and types added by later API versions.
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: Option<u64>,
}

impl MessagesResponse {
    fn into_response(self) -> Response {
        let mut choice = Choice {
            finish_reason: self
                .stop_reason
                .filter(|reason| !reason.is_empty())
                .unwrap_or_else(|| "unknown".to_owned()),
            ..Choice::default()
        };
        for block in self.content {
            match block {
                Block::Text { text } => choice.content.push_str(&text),
                Block::ToolUse { id, name, input } => choice.calls.push(ToolCall {
                    id,
                    name,
                    arguments: input.to_string(),
                }),
                Block::Other => {}
            }
        }
        Response {
            choices: vec![choice],
            model: self.model,
            usage: self.usage.map(|tokens| Usage {
                completion: tokens.output_tokens,
                prompt: tokens.input_tokens,
                total: tokens.input_tokens + tokens.output_tokens,
                prompt_details: PromptDetails {
                    audio: 0,
                    cached: tokens.cache_read_input_tokens.unwrap_or_default(),
                },
                ..Usage::default()
            }),
        }
    }
}
