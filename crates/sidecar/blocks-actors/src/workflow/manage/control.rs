//! What the management API offers, in the words of the contract.

use std::collections::HashMap;

use jiff::civil::date;
use jiff::fmt::temporal::Pieces;
use outrigger_wire::durabletask::backend::v1::OrchestrationMetadata;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    EventRaisedEvent, ExecutionResumedEvent, ExecutionSuspendedEvent, ExecutionTerminatedEvent, HistoryEvent,
    OrchestrationStatus, RerunWorkflowFromEventRequest,
};
use outrigger_wire::runtime::v1::{GetWorkflowResponse, StartWorkflowRequest};

use crate::actors::ActorError;
use crate::workflow::{Start, Waits, Workflows, is_unknown};
use outrigger_telemetry::trace::Parent;

/// Longest instance id that the management API takes, bytes.
const MAX_ID: usize = 64;
const START_TIME: &str = "dapr.workflow.start_time";
/// Seconds since 1970 of the first and of the last time that the contract has: in the years 1 and 9999.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// An operation of the management API, for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance.
    Start,
    /// Start one from an event of another.
    Rerun,
    /// Say how it is.
    Get,
    /// Say which there are.
    List,
    /// Pause it.
    Pause,
    /// Let it go on.
    Resume,
    /// End it.
    Terminate,
    /// Remove what is stored of it.
    Purge,
    /// Send it an event.
    RaiseEvent,
}

/// Why the management API did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkflowError {
    /// There can be no workflows.
    #[error(transparent)]
    Unavailable(ActorError),
    /// No workflow was named.
    #[error("workflow name is not configured")]
    NoName,
    /// No event was named.
    #[error("missing workflow event name")]
    NoEventName,
    /// No instance was named.
    #[error("no instance ID was provided")]
    NoId,
    /// An instance cannot have this id.
    #[error("workflow instance ID '{0}' is invalid: only alphanumeric and underscore characters are allowed")]
    InvalidId(String),
    /// Its id is too long.
    #[error("workflow instance ID exceeds the max length of {MAX_ID} characters")]
    LongId,
    /// There is no such instance.
    #[error("unable to find workflow with the provided instance ID: {0}")]
    NotFound(String),
    /// Anything else: what was to be done, to which instance (or workflow), and why it was not.
    #[error("{}", text(*.0, .1, .2))]
    Failed(Action, String, String),
}

fn text(action: Action, what: &str, cause: &str) -> String {
    match action {
        Action::Start => format!("error starting workflow '{what}': {cause}"),
        Action::Rerun => format!("error running workflow '{what}' again: {cause}"),
        Action::Get => format!("error while getting workflow info on instance '{what}': {cause}"),
        Action::List => format!("error while listing workflows: {cause}"),
        Action::Pause => format!("error pausing workflow {what}: {cause}"),
        Action::Resume => format!("error resuming workflow {what}: {cause}"),
        Action::Terminate => format!("error terminating workflow '{what}': {cause}"),
        Action::Purge => format!("error purging workflow {what}: {cause}"),
        Action::RaiseEvent => format!("error raising event on workflow '{what}': {cause}"),
    }
}

impl Workflows {
    fn ready(&self, id: &str) -> Result<(), WorkflowError> {
        self.check().map_err(WorkflowError::Unavailable)?;
        match id {
            "" => Err(WorkflowError::NoId),
            _ => Ok(()),
        }
    }

