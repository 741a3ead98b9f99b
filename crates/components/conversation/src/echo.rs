//! `conversation.echo`: returns its input. For tests.

use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Conversation, Entry, Error, Result,
    catalog::Version,
    conversation::{Choice, Message, Request, Response, Role, Tool, ToolCall, Usage},
};
use serde_json::Value;

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .conversation
        .add(Entry::new(&["echo"], Version::Only, |_| async {
            Ok(Arc::new(Echo) as Arc<dyn Conversation>)
        }));
}

struct Echo;

#[async_trait]
impl Conversation for Echo {
    async fn converse(&self, request: &Request) -> Result<Response> {
        let defined = request.tools.iter().enumerate();
        let mut calls = defined
            .map(|(index, tool)| call(index, tool))
            .collect::<Result<Vec<_>>>()?;
        let said = request.messages.iter().flat_map(|message| &message.calls);
        calls.extend(said.cloned());
        let lines: Vec<_> = request.messages.iter().flat_map(lines).collect();
        let content = lines.join("\n");
        let words = content.split_whitespace().count() as u64;
        Ok(Response {
            choices: vec![Choice {
                finish_reason: if calls.is_empty() { "stop" } else { "tool_calls" }.to_owned(),
                content,
                calls,
            }],
            model: String::new(),
            usage: Some(Usage {
                completion: words,
                prompt: words,
                total: 2 * words,
                ..Usage::default()
            }),
        })
    }
}

fn lines(message: &Message) -> impl Iterator<Item = String> {
    message.content.iter().map(move |text| match message.role {
        Role::Tool => format!(
            "Tool Response for tool ID '{}' with name '{}': {text}",
            message.tool_id, message.tool
        ),
        _ => text.clone(),
    })
}

/// A tool call with argument names as values.
fn call(index: usize, tool: &Tool) -> Result<ToolCall> {
    let mut arguments: Vec<&str> = match tool.parameters.get("properties") {
        None => Vec::new(),
        Some(Value::Object(properties)) => properties.keys().map(String::as_str).collect(),
        Some(_) => {
            return Err(Error::invalid_request(format!(
                "tool {}: properties of its parameters must be an object",
                tool.name
            )));
        }
    };
    arguments.sort_unstable();
    Ok(ToolCall {
        id: index.to_string(),
        name: tool.name.clone(),
        arguments: arguments.join(","),
    })
}
