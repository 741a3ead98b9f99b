use std::sync::Mutex;

use async_trait::async_trait;
use outrigger_component::conversation::{Choice, Tool, ToolCall, ToolChoice, Usage};
use outrigger_component::{Error, Kind, Result as ComponentResult};
use outrigger_offload::{INLINE, done_at_once};
use outrigger_policy::resiliency::Resiliency;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_telemetry::metrics::Metrics;
use proto::conversation_message::MessageTypes;
use proto::conversation_tools::ToolTypes;

use super::*;

/// Records its requests and responds with two choices.
struct Asked(Arc<Mutex<Vec<Request>>>);

#[async_trait]
impl Conversation for Asked {
    async fn converse(&self, request: &Request) -> ComponentResult<Response> {
        self.0.lock().unwrap().push(request.clone());
        if request.temperature > 1.0 {
            return Err(Error::new(Kind::Denied, "too hot"));
        }
        let choice = |content: &str| Choice {
            finish_reason: "stop".to_owned(),
            content: content.to_owned(),
            calls: Vec::new(),
        };
        let mut choices = vec![choice("mail a@b.com"), choice("")];
        choices[1].calls.push(ToolCall {
            id: String::new(),
            name: "f".to_owned(),
            arguments: "{}".to_owned(),
        });
        Ok(Response {
            choices,
            model: "m".to_owned(),
            usage: Some(Usage {
                completion: 1,
                prompt: 2,
                total: 3,
                ..Usage::default()
            }),
        })
    }
}

fn block() -> (Conversations, Arc<Mutex<Vec<Request>>>) {
    let policies = Resiliency::build(&[], "app").0;
    let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
    let block = Conversations::new(Arc::new(Resilience::new(policies, metrics)));
    let asked = Arc::new(Mutex::default());
    let _placed = block.insert("llm", Arc::new(Asked(Arc::clone(&asked))), Secrets::default());
    (block, asked)
}

fn texts(texts: &[&str]) -> Vec<proto::ConversationMessageContent> {
    let parts = texts.iter().map(|text| proto::ConversationMessageContent {
        text: (*text).to_owned(),
    });
    parts.collect()
}

fn user(text: &str) -> proto::ConversationInputAlpha2 {
    let said = MessageTypes::OfUser(proto::ConversationMessageOfUser {
        name: None,
        content: texts(&[text]),
    });
    proto::ConversationInputAlpha2 {
        messages: vec![proto::ConversationMessage {
            message_types: Some(said),
        }],
        scrub_pii: None,
    }
}

fn request(inputs: Vec<proto::ConversationInputAlpha2>) -> proto::ConversationRequestAlpha2 {
    proto::ConversationRequestAlpha2 {
        name: "llm".to_owned(),
        inputs,
        ..proto::ConversationRequestAlpha2::default()
    }
}

fn function(name: &str) -> proto::ConversationTools {
    let fields = [
        (
            "type".to_owned(),
            prost_types::value::Kind::StringValue("object".to_owned()),
        ),
        (
            "minProperties".to_owned(),
            prost_types::value::Kind::NumberValue(2.0),
        ),
    ];
    let fields = fields
        .into_iter()
        .map(|(name, kind)| (name, prost_types::Value { kind: Some(kind) }));
    proto::ConversationTools {
        tool_types: Some(ToolTypes::Function(proto::ConversationToolsFunction {
            name: name.to_owned(),
            description: Some("does".to_owned()),
            parameters: Some(prost_types::Struct {
                fields: fields.collect(),
            }),
        })),
    }
}

#[tokio::test]
async fn passes_messages_tools_and_options() {
    let (block, asked) = block();
    let scrubbed = proto::ConversationInputAlpha2 {
        scrub_pii: Some(true),
        ..user("from 10.0.0.1")
    };
    let mut question = request(vec![scrubbed, user("from 10.0.0.1")]);
    question.tools = vec![function("f")];
    question.temperature = Some(0.5);
    question.context_id = Some("c".to_owned());
    question.prompt_cache_retention = Some(prost_types::Duration {
        seconds: 60,
        nanos: 0,
    });
    question.metadata.insert("a".to_owned(), "b".to_owned());
    let response = block.alpha2(question).await.unwrap();
    let asked = asked.lock().unwrap().pop().unwrap();
    let said: Vec<_> = asked
        .messages
        .iter()
        .map(|message| message.content.concat())
        .collect();
    assert_eq!(said, ["from <IP>", "from 10.0.0.1"]);
    assert_eq!(asked.tool_choice, Some(ToolChoice::Auto), "there are tools");
    let Tool {
        name,
        description,
        parameters,
    } = &asked.tools[0];
    assert_eq!((name.as_str(), description.as_str()), ("f", "does"));
    assert_eq!(
        serde_json::Value::Object(parameters.clone()).to_string(),
        r#"{"minProperties":2,"type":"object"}"#
    );
    assert_eq!((asked.temperature, asked.metadata["a"].as_str()), (0.5, "b"));
    assert_eq!(asked.prompt_cache_retention.unwrap().as_secs(), 60);
    assert_eq!(response.context_id.as_deref(), Some("c"));
    assert_eq!(response.outputs.len(), 2, "one for each choice");
    let [first, second] = &response.outputs[..] else {
        unreachable!()
    };
    assert_eq!(first.model.as_deref(), Some("m"));
    assert_eq!(first.usage.unwrap().total_tokens, 3);
    assert_eq!(first.usage.unwrap().prompt_tokens_details, None);
    assert_eq!(first.choices[0].message.as_ref().unwrap().content, "mail a@b.com");
    assert_eq!(second.choices[0].index, 1);
    let call = &second.choices[0].message.as_ref().unwrap().tool_calls[0];
    assert_eq!(call.id, None);
}

