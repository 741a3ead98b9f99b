//! Names that all sidecars of a deployment must spell alike: actor types and ids, reminders, state keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::history_event::EventType;
use sha2::{Digest as _, Sha256};

use crate::event::nanos;

/// Prefix of all actor types of the runtime.
pub const RESERVED: &str = "dapr.internal.";
/// Reminder that runs an activity.
pub const RUN_ACTIVITY: &str = "run-activity";
/// Reminder that purges an instance after its retention time.
pub const RETENTION: &str = "retention";
/// State key of the entry counts.
pub const METADATA: &str = "metadata";
/// State key of the custom status.
pub const CUSTOM_STATUS: &str = "customStatus";
/// State key of the history that the instance has received.
pub const PROPAGATED_HISTORY: &str = "propagated-history";

/// Suffix of executor types.
const EXECUTOR: &str = "executor";
const START: &str = "start-";
const NEW_EVENT: &str = "new-event-";
const TIMER: &str = "timer-";
const ACTIVITY_RESULT: &str = "activity-result-";
/// Reminder that terminates a child of a terminated instance.
pub const CASCADE_TERMINATE: &str = "cascade-terminate";
/// A name unknown to Dapr: its sidecars reject the reminder, which fires again until one of ours gets it.
const RERUN: &str = "rerun-";
/// Infix of a reminder that replaces one that failed.
const LATER: &str = "-later-";

/// The actor types of an app's workflows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActorTypes {
    /// Owns the state of an instance; the actor id is the instance id.
    pub workflow: String,
    /// Runs one activity; see [`activity_id`].
    pub activity: String,
    /// Purges an instance later; the actor id is the instance id.
    pub retentioner: String,
    /// Connects a worker's answer with the sidecar that waits for it, in a clustered deployment. The actor id
    /// is the instance id, or [`execution_id`].
    pub executor: String,
}

impl ActorTypes {
    /// The actor types of an app's workflows.
    #[must_use]
    pub fn of(namespace: &str, app_id: &str) -> Self {
        let name = |part: &str| format!("{RESERVED}{namespace}.{app_id}.{part}");
        Self {
            workflow: name("workflow"),
            activity: name("activity"),
            retentioner: name("retentioner"),
            executor: name(EXECUTOR),
        }
    }
}

/// The actor id of an activity; `task` is the event id of its `TaskScheduled`.
#[must_use]
pub fn activity_id(instance: &str, task: i32, generation: u64) -> String {
    format!("{instance}::{task}::{generation}")
}

/// The executor id of an activity; `task` is the event id of its `TaskScheduled`.
#[must_use]
pub fn execution_id(instance: &str, task: i32) -> String {
    format!("{instance}/{task}")
}

/// Whether an actor type is an executor.
#[must_use]
pub fn is_executor(kind: &str) -> bool {
    let name = kind
        .strip_prefix(RESERVED)
        .and_then(|name| name.strip_suffix(EXECUTOR));
    name.is_some_and(|name| name.ends_with('.'))
}

/// The instance of an activity actor; `None` for ids that [`activity_id`] does not make. Parsed from the end,
/// because instance ids may contain `::`.
#[must_use]
pub fn instance_of(activity: &str) -> Option<&str> {
    let (rest, generation) = activity.rsplit_once("::")?;
    let (instance, task) = rest.rsplit_once("::")?;
    generation.parse::<u64>().ok()?;
    task.parse::<i32>().ok()?;
    Some(instance)
}

/// The default instance id of a child; `action` is the id of the action that creates it.
#[must_use]
pub fn child_id(parent: &str, action: i32) -> String {
    format!("{parent}:{action:04x}")
}

/// The purpose of a reminder of a workflow actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Run the instance: its inbox has events.
    Run,
    /// A timer fired; the data are a `DurableTimer`.
    Timer,
    /// An activity result, the failure of a child that could not be created, or the termination of the parent;
    /// the data are a `HistoryEvent`.
    Event,
    /// Start a rerun; the data are the `BackendWorkflowStateMetadata` as it was created.
    Rerun,
}