    /// Starts an instance; its id.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_start(
        &self,
        request: StartWorkflowRequest,
        parent: Parent,
    ) -> Result<String, WorkflowError> {
        let id = match request.instance_id.is_empty() {
            true => uuid::Uuid::new_v4().to_string(),
            false => request.instance_id,
        };
        self.ready(&id)?;
        check_new_id(&id)?;
        let name = request.workflow_name;
        if name.is_empty() {
            return Err(WorkflowError::NoName);
        }
        let failed = |cause: String| WorkflowError::Failed(Action::Start, name.clone(), cause);
        let at = start_time(&request.options).map_err(failed)?;
        let input = String::from_utf8(request.input.to_vec());
        let input = input.map_err(|_| failed("the input of a workflow has to be UTF-8".to_owned()))?;
        let start = Start {
            id: id.clone(),
            name: name.clone(),
            input: Some(input),
            at,
            parent,
            ..Start::default()
        };
        let started = self.start(start).await;
        started.map_err(|error| {
            failed(format!(
                "unable to start workflow: failed to start orchestration: {error}"
            ))
        })?;
        Ok(id)
    }

    /// How an instance is; `None` where there is none.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_get(&self, id: &str) -> Result<Option<GetWorkflowResponse>, WorkflowError> {
        self.ready(id)?;
        let found = self.get(id).await.map_err(|error| {
            let cause = format!("failed to get workflow metadata for '{id}': {error}");
            WorkflowError::Failed(Action::Get, id.to_owned(), cause)
        })?;
        Ok(found.map(described))
    }

    /// Why an instance does not go on; `None` where there is none.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_waits(&self, id: &str) -> Result<Option<Waits>, WorkflowError> {
        self.ready(id)?;
        let failed = |error: ActorError| WorkflowError::Failed(Action::Get, id.to_owned(), error.to_string());
        self.waits(id).await.map_err(failed)
    }

    /// The history of an instance; `None` where there is none.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_history(&self, id: &str) -> Result<Option<Vec<HistoryEvent>>, WorkflowError> {
        self.ready(id)?;
        let failed = |error: ActorError| WorkflowError::Failed(Action::Get, id.to_owned(), error.to_string());
        self.history(id).await.map_err(failed)
    }

    /// Ends an instance and all that it has created.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_terminate(&self, id: &str) -> Result<(), WorkflowError> {
        let event = ExecutionTerminatedEvent {
            input: None,
            recurse: true,
        };
        let event = EventType::ExecutionTerminated(event);
        let prefix = format!("failed to terminate workflow {id}: failed to submit termination request:");
        self.send(Action::Terminate, id, event, &prefix).await
    }

    /// Pauses an instance.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_pause(&self, id: &str) -> Result<(), WorkflowError> {
        let event = EventType::ExecutionSuspended(ExecutionSuspendedEvent { input: None });
        let prefix = format!("failed to pause workflow {id}: failed to suspend orchestration");
        self.send(Action::Pause, id, event, &prefix).await
    }

    /// Lets an instance go on.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_resume(&self, id: &str) -> Result<(), WorkflowError> {
        let event = EventType::ExecutionResumed(ExecutionResumedEvent { input: None });
        let prefix = format!("failed to resume workflow {id}: failed to resume orchestration");
        self.send(Action::Resume, id, event, &prefix).await
    }

    /// Sends an event to an instance.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_raise(&self, id: &str, name: &str, data: Option<&[u8]>) -> Result<(), WorkflowError> {
        self.ready(id)?;
        if name.is_empty() {
            return Err(WorkflowError::NoEventName);
        }
        let input = data.map(|data| String::from_utf8(data.to_vec())).transpose();
        let input = input.map_err(|_| {
            let cause = "the data of an event have to be UTF-8".to_owned();
            WorkflowError::Failed(Action::RaiseEvent, id.to_owned(), cause)
        })?;
        let event = EventType::EventRaised(EventRaisedEvent {
            name: name.to_owned(),
            input,
        });
        let prefix = format!("failed to raise event {name} on workflow {id}: failed to raise event");
        self.send(Action::RaiseEvent, id, event, &prefix).await
    }

    /// Starts an instance that goes on from an event of another, which has ended; its id, `new` where that is given.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_rerun(
        &self,
        id: String,
        event: u32,
        new: Option<String>,
    ) -> Result<String, WorkflowError> {
        self.ready(&id)?;
        new.as_deref().map_or(Ok(()), check_new_id)?;
        let request = RerunWorkflowFromEventRequest {
            source_instance_id: id.clone(),
            event_id: event,
            new_instance_id: new,
            ..RerunWorkflowFromEventRequest::default()
        };
        let rerun = self.rerun(request).await;
        rerun.map_err(|error| WorkflowError::Failed(Action::Rerun, id, error.to_string()))
    }

    /// Removes an instance that has ended, and all that it has created; by `force` it alone, whether it has ended or not.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_purge(&self, id: &str, force: bool) -> Result<(), WorkflowError> {
        self.ready(id)?;
        match self.purge(id, !force, force).await.error {
            None => Ok(()),
            Some(error) if is_unknown(&error) => Err(WorkflowError::NotFound(id.to_owned())),
            Some(error) => {
                let cause =
                    format!("failed to Purge workflow {id}: failed to purge orchestration state: {error}");
                Err(WorkflowError::Failed(Action::Purge, id.to_owned(), cause))
            }
        }
    }

    async fn send(
        &self,
        action: Action,
        id: &str,
        event: EventType,
        prefix: &str,
    ) -> Result<(), WorkflowError> {
        self.ready(id)?;
        match self.add(id, event).await {
            Ok(()) => Ok(()),
            Err(error) if action == Action::Terminate && is_unknown(&error) => {
                Err(WorkflowError::NotFound(id.to_owned()))
            }
            Err(error) => {
                let cause = format!("{prefix}: {error}");
                Err(WorkflowError::Failed(action, id.to_owned(), cause))
            }
        }
    }
}

/// Ids become keys of stores and names of reminders.
fn check_new_id(id: &str) -> Result<(), WorkflowError> {
    if id.len() > MAX_ID {
        return Err(WorkflowError::LongId);
    }
    let fits = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    match id.chars().all(fits) {
        true => Ok(()),
        false => Err(WorkflowError::InvalidId(id.to_owned())),
    }
}