#[tokio::test]
async fn checks_tool_choices() {
    let (block, asked) = block();
    for (choice, tools, expected) in [
        ("", vec![], Some(None)),
        ("", vec![function("f")], Some(Some(ToolChoice::Auto))),
        ("auto", vec![], Some(Some(ToolChoice::Auto))),
        ("none", vec![function("f")], Some(Some(ToolChoice::None))),
        ("required", vec![function("f")], Some(Some(ToolChoice::Required))),
        ("required", vec![], None),
        (
            "f",
            vec![function("f")],
            Some(Some(ToolChoice::Tool("f".to_owned()))),
        ),
        ("F", vec![function("f")], None),
        ("f", vec![], None),
    ] {
        let mut question = request(vec![user("x")]);
        question.tool_choice = Some(choice.to_owned());
        question.tools = tools;
        let result = block.alpha2(question).await;
        match expected {
            Some(expected) => {
                assert!(result.is_ok(), "{choice}");
                assert_eq!(
                    asked.lock().unwrap().pop().unwrap().tool_choice,
                    expected,
                    "{choice}"
                );
            }
            None => assert!(
                matches!(result, Err(ConversationError::InvalidParameters { .. })),
                "{choice}"
            ),
        }
    }
}

#[tokio::test]
async fn refuses_empty_requests() {
    let (block, asked) = block();
    let missing = block.alpha2(request(Vec::new())).await;
    assert!(matches!(missing, Err(ConversationError::MissingInputs(name)) if name == "llm"));
    let mut nameless = request(vec![user("x")]);
    nameless.inputs[0].messages[0].message_types = None;
    assert!(matches!(
        block.alpha2(nameless).await,
        Err(ConversationError::InvalidParameters { what, .. }) if what == "message type cannot be nil"
    ));
    let mut other = request(vec![user("x")]);
    other.name = "other".to_owned();
    assert!(matches!(block.alpha2(other).await, Err(ConversationError::NotFound(name)) if name == "other"));
    let mut backwards = request(vec![user("x")]);
    backwards.prompt_cache_retention = Some(prost_types::Duration {
        seconds: -1,
        nanos: 0,
    });
    assert!(matches!(
        block.alpha2(backwards).await,
        Err(ConversationError::InvalidParameters { .. })
    ));
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn alpha1_maps_roles_and_echoes_parameters() {
    let (block, asked) = block();
    let input = |role: &str| proto::ConversationInput {
        content: "call +12125550123".to_owned(),
        role: Some(role.to_owned()).filter(|role| !role.is_empty()),
        scrub_pii: Some(role == "system"),
    };
    let any = prost_types::Any {
        type_url: "t".to_owned(),
        value: vec![1],
    };
    let question = proto::ConversationRequest {
        name: "llm".to_owned(),
        inputs: ["", "system", "ai", "tool", "human"].map(input).into(),
        parameters: [("p".to_owned(), any.clone())].into(),
        scrub_pii: Some(true),
        ..proto::ConversationRequest::default()
    };
    let response = block.alpha1(question).await.unwrap();
    let asked = asked.lock().unwrap().pop().unwrap();
    let roles: Vec<_> = asked.messages.iter().map(|message| message.role).collect();
    assert_eq!(
        roles,
        [Role::User, Role::System, Role::Assistant, Role::User, Role::User]
    );
    assert_eq!(asked.messages[1].content, ["call <PHONE_NUMBER>"]);
    assert_eq!(asked.messages[0].content, ["call +12125550123"]);
    assert_eq!(response.outputs[0].result, "mail <EMAIL_ADDRESS>");
    assert_eq!(response.outputs[0].parameters["p"], any);
    assert_eq!(response.context_id, None);
}

#[tokio::test]
async fn reports_component_errors() {
    let (block, _asked) = block();
    let mut question = request(vec![user("x")]);
    question.temperature = Some(2.0);
    let result = block.alpha2(question).await;
    assert!(
        matches!(result, Err(ConversationError::Invoke { component, cause }) if component == "llm" && cause == "too hot")
    );
}

#[tokio::test]
async fn scrubs_large_text_off_thread() {
    let (block, _asked) = block();
    for (length, at_once) in [(INLINE / SCRUBBING / 2, true), (INLINE / SCRUBBING + 1, false)] {
        let text = "x".repeat(length);
        let first = proto::ConversationRequest {
            name: "llm".to_owned(),
            inputs: vec![proto::ConversationInput {
                content: text.clone(),
                scrub_pii: Some(true),
                ..proto::ConversationInput::default()
            }],
            ..proto::ConversationRequest::default()
        };
        let (was_at_once, answer) = done_at_once(block.alpha1(first)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to the first version");
        answer.unwrap();

        let mut input = user(&text);
        input.scrub_pii = Some(true);
        let (was_at_once, answer) = done_at_once(block.alpha2(request(vec![input]))).await;
        assert_eq!(was_at_once, at_once, "{length} bytes to the second version");
        answer.unwrap();

        let as_it_is = user(&"x".repeat(SCRUBBING * length));
        let (was_at_once, answer) = done_at_once(block.alpha2(request(vec![as_it_is]))).await;
        assert_eq!(was_at_once, at_once, "to the second version, as it is");
        answer.unwrap();

        let said = Response {
            choices: vec![Choice {
                content: text.clone(),
                ..Choice::default()
            }],
            ..Response::default()
        };
        let (was_at_once, scrubbed) = done_at_once(without_personal_data(true, said)).await;
        assert_eq!(was_at_once, at_once, "{length} bytes of an answer");
        assert_eq!(scrubbed.choices[0].content, text);
    }
}
