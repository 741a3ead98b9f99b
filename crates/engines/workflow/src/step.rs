//! A step: the inbox goes to the worker, and its answer becomes history, activities, timers and messages.
//! Nothing takes effect before [`Instance::commit`].

mod answer;
mod outcome;

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    CachedHistory, ExecutionStalledEvent, ExecutionTerminatedEvent, HistoryEvent, TaskRouter, TraceContext,
    WorkflowStartedEvent,
};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::Timestamp;

use crate::event::{Awaited, NO_ID, ends, event, execution_of_result};
use crate::facts::Facts;
use crate::instance::Instance;
use crate::payload::{Limit, too_long};
use crate::stored::Change;

pub(crate) use answer::MAX_ACTIONS;
pub use answer::{Answered, MAX_RESTARTS};
pub use outcome::{Message, Outcome, Timer};

/// The start of a run.
#[derive(Debug)]
pub enum StepStart {
    /// The inbox is empty.
    Idle,
    /// The instance has ended: the inbox is dropped, and this change must be stored.
    Dropped(Box<Change>),
    /// The instance is stalled; see [`Instance::commit`].
    Stalled(Box<Outcome>),
    /// The worker must be asked.
    Step(Box<Step>),
}

/// Time, ids and limits of a step.
pub struct StepContext<'a> {
    /// The time of the step.
    pub at: Timestamp,
    /// The parent span of activities and children.
    pub trace: Option<TraceContext>,
    /// Generates unique execution ids.
    pub new_id: &'a mut dyn FnMut() -> String,
    /// Generates the root of a new trace.
    pub new_trace: fn() -> TraceContext,
    /// The largest body that can be sent.
    pub limit: Limit,
}

/// A step in progress at the worker.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) id: String,
    /// The app that hosts the instance.
    pub(crate) app: String,
    pub(crate) facts: Facts,
    /// Events of this step, starting with `WorkflowStarted`.
    pub(crate) fresh: Vec<HistoryEvent>,
    /// Results that arrived before a stored step started their task; they stay in the inbox.
    pub(crate) early: Vec<HistoryEvent>,
    superseded: Vec<i32>,
    /// The first termination of this step.
    pub(crate) terminated: Option<ExecutionTerminatedEvent>,
    pub(crate) restarts: u32,
    stalled_before: Option<ExecutionStalledEvent>,
    /// The encoded history that the execution has received.
    pub(crate) received: Option<Bytes>,
}

impl Instance {
    /// Starts a step with the inbox and a timer that has `fired`. `app` hosts the instance.
    pub fn begin(
        &mut self,
        app: &str,
        fired: Option<HistoryEvent>,
        at: Timestamp,
        limit: Limit,
    ) -> StepStart {
        if self.is_completed() {
            return if self.inbox.is_empty() || self.is_tombstone() {
                StepStart::Idle
            } else {
                self.inbox.clear();
                StepStart::Dropped(Box::new(self.change()))
            };
        }
        if self.inbox.is_empty() && fired.is_none() {
            return StepStart::Idle;
        }
        // The step adds its start event, and perhaps a fired timer.
        let entries = self.history.len() + self.inbox.len() + 2;
        if let Some(stalled) = limit.stalls(self.size()).or_else(|| too_long(entries)) {
            return StepStart::Stalled(Box::new(self.stall(stalled, at)));
        }
        let started = EventType::WorkflowStarted(WorkflowStartedEvent::default());
        let mut step = Step {
            id: self.id.clone(),
            app: app.to_owned(),
            facts: self.facts.clone(),
            fresh: Vec::with_capacity(self.inbox.len() + 2),
            early: Vec::new(),
            superseded: Vec::new(),
            terminated: None,
            restarts: 0,
            stalled_before: self.facts.stalled.clone(),
            received: self.received.clone(),
        };
        step.take(event(NO_ID, at, started));
        let mut repeats_first_step = false;
        for mut event in self.inbox.iter().cloned().chain(fired) {
            // A first step partly stored by Dapr leaves its events in the inbox although the history has
            // them. Carried-over events may be equal: only stored ones count.
            let is_known = step.facts.is_repeated(&event) || self.facts.was_raised(&event);
            if is_known || step.facts.is_foreign(&event) {
                repeats_first_step |= crate::create::execution(&event).is_some();
                continue;
            }
            // The step that started the task was interrupted before it was stored. SDKs ignore a result that
            // precedes its start, and would wait forever.
            if let Some((awaited, id)) = ends(&event)
                && !step.facts.is_open(awaited, id)
            {
                // The step that creates a timer sets it again.
                if awaited != Awaited::Timer {
                    step.early.push(event);
                }
                continue;
            }
            if crate::create::execution(&event).is_some() && event.router.is_none() {
                event.router = Some(TaskRouter {
                    source_app_id: app.to_owned(),
                    target_app_id: None,
                    target_app_namespace: None,
                });
            }
            step.take(event);
        }
        if step.fresh.len() == 1 && !repeats_first_step {
            if step.early == self.inbox {
                return StepStart::Idle;
            }
            self.inbox = step.early;
            let change = self.change_from(self.stored().history, 0);
            return StepStart::Dropped(Box::new(change));
        }
        StepStart::Step(Box::new(step))
    }

