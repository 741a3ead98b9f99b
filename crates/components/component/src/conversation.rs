//! Conversations with large language models.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::{Pairs, Result};

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The operator of the model.
    System,
    /// The developer of the app.
    Developer,
    /// The end user or the app.
    User,
    /// The model.
    Assistant,
    /// A tool called by the model.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text of the message, in parts.
    pub content: Vec<String>,
    /// Tool calls made by the assistant.
    pub calls: Vec<ToolCall>,
    /// For a tool's answer: id of the call; may be empty.
    pub tool_id: String,
    /// For a tool's answer: name of the tool.
    pub tool: String,
}

impl Message {
    /// A message without calls.
    pub fn new(role: Role, content: Vec<String>) -> Self {
        Self {
            role,
            content,
            calls: Vec::new(),
            tool_id: String::new(),
            tool: String::new(),
        }
    }
}

/// A tool call requested by the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Id of the call; may be empty.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments: JSON as written by the model.
    pub arguments: String,
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name of the function.
    pub name: String,
    /// Description for the model; may be empty.
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Map<String, Value>,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool call.
    None,
    /// At least one tool call.
    Required,
    /// A call of the named tool.
    Tool(String),
}

/// A request to a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether the model calls them.
    pub tool_choice: Option<ToolChoice>,
    /// Zero means not set.
    pub temperature: f64,
    /// JSON schema of the answer.
    pub response_format: Option<Map<String, Value>>,
    /// How long the provider may cache the prompt.
    pub prompt_cache_retention: Option<Duration>,
    /// Passed to the model's provider.
    pub metadata: Pairs,
}

/// A model's response.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// The answers.
    pub choices: Vec<Choice>,
    /// The model that answered, if known.
    pub model: String,
    /// Token usage, if the provider reports it.
    pub usage: Option<Usage>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Why the model stopped: `stop`, `length`, `tool_calls`, ...; `unknown` if not reported.
    pub finish_reason: String,
    /// The text; empty for a message with tool calls only.
    pub content: String,
    /// Tool calls for the app to make.
    pub calls: Vec<ToolCall>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the answer.
    pub completion: u64,
    /// Tokens of the request.
    pub prompt: u64,
    /// Tokens of request and answer.
    pub total: u64,
    /// Breakdown of the answer's tokens.
    pub completion_details: CompletionDetails,
    /// Breakdown of the request's tokens.
    pub prompt_details: PromptDetails,
}

/// Breakdown of an answer's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompletionDetails {
    /// Accepted predicted tokens.
    pub accepted_prediction: u64,
    /// Audio tokens.
    pub audio: u64,
    /// Reasoning tokens.
    pub reasoning: u64,
    /// Rejected predicted tokens.
    pub rejected_prediction: u64,
}

/// Breakdown of a request's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptDetails {
    /// Audio tokens.
    pub audio: u64,
    /// Tokens from the provider's cache.
    pub cached: u64,
}

/// A language model.
#[async_trait]
pub trait Conversation: Send + Sync {
    /// Sends a request to the model.
    async fn converse(&self, request: &Request) -> Result<Response>;

    /// Stops the component's tasks.
    async fn close(&self) {}
}