fn start_time(options: &HashMap<String, String>) -> Result<Option<prost_types::Timestamp>, String> {
    let Some(text) = options.get(START_TIME) else {
        return Ok(None);
    };
    let at = instant(text).ok_or_else(|| {
        format!(
            r#"unable to start workflow: {START_TIME} '{text}': start times must be in RFC3339 format (e.g. "2009-11-10T23:00:00Z")"#
        )
    })?;
    Ok(Some(at))
}

/// Of a text in RFC 3339. The last hours of the year 9999 are times of the contract, though none of [`jiff::Timestamp`].
fn instant(text: &str) -> Option<prost_types::Timestamp> {
    let pieces = Pieces::parse(text).ok()?;
    let offset = pieces.to_numeric_offset()?;
    let at = pieces.date().to_datetime(pieces.time()?);
    let since = at.duration_since(date(1970, 1, 1).at(0, 0, 0, 0));
    let mut at = prost_types::Timestamp {
        seconds: since.as_secs() - i64::from(offset.seconds()),
        nanos: since.subsec_nanos(),
    };
    at.normalize();
    (FIRST..=LAST).contains(&at.seconds).then_some(at)
}

/// An instance as the management API describes it.
fn described(metadata: OrchestrationMetadata) -> GetWorkflowResponse {
    let runtime_status = match metadata.runtime_status() {
        // The management API has no word for it.
        OrchestrationStatus::Stalled => "UNKNOWN",
        status => status.as_str_name().trim_start_matches("ORCHESTRATION_STATUS_"),
    };
    let mut properties = HashMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            properties.insert(format!("dapr.workflow.{name}"), value);
        }
    };
    put("custom_status", metadata.custom_status.clone());
    put("input", metadata.input.clone());
    put("output", metadata.output.clone());
    if let Some(failure) = metadata.failure_details.clone() {
        put("failure.error_type", Some(failure.error_type));
        put("failure.error_message", Some(failure.error_message));
        put("failure.stack_trace", failure.stack_trace);
    }
    GetWorkflowResponse {
        runtime_status: runtime_status.to_owned(),
        instance_id: metadata.instance_id,
        workflow_name: metadata.name,
        created_at: metadata.created_at,
        last_updated_at: metadata.last_updated_at,
        properties,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_new_instances_have_rules() {
        for id in ["a", "A_b-9", "ünï", &"x".repeat(64)] {
            assert!(check_new_id(id).is_ok(), "{id}");
        }
        assert!(matches!(
            check_new_id(&"x".repeat(65)),
            Err(WorkflowError::LongId)
        ));
        for id in ["a b", "a:b", "a/b", "a|b", "a.b"] {
            let error = check_new_id(id).unwrap_err();
            assert!(matches!(error, WorkflowError::InvalidId(_)), "{id}");
        }
    }

    #[test]
    fn start_times_are_moments() {
        let of = |text: &str| start_time(&HashMap::from([(START_TIME.to_owned(), text.to_owned())]));
        let at = of("2009-11-10T23:00:00.5Z").unwrap().unwrap();
        assert_eq!((at.seconds, at.nanos), (1_257_894_000, 500_000_000));
        let seconds = |text: &str| of(text).unwrap().unwrap().seconds;
        assert_eq!(seconds("1969-12-31T23:59:58+00:30"), -1802);
        // The first and the last second of what the contract has, in any zone.
        assert_eq!(seconds("9999-12-31T23:59:59Z"), LAST);
        assert_eq!(seconds("9999-12-31T18:59:59-05:00"), LAST);
        assert_eq!(seconds("0001-01-01T00:00:00Z"), FIRST);
        for beyond in [
            "9999-12-31T23:59:59-05:00",
            "0001-01-01T00:00:00+01:00",
            "tomorrow",
            "2009-11-10",
            "",
        ] {
            let refused = of(beyond).unwrap_err();
            assert!(
                refused.contains("RFC3339") && refused.contains(START_TIME),
                "{refused}"
            );
        }
        assert_eq!(start_time(&HashMap::new()), Ok(None));
    }

    #[test]
    fn what_cannot_be_said_is_unknown() {
        let status = |status: OrchestrationStatus| {
            let metadata = OrchestrationMetadata {
                runtime_status: status.into(),
                ..OrchestrationMetadata::default()
            };
            described(metadata).runtime_status
        };
        assert_eq!(status(OrchestrationStatus::Running), "RUNNING");
        assert_eq!(status(OrchestrationStatus::ContinuedAsNew), "CONTINUED_AS_NEW");
        assert_eq!(status(OrchestrationStatus::Stalled), "UNKNOWN");
    }
}