/// Parses the name of a reminder; `None` if unknown.
#[must_use]
pub fn purpose(reminder: &str) -> Option<Purpose> {
    if reminder.starts_with(TIMER) {
        Some(Purpose::Timer)
    } else if reminder.starts_with("start") || reminder.starts_with("new-event") {
        Some(Purpose::Run)
    } else if reminder.starts_with(ACTIVITY_RESULT) || reminder.starts_with(CASCADE_TERMINATE) {
        Some(Purpose::Event)
    } else if reminder.starts_with(RERUN) {
        Some(Purpose::Rerun)
    } else {
        None
    }
}

/// The reminder of a first run. `random` distinguishes starts of one id.
#[must_use]
pub fn start_reminder(random: [u8; 6]) -> String {
    format!("{START}{}", URL_SAFE_NO_PAD.encode(random))
}

/// The reminder that carries an event to a workflow actor.
#[must_use]
pub fn result_reminder(random: [u8; 6]) -> String {
    format!("{ACTIVITY_RESULT}{}", URL_SAFE_NO_PAD.encode(random))
}

/// The reminder that starts a rerun.
#[must_use]
pub fn rerun_reminder(random: [u8; 6]) -> String {
    format!("{RERUN}{}", URL_SAFE_NO_PAD.encode(random))
}

/// The reminder of a timer; `id` is the event id of its `TimerCreated`.
#[must_use]
pub fn timer_reminder(id: i32) -> String {
    format!("{TIMER}{id}")
}

/// The reminder that replaces one that failed; `random` distinguishes reminders of one purpose.
#[must_use]
pub fn later_reminder(purpose: Purpose, random: [u8; 6]) -> String {
    match purpose {
        Purpose::Run => start_reminder(random),
        Purpose::Timer => format!("{TIMER}later-{}", URL_SAFE_NO_PAD.encode(random)),
        Purpose::Event => result_reminder(random),
        Purpose::Rerun => rerun_reminder(random),
    }
}

/// The replacement of a reminder with an unknown name, which keeps its prefix for sidecars that know it.
#[must_use]
pub fn later_unknown(reminder: &str, random: [u8; 6]) -> String {
    let before = reminder.rsplit_once(LATER).filter(|(_, tail)| tail.len() == 8);
    let name = before.map_or(reminder, |(name, _)| name);
    format!("{name}{LATER}{}", URL_SAFE_NO_PAD.encode(random))
}

/// The reminder of the run after an event. Duplicates get the same name, so a second delivery adds no run.
#[must_use]
pub fn event_reminder(event: &HistoryEvent) -> String {
    let at = || nanos(event.timestamp.as_ref());
    let suffix = match &event.event_type {
        Some(EventType::TaskCompleted(e)) => format!("tc-{}", e.task_scheduled_id),
        Some(EventType::TaskFailed(e)) => format!("tf-{}", e.task_scheduled_id),
        Some(EventType::ChildWorkflowInstanceCompleted(e)) => format!("cwc-{}", e.task_scheduled_id),
        Some(EventType::ChildWorkflowInstanceFailed(e)) => format!("cwf-{}", e.task_scheduled_id),
        Some(EventType::EventRaised(e)) if !e.name.is_empty() => {
            let digest = Sha256::digest(e.name.as_bytes());
            let hex = digest[..12].iter().map(|byte| format!("{byte:02x}"));
            format!("er-{}", hex.collect::<String>())
        }
        Some(EventType::EventRaised(_)) => format!("er-{}", at()),
        Some(EventType::TimerFired(e)) => format!("tmf-{}", e.timer_id),
        Some(EventType::ExecutionStarted(_)) => format!("es-{}", at()),
        Some(EventType::ExecutionTerminated(_)) => format!("et-{}", at()),
        Some(EventType::ExecutionSuspended(_)) => format!("esp-{}", at()),
        Some(EventType::ExecutionResumed(_)) => format!("erm-{}", at()),
        _ => format!("x-{}", at()),
    };
    format!("{NEW_EVENT}{suffix}")
}

/// State key of a history entry.
#[must_use]
pub fn history_key(index: usize) -> String {
    format!("history-{index:06}")
}

/// State key of a signature of the history.
#[must_use]
pub fn signature_key(index: usize) -> String {
    format!("signature-{index:06}")
}

/// State key of the certificates of a signer of the history.
#[must_use]
pub fn signing_certificate_key(index: usize) -> String {
    format!("sigcert-{index:06}")
}

/// State key of the certificates of the signer of a result.
#[must_use]
pub fn external_certificate_key(index: usize) -> String {
    format!("ext-sigcert-{index:06}")
}

