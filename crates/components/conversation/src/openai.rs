//! `conversation.openai` and compatible providers: chat completions.

use std::{collections::BTreeMap, env, sync::Arc};

use outrigger_component::{
    Catalog, Conversation, Entry, Metadata, Result, Setup,
    catalog::Version,
    conversation::{
        Choice, CompletionDetails, Message, PromptDetails, Request, Response, Role, Tool, ToolCall,
        ToolChoice, Usage,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::remote::{Protocol, Remote, model, url};

const CHAT: &str = "/chat/completions";

/// A provider with an OpenAI-compatible API.
struct Provider {
    name: &'static str,
    /// Base URL; `{model}` is replaced with the model.
    endpoint: &'static str,
    model: &'static str,
    /// Environment variable that overrides the model.
    model_variable: Option<&'static str>,
    /// Source of the API key.
    key: Credentials,
}

enum Credentials {
    Required,
    /// Property or this environment variable.
    OrVariable(&'static str),
    /// Self-hosted servers may need no key.
    Optional,
}

const PROVIDERS: [Provider; 6] = [
    Provider {
        name: "openai",
        endpoint: "https://api.openai.com/v1",
        model: "gpt-5-nano",
        model_variable: Some("OPENAI_MODEL"),
        key: Credentials::OrVariable("OPENAI_API_KEY"),
    },
    Provider {
        name: "deepseek",
        endpoint: "https://api.deepseek.com",
        model: "deepseek-chat",
        model_variable: None,
        key: Credentials::Required,
    },
    Provider {
        name: "googleai",
        endpoint: "https://generativelanguage.googleapis.com/v1beta/openai",
        model: "gemini-2.5-flash-lite",
        model_variable: Some("GOOGLEAI_MODEL"),
        key: Credentials::Required,
    },
    Provider {
        name: "huggingface",
        endpoint: "https://router.huggingface.co/hf-inference/models/{model}/v1",
        model: "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        model_variable: Some("HUGGINGFACE_MODEL"),
        key: Credentials::Required,
    },
    Provider {
        name: "mistral",
        endpoint: "https://api.mistral.ai/v1",
        model: "open-mistral-7b",
        model_variable: Some("MISTRAL_MODEL"),
        key: Credentials::Required,
    },
    Provider {
        name: "ollama",
        endpoint: "http://localhost:11434/v1",
        model: "llama3.2:latest",
        model_variable: Some("OLLAMA_MODEL"),
        key: Credentials::Optional,
    },
];

pub(super) fn add(catalog: &mut Catalog) {
    for provider in &PROVIDERS {
        let open = move |setup: Setup| async move {
            let model = provider.open(&setup.metadata)?;
            Ok(Arc::new(model) as Arc<dyn Conversation>)
        };
        catalog
            .conversation
            .add(Entry::new(&[provider.name], Version::Only, open));
    }
}

impl Provider {
    fn open(&self, metadata: &Metadata) -> Result<Remote<Chat>> {
        let key = self.key(metadata)?;
        let chat = Chat {
            own: self.name == "openai",
            most_tokens: metadata.number(&["maxTokens"])?.filter(|most: &u64| *most > 0),
        };
        let kind = metadata.filled(&["apiType"]).unwrap_or("open_ai");
        if self.name == "openai" && kind.eq_ignore_ascii_case("azure") {
            return azure(chat, metadata, &key);
        }
        let model = model(self.model_variable, metadata, self.model);
        let url = url(metadata, &self.endpoint.replace("{model}", &model), CHAT)?;
        Remote::new(
            chat,
            model,
            url,
            ("authorization", &format!("Bearer {key}")),
            metadata,
        )
    }

    fn key(&self, metadata: &Metadata) -> Result<String> {
        if let Some(key) = metadata.filled(&["key"]) {
            return Ok(key.to_owned());
        }
        let variable = match self.key {
            Credentials::OrVariable(name) => env::var(name).ok().filter(|key| !key.is_empty()),
            Credentials::Optional => Some(self.name.to_owned()),
            Credentials::Required => None,
        };
        match variable {
            Some(key) => Ok(key),
            None => Ok(metadata.required(&["key"])?.to_owned()),
        }
    }
}

fn azure(chat: Chat, metadata: &Metadata, key: &str) -> Result<Remote<Chat>> {
    let (_, version) = (
        metadata.required(&["endpoint"])?,
        metadata.required(&["apiVersion"])?,
    );
    let model = model(Some("AZURE_OPENAI_MODEL"), metadata, "gpt-4.1-nano");
    let mut url = url(metadata, "", &format!("/openai/deployments/{model}{CHAT}"))?;
    url.query_pairs_mut().append_pair("api-version", version);
    Remote::new(chat, model, url, ("api-key", key), metadata)
}

/// Chat completions.
struct Chat {
    /// OpenAI itself, which supports more than compatible providers.
    own: bool,
    most_tokens: Option<u64>,
}

impl Protocol for Chat {
    fn question(&self, model: &str, request: &Request) -> Result<Value> {
        let messages: Vec<_> = request.messages.iter().map(message).collect();
        let mut body = json!({ "model": model, "messages": messages });
        // Reasoning models reject any temperature except their default.
        if !reasons(model) {
            body["temperature"] = request.temperature.into();
        }
        if !request.tools.is_empty() {
            body["tools"] = request.tools.iter().map(tool).collect();
        }
        if let Some(choice) = &request.tool_choice {
            body["tool_choice"] = tool_choice(choice);
        }
        if let Some(schema) = &request.response_format {
            body["response_format"] = response_format(schema);
        }
        if !request.metadata.is_empty() {
            body["metadata"] = json!(request.metadata.iter().collect::<BTreeMap<_, _>>());
        }
        if let Some(retention) = request.prompt_cache_retention.filter(|_| self.own) {
            body["prompt_cache_retention"] = format!("{}h", retention.as_secs().div_ceil(3600)).into();
        }
        if let Some(most) = self.most_tokens {
            let name = if self.own {
                "max_completion_tokens"
            } else {
                "max_tokens"
            };
            body[name] = most.into();
        }
        Ok(body)
    }

    fn answer(&self, body: &[u8]) -> Result<Response, serde_json::Error> {
        outrigger_go_json::from_slice::<Completion>(body).map(Completion::into_response)
    }
}

/// Whether it is a reasoning model: families `o1`, `o3`, ... and `gpt-5`.
fn reasons(model: &str) -> bool {
    let numbered = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    model.starts_with("gpt-5") || model.strip_prefix('o').is_some_and(numbered)
}

fn message(message: &Message) -> Value {
    let role = match message.role {
        Role::System => "system",
        // Only some OpenAI models have a developer role; Dapr's components send `user` instead.
        Role::Developer | Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let content = match message.content.as_slice() {
        [] if !message.calls.is_empty() => Value::Null,
        [] => "".into(),
        [text] => text.as_str().into(),
        parts => parts
            .iter()
            .map(|text| json!({ "type": "text", "text": text }))
            .collect(),
    };
    let mut body = json!({ "role": role, "content": content });
    if !message.calls.is_empty() {
        body["tool_calls"] = message.calls.iter().map(tool_call).collect();
    }
    if message.role == Role::Tool {
        body["tool_call_id"] = message.tool_id.as_str().into();
    }
    body
}

fn tool_call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

fn tool(tool: &Tool) -> Value {
    let mut function = json!({ "name": tool.name, "parameters": tool.parameters });
    if !tool.description.is_empty() {
        function["description"] = tool.description.as_str().into();
    }
    json!({ "type": "function", "function": function })
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({ "type": "function", "function": { "name": name } }),
    }
}

fn response_format(schema: &Map<String, Value>) -> Value {
    let named = |name: &str| schema.get(name).filter(|value| **value != "");
    let mut format = json!({
        "name": named("name").and_then(Value::as_str).unwrap_or("response"),
        "schema": schema,
        "strict": named("strict").and_then(Value::as_bool).unwrap_or_default(),
    });
    if let Some(text) = named("description").and_then(Value::as_str) {
        format["description"] = text.into();
    }
    json!({ "type": "json_schema", "json_schema": format })
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: Vec<ResponseChoice>,
    model: Option<String>,
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct ResponseChoice {
    message: ResponseMessage,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponseMessage {
    content: Option<String>,
    tool_calls: Option<Vec<Called>>,
}

#[derive(Deserialize)]
struct Called {
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    completion_tokens: u64,
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens_details: Option<CompletionTokens>,
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CompletionTokens {
    accepted_prediction_tokens: Option<u64>,
    audio_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
    rejected_prediction_tokens: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptTokens {
    audio_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

impl Completion {
    fn into_response(self) -> Response {
        Response {
            choices: self
                .choices
                .into_iter()
                .map(ResponseChoice::into_choice)
                .collect(),
            model: self.model.unwrap_or_default(),
            usage: self.usage.map(Tokens::into_usage),
        }
    }
}

impl ResponseChoice {
    fn into_choice(self) -> Choice {
        let calls = self.message.tool_calls.unwrap_or_default().into_iter();
        Choice {
            finish_reason: self
                .finish_reason
                .filter(|reason| !reason.is_empty())
                .unwrap_or_else(|| "unknown".to_owned()),
            content: self.message.content.unwrap_or_default(),
            calls: calls
                .map(|call| ToolCall {
                    id: call.id.unwrap_or_default(),
                    name: call.function.name,
                    arguments: call.function.arguments,
                })
                .collect(),
        }
    }
}

impl Tokens {
    fn into_usage(self) -> Usage {
        let completion = self.completion_tokens_details.unwrap_or_default();
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        Usage {
            completion: self.completion_tokens,
            prompt: self.prompt_tokens,
            total: self.total_tokens,
            completion_details: CompletionDetails {
                accepted_prediction: completion.accepted_prediction_tokens.unwrap_or_default(),
                audio: completion.audio_tokens.unwrap_or_default(),
                reasoning: completion.reasoning_tokens.unwrap_or_default(),
                rejected_prediction: completion.rejected_prediction_tokens.unwrap_or_default(),
            },
            prompt_details: PromptDetails {
                audio: prompt.audio_tokens.unwrap_or_default(),
                cached: prompt.cached_tokens.unwrap_or_default(),
            },
        }
    }
}
