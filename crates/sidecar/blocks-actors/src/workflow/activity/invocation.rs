//! The call of an activity and the data of its reminder: a `TaskScheduled` event in an `ActivityInvocation`, or
//! alone. Sidecars before the contract's v1.18 know only the event, so a call without propagated history has
//! no envelope.

use bytes::Bytes;
use outrigger_wire::durabletask::backend::v1::ActivityInvocation;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_workflow::Origin;
use outrigger_workflow::event::NO_ID;
use prost::Message as _;
use prost_types::Any;
use tonic::Status;

use crate::workflow::engine::Engine;
use crate::workflow::protocol::{any_encoded, decode};

/// An `ActivityInvocation` whose event is still encoded.
#[derive(Clone, PartialEq, prost::Message)]
struct Envelope {
    #[prost(bytes = "bytes", optional, tag = "1")]
    event: Option<Bytes>,
}

/// The encoded event of an `ActivityInvocation`; `None` if the event is alone. Field 1 of an event is a number,
/// or absent.
fn enclosed(call: &[u8]) -> Option<Bytes> {
    Envelope::decode(call).ok()?.event
}

/// Decodes both forms, and verifies the history that came with the call.
pub(super) fn admit(engine: &Engine, call: &[u8]) -> Result<ActivityInvocation, Status> {
    let invocation = read(call)?;
    if let Some(history) = &invocation.propagated_history {
        let event = invocation.history_event.as_ref();
        let name = event.map_or("", |event| match &event.event_type {
            Some(EventType::TaskScheduled(task)) => &task.name,
            _ => "",
        });
        let activity = format!(
            "activity '{name}::{}'",
            event.map_or(NO_ID, |event| event.event_id)
        );
        engine.admit(&activity, history).map_err(|error| {
            Status::invalid_argument(format!(
                "{activity} rejecting invocation: propagated history verification failed: {error}"
            ))
        })?;
    }
    Ok(invocation)
}

pub(super) fn read(call: &[u8]) -> Result<ActivityInvocation, Status> {
    const WHAT: &str = "the activity";
    if enclosed(call).is_some() {
        return decode(WHAT, call);
    }
    Ok(ActivityInvocation {
        history_event: Some(decode(WHAT, call)?),
        propagated_history: None,
    })
}

/// The name of the activity, by which limits of the scheduler count it.
pub(super) fn name(invocation: &ActivityInvocation) -> Option<&str> {
    match &invocation.history_event.as_ref()?.event_type {
        Some(EventType::TaskScheduled(task)) => Some(&task.name),
        _ => None,
    }
}

/// The reminder data of a call. Fields appended to an event are appended to its envelope too.
pub(super) fn reminder_data(call: Vec<u8>) -> Any {
    let invocation = match enclosed(&call) {
        Some(_) => call,
        None => {
            let origin = Origin::read(&call);
            let event = Some(call.into());
            let mut invocation = Envelope { event }.encode_to_vec();
            origin.append_to(&mut invocation);
            invocation
        }
    };
    any_encoded("durabletask.protos.backend.v1.ActivityInvocation", invocation)
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{HistoryEvent, PropagatedHistory, TaskScheduledEvent};
    use prost_types::Timestamp;

    use super::*;

    #[test]
    fn reads_both_forms() {
        for (event_id, nanos) in [(0, 0), (0, 7), (3, 0)] {
            let scheduled = HistoryEvent {
                event_id,
                timestamp: Some(Timestamp { seconds: 5, nanos }),
                event_type: Some(EventType::TaskScheduled(TaskScheduledEvent {
                    name: "pay".to_owned(),
                    ..TaskScheduledEvent::default()
                })),
                ..HistoryEvent::default()
            };
            let origin = Origin::of("one");
            let mut alone = scheduled.encode_to_vec();
            origin.append_to(&mut alone);
            let invocation = ActivityInvocation {
                history_event: Some(scheduled.clone()),
                propagated_history: Some(PropagatedHistory::default()),
            };
            let mut enclosed = invocation.encode_to_vec();
            origin.append_to(&mut enclosed);
            let without = ActivityInvocation {
                propagated_history: None,
                ..invocation.clone()
            };
            for (call, expected) in [(&alone, &without), (&enclosed, &invocation)] {
                assert_eq!(read(call).as_ref().ok(), Some(expected));
                assert_eq!(name(expected), Some("pay"));
                let data = reminder_data(call.clone());
                assert!(
                    data.type_url
                        .ends_with("/durabletask.protos.backend.v1.ActivityInvocation")
                );
                assert_eq!(read(&data.value).as_ref().ok(), Some(expected));
                assert_eq!(Origin::read(&data.value), origin);
            }
            assert_eq!(reminder_data(enclosed.clone()).value, enclosed);
            let wrapped = ActivityInvocation::decode(&*reminder_data(alone).value).unwrap();
            assert_eq!(wrapped.history_event, Some(scheduled));
        }
        assert!(read(b"\xff").is_err());
    }
}