    /// Stalls the instance: returns the outcome to commit, without changes if the stall is already recorded.
    #[must_use]
    pub fn stall(&self, stalled: ExecutionStalledEvent, at: Timestamp) -> Outcome {
        let mut outcome = Outcome {
            facts: self.facts.clone(),
            custom_status: self.custom_status.clone(),
            inbox: self.inbox.clone(),
            generation: self.generation,
            ..Outcome::default()
        };
        outcome.stall(stalled, self.facts.stalled.as_ref(), at);
        outcome
    }
}

impl Step {
    /// Adds an event to the step.
    pub(crate) fn take(&mut self, event: HistoryEvent) {
        self.superseded.extend(self.facts.add(&event));
        if let Some(EventType::ExecutionTerminated(terminated)) = &event.event_type {
            self.terminated.get_or_insert_with(|| terminated.clone());
        }
        self.fresh.push(event);
    }

    /// Whether the result of a task that starts now has already arrived. `execution`: the execution id of an
    /// activity.
    pub(crate) fn has_early(&self, awaited: Awaited, id: i32, execution: &str) -> bool {
        self.early.iter().any(|event| {
            let of = execution_of_result(event);
            ends(event) == Some((awaited, id)) && (of.is_empty() || execution.is_empty() || of == execution)
        })
    }

    /// Clears the facts of the last execution.
    pub(crate) fn forget(&mut self) {
        self.early.clear();
        self.superseded.clear();
        self.terminated = None;
        self.stalled_before = None;
    }

    /// Whether the step continues as new, so the history starts over.
    #[must_use]
    pub fn is_restart(&self) -> bool {
        self.restarts > 0
    }

    /// The summary of the history with this step's events.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// This step's events.
    #[must_use]
    pub fn events(&self) -> &[HistoryEvent] {
        &self.fresh
    }

    /// Encoded length of the request of a step that continues as new, bytes.
    pub(crate) fn size(&self) -> usize {
        let fresh = self.fresh.iter().map(prost::Message::encoded_len);
        fresh.sum::<usize>() + self.received.as_ref().map_or(0, Bytes::len)
    }

    /// Whether it is the first step of an execution.
    #[must_use]
    pub fn begins_execution(&self) -> bool {
        self.fresh
            .iter()
            .any(|event| crate::create::execution(event).is_some())
    }

    /// Records the execution's span in the start event, if it belongs to this step.
    pub fn set_span(&mut self, span_id: &str) {
        for event in &mut self.fresh {
            if let Some(EventType::ExecutionStarted(started)) = &mut event.event_type {
                started.workflow_span_id = Some(span_id.to_owned());
            }
        }
    }

    /// The encoded `WorkflowRequest` in pieces, to be sent in order. The instance shares the pieces of
    /// the history.
    #[must_use]
    pub fn request(&self, instance: &Instance) -> Vec<Bytes> {
        let past = (!self.is_restart()).then(|| instance.history.fields(0));
        self.pieces(past.into_iter().flatten(), None)
    }

    /// As [`Step::request`], for a worker that has the first `known` events of the history; `None` if none of
    /// them are sent with the step.
    #[must_use]
    pub fn rest_of_request(&self, instance: &Instance, known: usize) -> Option<Vec<Bytes>> {
        let has_them = !self.is_restart() && (1..=instance.history.len()).contains(&known);
        let cached = has_them.then(|| i32::try_from(known).ok()).flatten()?;
        Some(self.pieces(instance.history.fields(known), Some(cached)))
    }

    fn pieces(&self, past: impl Iterator<Item = Bytes>, cached: Option<i32>) -> Vec<Bytes> {
        const INSTANCE_ID: u32 = 1;
        const NEW_EVENTS: u32 = 4;
        const PROPAGATED_HISTORY: u32 = 8;
        const CACHED_HISTORY: u32 = 9;
        let field = |tag: u32, value: &[u8], request: &mut BytesMut| {
            encode_key(tag, WireType::LengthDelimited, request);
            encode_varint(value.len() as u64, request);
            request.put_slice(value);
        };
        let (mut head, mut fresh) = (BytesMut::new(), BytesMut::new());
        field(INSTANCE_ID, self.id.as_bytes(), &mut head);
        for event in &self.fresh {
            field(NEW_EVENTS, &event.encode_to_vec(), &mut fresh);
        }
        if let Some(event_count) = cached {
            let cached = CachedHistory { event_count };
            field(CACHED_HISTORY, &cached.encode_to_vec(), &mut fresh);
        }
        if let Some(received) = &self.received {
            encode_key(PROPAGATED_HISTORY, WireType::LengthDelimited, &mut head);
            encode_varint(received.len() as u64, &mut head);
        }
        let mut request = vec![head.freeze()];
        request.extend(self.received.clone());
        request.extend(past);
        request.push(fresh.freeze());
        request
    }
}

#[cfg(test)]
mod tests;
