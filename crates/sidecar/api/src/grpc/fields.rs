//! Limits on nested fields: repeated messages inside one message, and JSON.

use outrigger_transport::grpc::fields::{FLAT, Nested, STRUCT};

use super::DAPR;
use super::taskhub::{COMPLETE_TURN, COMPLETE_TURN_OLD};

static CONVERSE: Nested = Nested::of(&[(3, &INPUT), (8, &TOOL), (10, &STRUCT)]);
static INPUT: Nested = Nested::of(&[(1, &MESSAGE)]);
static MESSAGE: Nested = Nested::of(&[(1, &FLAT), (2, &FLAT), (3, &FLAT), (4, &FLAT), (5, &FLAT)]);
static TOOL: Nested = Nested::of(&[(1, &FUNCTION)]);
static FUNCTION: Nested = Nested::of(&[(3, &STRUCT)]);

/// Workflow actions count as one field each, whatever they contain, as do events carried over by
/// continue-as-new.
static TURN: Nested = Nested::of(&[(2, &ACTION)]);
static ACTION: Nested = Nested::around(&[(6, &FLAT)]);

/// The nested messages that count in a request to this path.
pub(super) fn nested(path: &str) -> &'static Nested {
    if path.strip_prefix(DAPR) == Some("ConverseAlpha2") {
        return &CONVERSE;
    }
    if [COMPLETE_TURN, COMPLETE_TURN_OLD].contains(&path) {
        return &TURN;
    }
    &FLAT
}

#[cfg(test)]
mod tests {
    use outrigger_transport::grpc::fields::{MAX_FIELDS, check};
    use outrigger_wire::durabletask as task;
    use outrigger_wire::runtime::v1 as proto;
    use prost::Message;
    use prost_types::value::Kind;
    use prost_types::{ListValue, Struct, Value};

    use super::*;

    fn is_refused(method: &str, message: &impl Message) -> bool {
        check(&message.encode_to_vec(), nested(method)).is_err()
    }

    #[test]
    fn counts_conversation_fields() {
        const METHOD: &str = "/dapr.proto.runtime.v1.Dapr/ConverseAlpha2";
        let input = |messages| proto::ConversationRequestAlpha2 {
            inputs: vec![proto::ConversationInputAlpha2 {
                messages,
                scrub_pii: None,
            }],
            ..proto::ConversationRequestAlpha2::default()
        };
        let most = MAX_FIELDS - 1;
        let messages = |count| vec![proto::ConversationMessage::default(); count];
        assert!(!is_refused(METHOD, &input(messages(most))));
        assert!(is_refused(METHOD, &input(messages(most + 1))));
        let said = |count| proto::ConversationMessage {
            message_types: Some(proto::conversation_message::MessageTypes::OfUser(
                proto::ConversationMessageOfUser {
                    name: None,
                    content: vec![proto::ConversationMessageContent::default(); count],
                },
            )),
        };
        assert!(is_refused(METHOD, &input(vec![said(MAX_FIELDS)])));
        let values = vec![Value::default(); MAX_FIELDS];
        let list = Value {
            kind: Some(Kind::ListValue(ListValue { values })),
        };
        let schema = Struct {
            fields: [("a".to_owned(), list)].into(),
        };
        let mut tools = proto::ConversationRequestAlpha2 {
            tools: vec![proto::ConversationTools {
                tool_types: Some(proto::conversation_tools::ToolTypes::Function(
                    proto::ConversationToolsFunction {
                        parameters: Some(schema.clone()),
                        ..proto::ConversationToolsFunction::default()
                    },
                )),
            }],
            ..proto::ConversationRequestAlpha2::default()
        };
        assert!(is_refused(METHOD, &tools));
        tools.tools.clear();
        assert!(!is_refused(METHOD, &tools));
        tools.response_format = Some(schema);
        assert!(is_refused(METHOD, &tools));
    }

    #[test]
    fn counts_carried_over_events() {
        const METHOD: &str = COMPLETE_TURN;
        let along = |count| task::WorkflowResponse {
            actions: vec![task::WorkflowAction {
                workflow_action_type: Some(task::workflow_action::WorkflowActionType::CompleteWorkflow(
                    task::CompleteWorkflowAction {
                        carryover_events: vec![task::HistoryEvent::default(); count],
                        ..task::CompleteWorkflowAction::default()
                    },
                )),
                ..task::WorkflowAction::default()
            }],
            ..task::WorkflowResponse::default()
        };
        assert!(!is_refused(METHOD, &along(MAX_FIELDS - 2)));
        for method in [METHOD, COMPLETE_TURN_OLD] {
            assert!(is_refused(method, &along(MAX_FIELDS)));
        }
        // As many actions as a turn may have, with all their fields.
        let action = task::WorkflowAction {
            id: 7,
            router: Some(task::TaskRouter::default()),
            workflow_action_type: Some(task::workflow_action::WorkflowActionType::ScheduleTask(
                task::ScheduleTaskAction {
                    name: "charge".to_owned(),
                    ..task::ScheduleTaskAction::default()
                },
            )),
        };
        let turn = task::WorkflowResponse {
            actions: vec![action; 100_000],
            ..task::WorkflowResponse::default()
        };
        assert!(!is_refused(METHOD, &turn));
    }
}
