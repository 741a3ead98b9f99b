//! A stored workflow instance: its history, its inbox, and the state that clients see.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionStartedEvent, HistoryEvent, OrchestrationStatus};
use prost::Message as _;
use prost_types::Timestamp;

use crate::error::{AddError, PurgeError};
use crate::event::{Awaited, end_key, ends, execution_of_result, is_sent_again, is_timer, raised_at};
use crate::facts::Facts;
use crate::history::History;
use crate::names::{activity_id, event_reminder};
use crate::origin::{Arrival, Origin};
use crate::payload::Limit;
use crate::signing::attestation::{kind, strip};
use crate::signing::{AttestationError, Attested, Kind, Tables};
use crate::stored::{Change, Counts, MAX_ENTRIES};

/// Generation of a new instance.
pub(crate) const FIRST_GENERATION: u64 = 1;

/// A stored workflow instance, between two steps.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// Instance id, unique within its app.
    pub id: String,
    /// Number of the execution: 1, increased when it continues as new or is created again.
    pub generation: u64,
    /// The custom status of the workflow.
    pub custom_status: Option<String>,
    pub(crate) facts: Facts,
    pub(crate) history: History,
    pub(crate) inbox: Vec<HistoryEvent>,
    /// The encoded history that it has received from its parent.
    pub(crate) received: Option<Bytes>,
    /// The received history differs from the stored one.
    pub(crate) received_anew: bool,
    /// The rows of a signed instance.
    pub(crate) signing: Tables,
    /// The stored entries, if any.
    pub(crate) stored: Option<Counts>,
    /// Keys of [`Counts::keys`] absent from the store when the instance was read: they need no deletion.
    pub(crate) absent: BTreeSet<String>,
}

/// The outcome of adding an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The event is new and must be stored.
    New,
    /// The event is a duplicate: ensure its run, store nothing.
    Repeated,
    /// The event belongs to a finished execution: ignore it.
    Foreign,
}

/// The outcome of adding events together.
#[derive(Debug)]
pub struct Additions {
    /// The outcome of each event.
    pub added: Vec<Result<Added, AddError>>,
    /// The run that handles the events: ensure it once the change is stored. `None` if no run is needed.
    pub run: Option<Run>,
    /// The change to store.
    pub change: Change,
    /// Why a result was not accepted by its verification, which ended the addition. The instance must be
    /// read again.
    pub rejected: Option<String>,
}

/// Verifies the result of a task of the instance, and whether it waited in a reminder.
pub type VerifyResult<'a> =
    &'a mut dyn FnMut(&Instance, &HistoryEvent, bool) -> Result<Attested, AttestationError>;

/// A run to ensure.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The name of its reminder.
    pub reminder: String,
    /// Due time of the run.
    pub due: Option<Timestamp>,
}

/// Index of an inbox, built once per batch of events.
#[derive(Default)]
struct Waiting {
    keys: HashSet<(Awaited, i32, String)>,
    /// Entries with results.
    ends: HashMap<(Awaited, i32), usize>,
    times: HashSet<(i64, i32)>,
    /// Replaced entries.
    replaced: BTreeSet<usize>,
}

impl Waiting {
    fn of(inbox: &[HistoryEvent]) -> Self {
        let mut waiting = Self::default();
        for (index, event) in inbox.iter().enumerate() {
            waiting.note(index, event);
        }
        waiting
    }

    fn note(&mut self, index: usize, event: &HistoryEvent) {
        self.keys.extend(end_key(event));
        self.ends.extend(ends(event).map(|end| (end, index)));
        self.times.extend(raised_at(event));
    }

    fn has(&self, event: &HistoryEvent, inbox: &[HistoryEvent]) -> bool {
        end_key(event).is_some_and(|end| self.keys.contains(&end))
            || raised_at(event).is_some_and(|at| self.times.contains(&at))
                && inbox.iter().any(|waiting| is_sent_again(event, waiting))
    }
}

