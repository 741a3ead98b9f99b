//! The management API: start, pause, resume, terminate, raise events.

use std::collections::HashMap;

use jiff::civil::date;
use jiff::fmt::temporal::Pieces;
use outrigger_telemetry::trace::Parent;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    EventRaisedEvent, ExecutionResumedEvent, ExecutionSuspendedEvent, ExecutionTerminatedEvent,
};
use outrigger_wire::runtime::v1::StartWorkflowRequest;
use tonic::Code;

use super::error::{Action, InstanceId, WorkflowError, check_new_id};
use crate::workflow::client::Start;
use crate::workflow::error::is_unknown;
use crate::workflow::service::Workflows;

const START_TIME: &str = "dapr.workflow.start_time";
/// The contract's range of times, in seconds since 1970: years 1 to 9999.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

impl Workflows {
    /// Starts an instance; returns its id.
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
        let app = self.other_app(request.app_id.as_deref())?.map(str::to_owned);
        let name = request.workflow_name;
        if name.is_empty() {
            return Err(WorkflowError::NoName);
        }
        let failed = |cause: String| WorkflowError::Failed(Action::Start, name.clone(), cause);
        let at = start_time(&request.options).map_err(failed)?;
        let input = String::from_utf8(request.input.to_vec());
        let input = input.map_err(|_| failed("the workflow input must be UTF-8".to_owned()))?;
        let start = Start {
            id: id.clone(),
            app,
            name: name.clone(),
            input: Some(input),
            at,
            parent,
            ..Start::default()
        };
        let started = self.start(start).await;
        started.map_err(|error| {
            let cause = format!("unable to start workflow: failed to start workflow: {error}");
            match error.status() {
                Some((Code::AlreadyExists, _)) => WorkflowError::Exists(name.clone(), cause),
                _ => failed(cause),
            }
        })?;
        Ok(id)
    }

    /// Terminates an instance and its children.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_terminate(&self, of: InstanceId<'_>) -> Result<(), WorkflowError> {
        let event = ExecutionTerminatedEvent {
            input: None,
            recurse: true,
        };
        let event = EventType::ExecutionTerminated(event);
        let prefix = format!(
            "failed to terminate workflow {}: failed to submit termination request:",
            of.id
        );
        self.send(Action::Terminate, of, event, &prefix).await
    }

    /// Pauses an instance.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_pause(&self, of: InstanceId<'_>) -> Result<(), WorkflowError> {
        let event = EventType::ExecutionSuspended(ExecutionSuspendedEvent { input: None });
        let prefix = format!("failed to pause workflow {}: failed to suspend workflow", of.id);
        self.send(Action::Pause, of, event, &prefix).await
    }

    /// Resumes an instance.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_resume(&self, of: InstanceId<'_>) -> Result<(), WorkflowError> {
        let event = EventType::ExecutionResumed(ExecutionResumedEvent { input: None });
        let prefix = format!("failed to resume workflow {}: failed to resume workflow", of.id);
        self.send(Action::Resume, of, event, &prefix).await
    }

    /// Raises an event.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_raise(
        &self,
        of: InstanceId<'_>,
        name: &str,
        data: Option<&[u8]>,
    ) -> Result<(), WorkflowError> {
        let id = of.id;
        self.ready(id)?;
        if name.is_empty() {
            return Err(WorkflowError::NoEventName);
        }
        let input = data.map(|data| String::from_utf8(data.to_vec())).transpose();
        let input = input.map_err(|_| {
            let cause = "the event data must be UTF-8".to_owned();
            WorkflowError::Failed(Action::RaiseEvent, id.to_owned(), cause)
        })?;
        let event = EventType::EventRaised(EventRaisedEvent {
            name: name.to_owned(),
            input,
        });
        let prefix = format!("failed to raise event {name} on workflow {id}: failed to raise event");
        self.send(Action::RaiseEvent, of, event, &prefix).await
    }

    async fn send(
        &self,
        action: Action,
        of: InstanceId<'_>,
        event: EventType,
        prefix: &str,
    ) -> Result<(), WorkflowError> {
        let id = of.id;
        self.ready(id)?;
        let app = self.other_app(of.app)?;
        match self.add(app, id, event).await {
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

/// Parses RFC 3339. The contract includes the last hours of year 9999, which [`jiff::Timestamp`] does not.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_start_times() {
        let of = |text: &str| start_time(&HashMap::from([(START_TIME.to_owned(), text.to_owned())]));
        let at = of("2009-11-10T23:00:00.5Z").unwrap().unwrap();
        assert_eq!((at.seconds, at.nanos), (1_257_894_000, 500_000_000));
        let seconds = |text: &str| of(text).unwrap().unwrap().seconds;
        assert_eq!(seconds("1969-12-31T23:59:58+00:30"), -1802);
        // The first and last second of the contract, in any zone.
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
}
