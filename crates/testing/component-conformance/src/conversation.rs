use std::sync::Arc;

use outrigger_component::{
    Conversation,
    conversation::{Message, Request, Role, Tool, ToolCall, ToolChoice},
};

use super::{Findings, Outcome, Step, ensure};

/// Runs all rules for conversations. The model must answer every request, and call required tools.
///
/// # Panics
/// If a rule is broken.
pub async fn conversation(model: &Arc<dyn Conversation>) {
    let mut findings = Findings::new("conversation");
    findings.note("each role is accepted", roles(model).await);
    findings.note("tools are called", tools(model).await);
    findings.note("tool answers are accepted", tool_answers(model).await);
    findings.finish();
}

fn ask(messages: Vec<Message>) -> Request {
    Request {
        messages,
        ..Request::default()
    }
}

fn say(role: Role, text: &str) -> Message {
    Message::new(role, vec![text.to_owned()])
}

async fn roles(model: &Arc<dyn Conversation>) -> Outcome {
    let request = ask(vec![
        say(Role::System, "be brief"),
        say(Role::Developer, "answer in English"),
        say(Role::User, "hello"),
        say(Role::Assistant, "hi"),
        Message::new(Role::User, vec!["what".to_owned(), "now?".to_owned()]),
    ]);
    let response = model.converse(&request).await.step("converse")?;
    ensure!(!response.choices.is_empty(), "no answer");
    for choice in &response.choices {
        ensure!(!choice.finish_reason.is_empty(), "no finish reason");
    }
    if let Some(usage) = response.usage {
        ensure!(
            usage.total == usage.prompt + usage.completion,
            "the total of the usage is not its sum: {usage:?}"
        );
    }
    Ok(())
}

fn weather() -> Tool {
    let parameters = serde_json::json!({
        "type": "object",
        "properties": { "city": { "type": "string" } },
        "required": ["city"],
    });
    let serde_json::Value::Object(parameters) = parameters else {
        unreachable!("an object was written")
    };
    Tool {
        name: "weather".to_owned(),
        description: "The weather in a city.".to_owned(),
        parameters,
    }
}

async fn tools(model: &Arc<dyn Conversation>) -> Outcome {
    let request = Request {
        tools: vec![weather()],
        tool_choice: Some(ToolChoice::Required),
        ..ask(vec![say(Role::User, "what is the weather in Oslo?")])
    };
    let response = model.converse(&request).await.step("converse")?;
    let calls: Vec<_> = response.choices.iter().flat_map(|choice| &choice.calls).collect();
    ensure!(!calls.is_empty(), "no tool was called");
    for call in calls {
        ensure!(call.name == "weather", "{} was called", call.name);
    }
    Ok(())
}

async fn tool_answers(model: &Arc<dyn Conversation>) -> Outcome {
    let mut called = Message::new(Role::Assistant, Vec::new());
    called.calls.push(ToolCall {
        id: "call-1".to_owned(),
        name: "weather".to_owned(),
        arguments: r#"{"city":"Oslo"}"#.to_owned(),
    });
    let mut answer = say(Role::Tool, "rain");
    (answer.tool_id, answer.tool) = ("call-1".to_owned(), "weather".to_owned());
    let request = Request {
        tools: vec![weather()],
        tool_choice: Some(ToolChoice::Auto),
        ..ask(vec![
            say(Role::User, "what is the weather in Oslo?"),
            called,
            answer,
        ])
    };
    let response = model.converse(&request).await.step("converse")?;
    ensure!(!response.choices.is_empty(), "no answer");
    Ok(())
}