impl Instance {
    /// An instance that does not exist yet.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            generation: FIRST_GENERATION,
            ..Self::default()
        }
    }

    /// Summary of its history.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Events that wait for the next step.
    #[must_use]
    pub fn inbox(&self) -> &[HistoryEvent] {
        &self.inbox
    }

    /// Decodes its events.
    #[must_use]
    pub fn history(&self) -> Vec<HistoryEvent> {
        // Cannot fail: the events were encoded here, or decoded when they were read.
        let decoded = self.history.iter().map(HistoryEvent::decode);
        decoded.filter_map(Result::ok).collect()
    }

    /// Encoded length of all that a worker gets: history, inbox, and the received history; bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let inbox = self.inbox.iter().map(prost::Message::encoded_len);
        self.history.size() + inbox.sum::<usize>() + self.received.as_ref().map_or(0, Bytes::len)
    }

    /// Estimated memory, bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        // Overhead of an event and of an instance.
        const EVENT: usize = 128;
        const INSTANCE: usize = 2048;
        let events = self.history.len() + self.inbox.len();
        let start = self.start_event().map_or(0, prost::Message::encoded_len);
        self.size() + start + self.signing.bytes() + events * EVENT + INSTANCE
    }

    /// The start event, from history or inbox.
    #[must_use]
    pub fn start_event(&self) -> Option<&ExecutionStartedEvent> {
        if let Some(started) = &self.facts.started {
            return Some(&started.event);
        }
        self.inbox.iter().find_map(|event| match &event.event_type {
            Some(EventType::ExecutionStarted(started)) => Some(started),
            _ => None,
        })
    }

    /// Due time of its reminders: the time of the first event, which is past, so that they fire at once.
    #[must_use]
    pub fn first_at(&self) -> Option<Timestamp> {
        self.facts.first_at
    }

    /// The status shown to clients.
    #[must_use]
    pub fn status(&self) -> OrchestrationStatus {
        self.facts.status()
    }

    /// Whether its execution has ended.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.facts.completed.is_some()
    }

    /// Actor ids of the pending activities of this app.
    #[must_use]
    pub fn activities(&self) -> Vec<String> {
        let open = self.facts.open(Awaited::Task);
        let own = open.filter(|(_, open)| open.app.is_none());
        own.map(|(task, _)| activity_id(&self.id, task, self.generation))
            .collect()
    }

    /// Number of stored entries.
    #[must_use]
    pub fn stored(&self) -> Counts {
        self.stored.unwrap_or_default()
    }

    /// The metadata sent to clients and watchers.
    #[must_use]
    pub fn metadata(&self) -> WorkflowMetadata {
        let facts = &self.facts;
        let start = self.start_event();
        let parent = start.and_then(|start| start.parent_instance.as_ref());
        let parent = parent.and_then(|info| Some((info.workflow_instance.as_ref()?, info.app_id.clone())));
        let completed = facts.completed.as_deref();
        let first_in_inbox = || self.inbox.first().and_then(|event| event.timestamp);
        WorkflowMetadata {
            instance_id: self.id.clone(),
            name: start.map(|start| start.name.clone()).unwrap_or_default(),
            runtime_status: self.status().into(),
            created_at: facts
                .started
                .as_ref()
                .map_or_else(first_in_inbox, |started| started.at),
            last_updated_at: facts.updated_at.or_else(first_in_inbox),
            input: start.and_then(|start| start.input.clone()),
            output: completed.and_then(|completed| completed.event.result.clone()),
            custom_status: self.custom_status.clone(),
            failure_details: completed.and_then(|completed| completed.event.failure_details.clone()),
            completed_at: completed.and_then(|completed| completed.at),
            parent_instance_id: parent
                .as_ref()
                .map(|(parent, _)| parent.instance_id.clone())
                .unwrap_or_default(),
            version: facts.version.clone().filter(|version| !version.is_empty()),
            parent_app_id: parent.and_then(|(_, app)| app).filter(|app| !app.is_empty()),
            // The time of the first step.
            started_at: facts.first_at,
        }
    }

    /// Checks whether an event may be added, and whether it is a duplicate.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn check(&self, event: &HistoryEvent) -> Result<Added, AddError> {
        self.check_against(event, &Origin::default(), |event| {
            let ended = end_key(event);
            self.inbox
                .iter()
                .any(|waiting| ended.is_some() && end_key(waiting) == ended || is_sent_again(event, waiting))
        })
    }

    /// As [`Instance::check`]; `waits`: the inbox has the event.
    pub(crate) fn check_against(
        &self,
        event: &HistoryEvent,
        origin: &Origin,
        waits: impl FnOnce(&HistoryEvent) -> bool,
    ) -> Result<Added, AddError> {
        // Senders of results stop if the instance is unknown.
        let is_unwanted = self.is_tombstone() && kind(event).is_some();
        if self.start_event().is_none() || is_unwanted {
            return Err(AddError::Unknown);
        }
        if self.facts.stalled.is_some() && matches!(event.event_type, Some(EventType::EventRaised(_))) {
            return Err(AddError::Stalled);
        }
        if self.facts.is_repeated(event) || self.facts.was_raised(event) {
            return Ok(Added::Repeated);
        }
        let is_foreign = self.facts.is_foreign(event) || self.is_for_another(event, origin);
        if is_foreign || self.is_left_behind(event, origin) {
            return Ok(Added::Foreign);
        }
        if waits(event) {
            return Ok(Added::Repeated);
        }
        if self.inbox.len() >= MAX_ENTRIES {
            return Err(AddError::Full);
        }
        Ok(Added::New)
    }

    /// Whether the result of an activity or child belongs to another execution.
    fn is_for_another(&self, event: &HistoryEvent, origin: &Origin) -> bool {
        if !origin.is_of_another(self.execution()) {
            return false;
        }
        match ends(event) {
            Some((Awaited::Task, _)) => true,
            // A child that was running when this execution requested its id belongs to this execution too,
            // but does not know it. A child that had ended starts anew.
            Some((Awaited::Child, id)) => {
                let awaited = self.facts.opened(Awaited::Child, id);
                awaited.and_then(|child| child.instance.as_deref()) != Some(origin.instance.as_str())
            }
            _ => false,
        }
    }

    /// Whether a result that names no execution is of an earlier one: nothing awaits it. If the step that
    /// started the task was only interrupted, its repetition starts the task again. Sidecars of Dapr then run
    /// it again.
    fn is_left_behind(&self, event: &HistoryEvent, origin: &Origin) -> bool {
        let is_unnamed = origin.execution.is_empty() && execution_of_result(event).is_empty();
        is_unnamed
            && self.generation > FIRST_GENERATION
            && !self.execution().is_empty()
            && self.facts.ends_nothing(event)
    }

    /// Adds the events that are acceptable; raised events only while there is room. If the run cannot be
    /// ensured or the change cannot be stored, the instance must be read again.
    pub fn add(&mut self, events: impl IntoIterator<Item = impl Into<Arrival>>, limit: Limit) -> Additions {
        self.add_checked(events, limit, None)
    }

    /// As [`Instance::add`], with results verified before they are accepted.
    pub fn add_verified(
        &mut self,
        events: impl IntoIterator<Item = impl Into<Arrival>>,
        limit: Limit,
        verify: VerifyResult<'_>,
    ) -> Additions {
        self.add_checked(events, limit, Some(verify))
    }

    fn add_checked(
        &mut self,
        events: impl IntoIterator<Item = impl Into<Arrival>>,
        limit: Limit,
        verify: Option<VerifyResult<'_>>,
    ) -> Additions {
        let before = self.inbox.len();
        let (mut additions, replaced) = self.take_in(events, limit, verify);
        if self.inbox.len() > before || !replaced.is_empty() {
            let Counts { history, inbox, .. } = self.stored();
            additions.change = self.change_with(
                history.min(self.history.len()),
                inbox.min(self.inbox.len()),
                &replaced,
            );
        }
        additions
    }

    /// As [`Instance::add`], without the change; returns the replaced inbox entries too.
    pub(crate) fn take_in(
        &mut self,
        events: impl IntoIterator<Item = impl Into<Arrival>>,
        limit: Limit,
        mut verify: Option<VerifyResult<'_>>,
    ) -> (Additions, BTreeSet<usize>) {
        let mut additions = Additions {
            added: Vec::new(),
            run: None,
            change: Change::default(),
            rejected: None,
        };
        let mut waiting = Waiting::of(&self.inbox);
        let mut size = self.size();
        for arrival in events {
            let Arrival {
                mut event,
                origin,
                waited,
            } = arrival.into();
            let is_waiting = |event: &HistoryEvent| waiting.has(event, &self.inbox);
            let mut checked = self.check_against(&event, &origin, is_waiting);
            let grown = size + event.encoded_len();
            // Only raised events are rejected: results and commands cannot be sent smaller.
            let is_raised = matches!(event.event_type, Some(EventType::EventRaised(_)));
            if checked == Ok(Added::New) && is_raised && !self.is_completed() {
                checked = limit.check_event(grown).map(|()| Added::New);
            }
            // Completed instances ignore events.
            let is_idle = self.is_completed() || checked == Ok(Added::Foreign);
            if !is_idle
                && checked == Ok(Added::New)
                && let Some(verify) = verify.as_deref_mut()
                && let Err(why) = self.admit(&mut event, waited, verify)
            {
                additions.rejected = Some(why);
                break;
            }
            if !is_idle && checked.is_ok() {
                additions.run.get_or_insert_with(|| Run {
                    reminder: event_reminder(&event),
                    due: self.first_at().or(event.timestamp),
                });
                if checked == Ok(Added::New) {
                    debug_assert!(
                        !is_timer(&event),
                        "timers that fired are never stored in an inbox"
                    );
                    size = grown - self.put(event, &mut waiting);
                }
            }
            additions.added.push(checked);
        }
        (additions, waiting.replaced)
    }

    /// Verifies an event if it is a result, and keeps the certificates of its signer.
    fn admit(
        &mut self,
        event: &mut HistoryEvent,
        waited: bool,
        verify: VerifyResult<'_>,
    ) -> Result<(), String> {
        let (Some(kind), Some((_, task))) = (kind(event), ends(event)) else {
            return Ok(());
        };
        let attested = verify(self, event, waited).map_err(|error| {
            let kind = match kind {
                Kind::Activity => "activity",
                Kind::Child => "child",
            };
            format!("attestation verification failed for the {kind} completion of task {task}: {error}")
        })?;
        strip(event);
        self.signing.add_external(attested.chain);
        Ok(())
    }

    /// Puts an event into the inbox and returns the bytes it frees. A result whose start is not stored
    /// replaces the one before it: SDKs give each attempt of a step a new execution id, so only the last one
    /// can match. A step that keeps failing would otherwise fill the inbox.
    fn put(&mut self, event: HistoryEvent, waiting: &mut Waiting) -> usize {
        let known = ends(&event)
            .filter(|_| self.facts.ends_nothing(&event))
            .and_then(|end| waiting.ends.get(&end).copied());
        let index = known.unwrap_or(usize::MAX).min(self.inbox.len());
        waiting.note(index, &event);
        let Some(old) = self.inbox.get_mut(index) else {
            self.inbox.push(event);
            return 0;
        };
        if let Some(key) = end_key(old) {
            waiting.keys.remove(&key);
        }
        waiting.replaced.insert(index);
        std::mem::replace(old, event).encoded_len()
    }

    /// Adds an event unchecked.
    #[cfg(test)]
    pub(crate) fn push(&mut self, event: HistoryEvent) -> Change {
        self.inbox.push(event);
        self.change()
    }

    /// Clears everything but the id; the next execution gets the next generation.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.custom_status = None;
        self.facts = Facts::default();
        self.history.clear();
        self.inbox.clear();
        self.signing = Tables::default();
        self.receive(None);
    }

    /// Sets the received history.
    pub(crate) fn receive(&mut self, history: Option<Bytes>) {
        self.received_anew |= self.received.is_some() || history.is_some();
        self.received = history;
    }

    /// Appends to the history.
    pub(crate) fn append(&mut self, event: &HistoryEvent) {
        self.facts.add(event);
        self.history.push(&event.encode_to_vec());
    }

    /// Checks whether the instance may be purged.
    ///
    /// # Errors
    /// [`PurgeError`].
    pub fn purge(&self) -> Result<(), PurgeError> {
        if self.is_left_over() {
            return Ok(());
        }
        // After a partial removal the end event may be all that is left.
        if self.start_event().is_none() && !self.is_completed() {
            return Err(PurgeError::Unknown);
        }
        if self.facts.stalled.is_some() {
            return Err(PurgeError::Stalled);
        }
        if !self.is_completed() {
            return Err(PurgeError::NotCompleted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
