//! Conversations with large language models.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::{Pairs, Result};

/// The role of whoever wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The operator of the model.
    System,
    /// The developer of the app.
    Developer,
    /// The person, or the app.
    User,
    /// The model.
    Assistant,
    /// A tool the model called.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The role of whoever wrote the message.
    pub role: Role,
    /// The text of the message, in parts.
    pub content: Vec<String>,
    /// Calls an assistant made.
    pub calls: Vec<ToolCall>,
    /// Of a tool's answer: which call it answers; may be empty.
    pub tool_id: String,
    /// Of a tool's answer: the tool.
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

/// A call of a tool that the model wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id; may be empty.
    pub id: String,
    /// The function.
    pub name: String,
    /// Its arguments: JSON, as the model wrote them.
    pub arguments: String,
}

/// A tool the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The function.
    pub name: String,
    /// What it is for; may be empty.
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Map<String, Value>,
}

/// Whether tools are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether to call a tool.
    Auto,
    /// Not at all.
    None,
    /// Some tool.
    Required,
    /// The model has to call the tool of this name.
    Tool(String),
}

/// A request to a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The conversation so far.
    pub messages: Vec<Message>,
    /// The tools that the model may call.
    pub tools: Vec<Tool>,
    /// Whether it does.
    pub tool_choice: Option<ToolChoice>,
    /// Zero counts as not given.
    pub temperature: f64,
    /// JSON schema the answer must fit.
    pub response_format: Option<Map<String, Value>>,
    /// How long the provider may keep the prompt.
    pub prompt_cache_retention: Option<Duration>,
    /// Passed on to the model's provider.
    pub metadata: Pairs,
}

/// The answer of a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// The answers.
    pub choices: Vec<Choice>,
    /// The model that answered, where known.
    pub model: String,
    /// Tokens that the request took, where the provider reports them.
    pub usage: Option<Usage>,
}

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Why the model stopped: `stop`, `length`, `tool_calls`, …; `unknown` when it does not say.
    pub finish_reason: String,
    /// The text; empty when there are only calls.
    pub content: String,
    /// Calls the app is to make.
    pub calls: Vec<ToolCall>,
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the answer.
    pub completion: u64,
    /// Tokens of the request.
    pub prompt: u64,
    /// Tokens of request and answer.
    pub total: u64,
    /// Parts of the answer.
    pub completion_details: CompletionDetails,
    /// Parts of the question.
    pub prompt_details: PromptDetails,
}

/// Parts of an answer's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompletionDetails {
    /// Predicted ones that were right.
    pub accepted_prediction: u64,
    /// Sound.
    pub audio: u64,
    /// Thought, not said.
    pub reasoning: u64,
    /// Predicted ones that were wrong.
    pub rejected_prediction: u64,
}

/// Parts of a question's tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptDetails {
    /// Sound.
    pub audio: u64,
    /// Known to the provider already.
    pub cached: u64,
}

/// A model to talk to.
#[async_trait]
pub trait Conversation: Send + Sync {
    /// Asks the model.
    async fn converse(&self, request: &Request) -> Result<Response>;

    /// Ends what the component runs.
    async fn close(&self) {}
}
