//! Converts between alpha2 messages and those of components.

use std::time::Duration;

use outrigger_component::conversation::{
    CompletionDetails, Message, PromptDetails, Request, Response, Role, Tool, ToolCall, ToolChoice, Usage,
};
use outrigger_protojson::to_object;
use outrigger_wire::runtime::v1 as proto;
use proto::conversation_message::MessageTypes;
use proto::conversation_tool_calls::ToolTypes as CallTypes;
use proto::conversation_tools::ToolTypes;

use super::scrubbed;

/// The component's request; the error says what is invalid.
pub(super) fn question(request: proto::ConversationRequestAlpha2) -> Result<Request, String> {
    let mut messages = Vec::new();
    for input in request.inputs {
        let scrub = input.scrub_pii.unwrap_or_default();
        for message in input.messages {
            messages.push(read(message, scrub)?);
        }
    }
    let tools: Vec<_> = request.tools.into_iter().filter_map(tool).collect();
    let tool_choice = tool_choice(request.tool_choice.unwrap_or_default(), &tools)?;
    let retention = request.prompt_cache_retention.map(Duration::try_from);
    let retention = retention
        .transpose()
        .map_err(|_| "promptCacheRetention must not be negative".to_owned())?;
    Ok(Request {
        messages,
        tools,
        tool_choice,
        temperature: request.temperature.unwrap_or_default(),
        response_format: request.response_format.map(to_object),
        prompt_cache_retention: retention,
        metadata: request.metadata,
    })
}

fn read(message: proto::ConversationMessage, scrub: bool) -> Result<Message, String> {
    let texts = |content: Vec<proto::ConversationMessageContent>| -> Vec<String> {
        content
            .into_iter()
            .map(|part| scrubbed(scrub, part.text))
            .collect()
    };
    Ok(match message.message_types {
        None => return Err("message type cannot be nil".to_owned()),
        Some(MessageTypes::OfDeveloper(said)) => Message::new(Role::Developer, texts(said.content)),
        Some(MessageTypes::OfSystem(said)) => Message::new(Role::System, texts(said.content)),
        Some(MessageTypes::OfUser(said)) => Message::new(Role::User, texts(said.content)),
        Some(MessageTypes::OfAssistant(said)) => Message {
            calls: said.tool_calls.into_iter().map(call).collect::<Result<_, _>>()?,
            ..Message::new(Role::Assistant, texts(said.content))
        },
        Some(MessageTypes::OfTool(said)) => Message {
            tool_id: said.tool_id.unwrap_or_default(),
            tool: said.name,
            ..Message::new(Role::Tool, texts(said.content))
        },
    })
}

fn call(call: proto::ConversationToolCalls) -> Result<ToolCall, String> {
    let Some(CallTypes::Function(function)) = call.tool_types else {
        return Err("tool types cannot be nil".to_owned());
    };
    Ok(ToolCall {
        id: call.id.unwrap_or_default(),
        name: function.name,
        arguments: function.arguments,
    })
}

fn tool(tool: proto::ConversationTools) -> Option<Tool> {
    let ToolTypes::Function(function) = tool.tool_types?;
    Some(Tool {
        name: function.name,
        description: function.description.unwrap_or_default(),
        parameters: function.parameters.map(to_object).unwrap_or_default(),
    })
}

fn tool_choice(given: String, tools: &[Tool]) -> Result<Option<ToolChoice>, String> {
    match given.as_str() {
        "" if tools.is_empty() => Ok(None),
        "" | "auto" => Ok(Some(ToolChoice::Auto)),
        "none" => Ok(Some(ToolChoice::None)),
        "required" if !tools.is_empty() => Ok(Some(ToolChoice::Required)),
        name if tools.iter().any(|tool| tool.name == name) => Ok(Some(ToolChoice::Tool(given))),
        name => Err(format!(
            "the tool choice {name:?} must be 'auto', 'none', 'required' with tools to choose from, or the name of one \
             of the tools"
        )),
    }
}

/// One output for each choice of the model.
pub(super) fn outputs(response: Response) -> Vec<proto::ConversationResultAlpha2> {
    let usage = response.usage.map(tokens);
    let model = Some(response.model).filter(|model| !model.is_empty());
    let choices = (0..).zip(response.choices);
    choices
        .map(|(index, choice)| {
            let message = proto::ConversationResultMessage {
                content: choice.content,
                tool_calls: choice.calls.into_iter().map(tool_call).collect(),
            };
            proto::ConversationResultAlpha2 {
                choices: vec![proto::ConversationResultChoices {
                    finish_reason: choice.finish_reason,
                    index,
                    message: Some(message),
                }],
                model: model.clone(),
                usage,
            }
        })
        .collect()
}

fn tool_call(call: ToolCall) -> proto::ConversationToolCalls {
    proto::ConversationToolCalls {
        id: Some(call.id).filter(|id| !id.is_empty()),
        tool_types: Some(CallTypes::Function(proto::ConversationToolCallsOfFunction {
            name: call.name,
            arguments: call.arguments,
        })),
    }
}

fn tokens(usage: Usage) -> proto::ConversationResultAlpha2CompletionUsage {
    use proto::ConversationResultAlpha2CompletionUsageCompletionTokensDetails as Completion;
    use proto::ConversationResultAlpha2CompletionUsagePromptTokensDetails as Prompt;
    let (completion, prompt) = (usage.completion_details, usage.prompt_details);
    proto::ConversationResultAlpha2CompletionUsage {
        completion_tokens: usage.completion,
        prompt_tokens: usage.prompt,
        total_tokens: usage.total,
        completion_tokens_details: (completion != CompletionDetails::default()).then_some(Completion {
            accepted_prediction_tokens: completion.accepted_prediction,
            audio_tokens: completion.audio,
            reasoning_tokens: completion.reasoning,
            rejected_prediction_tokens: completion.rejected_prediction,
        }),
        prompt_tokens_details: (prompt != PromptDetails::default()).then_some(Prompt {
            audio_tokens: prompt.audio,
            cached_tokens: prompt.cached,
        }),
    }
}