/// State key of an inbox entry.
#[must_use]
pub fn inbox_key(index: usize) -> String {
    format!("inbox-{index:06}")
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::{EventRaisedEvent, ExecutionTerminatedEvent, TaskCompletedEvent};
    use prost_types::Timestamp;

    use super::*;
    use crate::event::event;

    const AT: Timestamp = Timestamp { seconds: 2, nanos: 5 };

    #[test]
    fn uses_contract_names() {
        let types = ActorTypes::of("default", "shop");
        assert_eq!(types.workflow, "dapr.internal.default.shop.workflow");
        assert_eq!(types.activity, "dapr.internal.default.shop.activity");
        assert_eq!(types.retentioner, "dapr.internal.default.shop.retentioner");
        assert_eq!(types.executor, "dapr.internal.default.shop.executor");
        assert!(is_executor(&types.executor) && !is_executor(&types.workflow));
        assert!(!is_executor("dapr.internal.executor") && !is_executor("shop.executor"));
        assert_eq!(execution_id("a", 3), "a/3");
        assert_eq!(activity_id("a", 3, 1), "a::3::1");
        for instance in ["a", "a::b", "a::3::1", "a:", "::"] {
            let activity = activity_id(instance, -3, 1);
            assert_eq!(instance_of(&activity), Some(instance), "{activity}");
        }
        for other in ["a", "a::3", "a::b::1", "a::3::x"] {
            assert_eq!(instance_of(other), None, "{other}");
        }
        assert_eq!(child_id("a", 10), "a:000a");
        assert_eq!(child_id("a", 0x1_0000), "a:10000");
        assert_eq!(history_key(7), "history-000007");
        assert_eq!(inbox_key(1_234_567), "inbox-1234567");
    }

    #[test]
    fn parses_reminder_purposes() {
        let start = start_reminder([0, 1, 2, 253, 254, 255]);
        assert_eq!(start, "start-AAEC_f7_");
        assert_eq!(purpose(&start), Some(Purpose::Run));
        assert_eq!(purpose(&timer_reminder(3)), Some(Purpose::Timer));
        assert_eq!(purpose(&result_reminder([0; 6])), Some(Purpose::Event));
        assert_eq!(purpose(CASCADE_TERMINATE), Some(Purpose::Event));
        assert_eq!(purpose(&rerun_reminder([0; 6])), Some(Purpose::Rerun));
        assert_eq!(purpose("other"), None);
        for of in [Purpose::Run, Purpose::Timer, Purpose::Event, Purpose::Rerun] {
            let names = [[1; 6], [2; 6]].map(|random| later_reminder(of, random));
            assert_eq!(
                names.each_ref().map(|name| purpose(name)),
                [Some(of); 2],
                "{names:?}"
            );
            assert_ne!(names[0], names[1]);
        }
        // Repeated replacement does not lengthen the name.
        let once = later_unknown("of-tomorrow-1", [1; 6]);
        let twice = later_unknown(&once, [2; 6]);
        assert!(once.starts_with("of-tomorrow-1") && twice.starts_with("of-tomorrow-1"));
        assert!(once != twice && once.len() == twice.len() && purpose(&twice).is_none());
        let other = later_unknown("of-later-than-tomorrow", [1; 6]);
        assert!(other.starts_with("of-later-than-tomorrow-later-"));
    }

    #[test]
    fn duplicate_events_share_a_reminder() {
        let completed = EventType::TaskCompleted(TaskCompletedEvent {
            task_scheduled_id: 4,
            ..TaskCompletedEvent::default()
        });
        assert_eq!(event_reminder(&event(-1, AT, completed)), "new-event-tc-4");
        let raised = |name: &str| {
            let raised = EventType::EventRaised(EventRaisedEvent {
                name: name.to_owned(),
                input: None,
            });
            event_reminder(&event(-1, AT, raised))
        };
        // The first twelve bytes of SHA-256 of "abc".
        assert_eq!(raised("abc"), "new-event-er-ba7816bf8f01cfea414140de");
        assert_eq!(raised(""), "new-event-er-2000000005");
        let terminated = EventType::ExecutionTerminated(ExecutionTerminatedEvent::default());
        assert_eq!(
            event_reminder(&event(-1, AT, terminated)),
            "new-event-et-2000000005"
        );
    }
}
