//! A turn: what waits in the inbox goes to the worker, and what the worker answers becomes history, activities, timers
//! and messages. Nothing of it holds before [`Instance::commit`].

use std::collections::HashSet;

use bytes::{BufMut, Bytes, BytesMut};
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::orchestrator_action::OrchestratorActionType;
use outrigger_wire::durabletask::{
    ExecutionStalledEvent, ExecutionTerminatedEvent, HistoryEvent, OrchestrationVersion, OrchestratorAction,
    OrchestratorResponse, OrchestratorStartedEvent, StalledReason, TaskRouter, TraceContext,
};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::Timestamp;

use crate::actions::Effects;
use crate::error::TurnError;
use crate::event::{Awaited, NO_ID, ends, event, execution_of_result};
use crate::facts::Facts;
use crate::instance::Instance;
use crate::payload::{Limit, too_long};
use crate::stored::Change;

/// How often a turn may continue as new before anything else happens.
pub const MAX_RESTARTS: u32 = 20;

/// Actions of one answer of a worker, at most.
pub(crate) const MAX_ACTIONS: usize = 100_000;

/// What a run of an instance begins with.
#[derive(Debug)]
pub enum Begun {
    /// Nothing waits.
    Idle,
    /// The instance has ended; what waited is dropped, and this has to be stored.
    Dropped(Change),
    /// It cannot go on; see [`Instance::commit`].
    Stalled(Box<Outcome>),
    /// The worker has to be asked.
    Turn(Box<Turn>),
}

/// What a turn takes from outside.
pub struct Outside<'a> {
    /// Now.
    pub at: Timestamp,
    /// The span that activities and children are parts of.
    pub trace: Option<TraceContext>,
    /// Makes ids of executions, none twice.
    pub new_id: &'a mut dyn FnMut() -> String,
    /// The largest body that may be sent.
    pub limit: Limit,
}

/// A turn that the worker works on.
#[derive(Clone, Debug)]
pub struct Turn {
    pub(crate) id: String,
    /// The app that hosts the instance.
    pub(crate) app: String,
    pub(crate) facts: Facts,
    /// Events of this turn; the first one is `OrchestratorStarted`.
    pub(crate) fresh: Vec<HistoryEvent>,
    /// Results of what no turn that was stored has begun: they wait until one has.
    pub(crate) early: Vec<HistoryEvent>,
    superseded: Vec<i32>,
    terminated: Option<ExecutionTerminatedEvent>,
    pub(crate) restarts: u32,
    stalled_before: Option<ExecutionStalledEvent>,
}

/// What comes of the worker's answer.
#[derive(Debug)]
pub enum Answered {
    /// It continued as new: the worker has to be asked again.
    Again(Box<Turn>),
    /// The turn is over.
    Done(Box<Outcome>),
}

/// A timer that is to be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Timer {
    /// Event id of its creation.
    pub id: i32,
    /// When it is due.
    pub fire_at: Option<Timestamp>,
    /// The event that it brings.
    pub fired: HistoryEvent,
}

/// Something for another instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Its instance id.
    pub target: String,
    /// The app that hosts it, if it is another than the sender's.
    pub app: Option<String>,
    /// An `ExecutionStarted` creates it; anything else is added to it.
    pub event: HistoryEvent,
    /// The event id of the scheduling event, if it has one.
    pub cause: Option<i32>,
}

impl Message {
    /// Whether it creates the instance.
    #[must_use]
    pub fn creates(&self) -> bool {
        crate::create::execution(&self.event).is_some()
    }
}

/// A turn that is over: what has to be done before it is stored, and then stored.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Activities to start: `TaskScheduled` events.
    pub tasks: Vec<HistoryEvent>,
    /// Timers to set; none if the instance has ended.
    pub timers: Vec<Timer>,
    /// Timers that limit a wait that is over: their reminders go.
    pub superseded: Vec<i32>,
    /// What other instances are sent.
    pub messages: Vec<Message>,
    /// The generation that activities and timers belong to.
    pub generation: u64,
    /// Why the instance cannot go on; nothing else is to be done then.
    pub stalled: Option<ExecutionStalledEvent>,
    /// Results that came early can be taken now: it has to be run again after it is stored.
    pub wakes: bool,
    /// It continued as new more often than [`MAX_RESTARTS`] in a row: it has to be run again after it is stored, and others
    /// get a turn meanwhile.
    pub runs_again: bool,
    pub(crate) facts: Facts,
    pub(crate) fresh: Vec<HistoryEvent>,
    pub(crate) restarted: bool,
    pub(crate) custom_status: Option<String>,
    /// What stays in the inbox.
    pub(crate) inbox: Vec<HistoryEvent>,
}

impl Instance {
    /// Begins a turn with what waits, and with a timer that has `fired`. `app` is the app that hosts the instance.
    pub fn begin(&mut self, app: &str, fired: Option<HistoryEvent>, at: Timestamp, limit: Limit) -> Begun {
        if self.is_completed() {
            return if self.inbox.is_empty() {
                Begun::Idle
            } else {
                self.inbox.clear();
                Begun::Dropped(self.change())
            };
        }
        if self.inbox.is_empty() && fired.is_none() {
            return Begun::Idle;
        }
        // The turn has its own beginning, and maybe a timer.
        let entries = self.history.len() + self.inbox.len() + 2;
        if let Some(stalled) = limit.stalls(self.size()).or_else(|| too_long(entries)) {
            return Begun::Stalled(Box::new(self.stall(stalled, at)));
        }
        let started = EventType::OrchestratorStarted(OrchestratorStartedEvent::default());
        let mut turn = Turn {
            id: self.id.clone(),
            app: app.to_owned(),
            facts: self.facts.clone(),
            fresh: Vec::with_capacity(self.inbox.len() + 2),
            early: Vec::new(),
            superseded: Vec::new(),
            terminated: None,
            restarts: 0,
            stalled_before: self.facts.stalled.clone(),
        };
        turn.take(event(NO_ID, at, started));
        let mut repeats_first_turn = false;
        for mut event in self.inbox.iter().cloned().chain(fired) {
            if turn.facts.is_repeated(&event) || turn.facts.is_foreign(&event) {
                repeats_first_turn |= crate::create::execution(&event).is_some();
                continue;
            }
            // A turn that began it was cut off before it was stored. SDKs take no notice of a result that stands before
            // its beginning, and would wait for good.
            if let Some((awaited, id)) = ends(&event)
                && !turn.facts.is_open(awaited, id)
            {
                // A timer is set anew by the turn that creates it.
                if awaited != Awaited::Timer {
                    turn.early.push(event);
                }
                continue;
            }
            if crate::create::execution(&event).is_some() && event.router.is_none() {
                event.router = Some(TaskRouter {
                    source_app_id: app.to_owned(),
                    target_app_id: None,
                });
            }
            turn.take(event);
        }
        if turn.fresh.len() == 1 && !repeats_first_turn {
            if turn.early == self.inbox {
                return Begun::Idle;
            }
            self.inbox = turn.early;
            return Begun::Dropped(self.change_from(self.stored().history, 0));
        }
        Begun::Turn(Box::new(turn))
    }

    fn stall(&self, stalled: ExecutionStalledEvent, at: Timestamp) -> Outcome {
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

impl Turn {
    /// Takes an event into the turn.
    pub(crate) fn take(&mut self, event: HistoryEvent) {
        self.superseded.extend(self.facts.add(&event));
        if let Some(EventType::ExecutionTerminated(terminated)) = &event.event_type {
            self.terminated = Some(terminated.clone());
        }
        self.fresh.push(event);
    }

    /// Whether the result of something that begins now is here already. `execution`: which one of an activity.
    pub(crate) fn has_early(&self, awaited: Awaited, id: i32, execution: &str) -> bool {
        self.early.iter().any(|event| {
            let of = execution_of_result(event);
            ends(event) == Some((awaited, id)) && (of.is_empty() || execution.is_empty() || of == execution)
        })
    }

    /// What was known of the events of the last execution.
    pub(crate) fn forget(&mut self) {
        self.early.clear();
        self.superseded.clear();
        self.terminated = None;
        self.stalled_before = None;
    }

    /// Whether the history begins anew with this turn.
    #[must_use]
    pub fn is_restart(&self) -> bool {
        self.restarts > 0
    }

    /// What the history says, this turn's events included.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// This turn's events.
    #[must_use]
    pub fn events(&self) -> &[HistoryEvent] {
        &self.fresh
    }

    /// Whether it is the first one of an execution.
    #[must_use]
    pub fn begins_execution(&self) -> bool {
        self.fresh
            .iter()
            .any(|event| crate::create::execution(event).is_some())
    }

    /// Records the span of the execution in the event that begins it, if that is of this turn.
    pub fn set_span(&mut self, span_id: &str) {
        for event in &mut self.fresh {
            if let Some(EventType::ExecutionStarted(started)) = &mut event.event_type {
                started.orchestration_span_id = Some(span_id.to_owned());
            }
        }
    }

    /// The `OrchestratorRequest` for the worker, encoded, in pieces that follow each other. Those of the history are
    /// shared with the instance.
    #[must_use]
    pub fn request(&self, instance: &Instance) -> Vec<Bytes> {
        const INSTANCE_ID: u32 = 1;
        const NEW_EVENTS: u32 = 4;
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
        let mut request = vec![head.freeze()];
        if !self.is_restart() {
            request.extend(instance.history.fields());
        }
        request.push(fresh.freeze());
        request
    }

    /// Carries out what the worker answered.
    ///
    /// # Errors
    /// [`TurnError`]; the turn has to be repeated, nothing of it holds.
    pub fn answer(
        mut self,
        instance: &Instance,
        response: OrchestratorResponse,
        outside: &mut Outside<'_>,
    ) -> Result<Answered, TurnError> {
        let OrchestratorResponse {
            actions,
            custom_status,
            version,
            ..
        } = response;
        check_actions(&self.id, &actions)?;
        let version = version.filter(|version| !version.patches.is_empty() || version.name.is_some());
        let mismatch = patch_mismatch(&self.facts.patches, version.as_ref());
        let before = self.clone();
        self.record(version);
        let mut effects = Effects::default();
        for action in actions {
            if let Some(next) = self.apply(action, outside, &mut effects)? {
                if self.restarts < MAX_RESTARTS {
                    return Ok(Answered::Again(Box::new(next)));
                }
                // What was done so far holds, so that a repetition gets further.
                let mut outcome = next.hold(instance);
                outcome.runs_again = true;
                return Ok(Answered::Done(Box::new(outcome)));
            }
        }
        let oversized = effects
            .tasks
            .iter()
            .find_map(|task| outside.limit.stalls_task(task));
        let past = if self.is_restart() {
            0
        } else {
            instance.history.len()
        };
        let too_long = too_long(past + self.fresh.len());
        let stalled = effects.stalled.take().or(mismatch).or(oversized).or(too_long);
        if let Some(stalled) = stalled {
            let mut outcome = before.hold(instance);
            outcome.stall(stalled, self.stalled_before.as_ref(), outside.at);
            return Ok(Answered::Done(Box::new(outcome)));
        }
        Ok(Answered::Done(Box::new(self.finish(
            instance,
            effects,
            custom_status,
            outside.at,
        ))))
    }

    fn finish(
        mut self,
        instance: &Instance,
        effects: Effects,
        custom_status: Option<String>,
        at: Timestamp,
    ) -> Outcome {
        let Effects {
            tasks,
            mut timers,
            mut messages,
            ..
        } = effects;
        if self.facts.completed.is_some() {
            timers.clear();
            let recursive = self.terminated.take().filter(|terminated| terminated.recurse);
            messages.extend(
                recursive
                    .iter()
                    .flat_map(|terminated| self.terminate_children(terminated, at)),
            );
        }
        let mut early = self.early;
        if self.facts.completed.is_some() {
            early.clear();
        }
        let wakes = early
            .iter()
            .filter_map(ends)
            .any(|(awaited, id)| self.facts.is_open(awaited, id));
        Outcome {
            tasks,
            timers,
            wakes,
            superseded: self.superseded,
            messages,
            generation: instance.generation + u64::from(self.restarts > 0),
            stalled: None,
            runs_again: false,
            restarted: self.restarts > 0,
            facts: self.facts,
            fresh: self.fresh,
            custom_status,
            inbox: early,
        }
    }

    fn terminate_children(&self, terminated: &ExecutionTerminatedEvent, at: Timestamp) -> Vec<Message> {
        let open = |event: i32| self.facts.is_open(Awaited::Child, event);
        let children = self.facts.children().filter(|child| open(child.event));
        children
            .map(|child| Message {
                target: child.id.clone(),
                app: child.app.clone(),
                event: event(NO_ID, at, EventType::ExecutionTerminated(terminated.clone())),
                cause: None,
            })
            .collect()
    }

    /// The state to store when the worker is gone after it continued as new: the next execution, which has not begun.
    #[must_use]
    pub fn abandoned(self, instance: &Instance) -> Option<Outcome> {
        self.is_restart().then(|| self.hold(instance))
    }

    /// Nothing of the turn but that it continued as new, if it did.
    fn hold(self, instance: &Instance) -> Outcome {
        if !self.is_restart() {
            return Outcome {
                facts: instance.facts.clone(),
                custom_status: instance.custom_status.clone(),
                inbox: instance.inbox.clone(),
                generation: instance.generation,
                ..Outcome::default()
            };
        }
        Outcome {
            restarted: true,
            generation: instance.generation + 1,
            inbox: self.fresh.into_iter().skip(1).collect(),
            ..Outcome::default()
        }
    }

    /// Records the version that the worker ran in the event that begins this turn, without what earlier turns recorded.
    fn record(&mut self, version: Option<OrchestrationVersion>) {
        let Some(mut version) = version else { return };
        let had_patches = !version.patches.is_empty();
        let mut known = self.facts.patches.clone();
        version.patches.retain(|patch| {
            let found = known.iter().position(|known| known == patch);
            found.map(|index| known.swap_remove(index)).is_none()
        });
        let is_named = version.name.is_some() && (!had_patches || self.facts.version.is_none());
        if version.patches.is_empty() && !is_named {
            return;
        }
        self.facts.patches.extend(version.patches.iter().cloned());
        if self.facts.version.is_none() {
            self.facts.version.clone_from(&version.name);
        }
        if let Some(EventType::OrchestratorStarted(started)) =
            self.fresh.first_mut().and_then(|event| event.event_type.as_mut())
        {
            started.version = Some(version);
        }
    }
}

impl Outcome {
    /// Whether the instance has ended.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        self.facts.completed.is_some()
    }

    /// What the history says after it.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether it is an execution's first turn.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.fresh
            .iter()
            .any(|event| crate::create::execution(event).is_some())
    }

    /// The first turn of an execution without what could not be sent, so that its status is seen: the event ids of
    /// `unsent` are taken out. The turn is to be repeated.
    #[must_use]
    pub fn without(mut self, instance: &Instance, unsent: &[i32]) -> Self {
        let mut facts = if self.restarted {
            Facts::default()
        } else {
            instance.facts.clone()
        };
        self.fresh
            .retain(|event| !unsent.contains(&event.event_id) || event.event_id == NO_ID);
        for event in &self.fresh {
            facts.add(event);
        }
        // An event that says what is known already makes the turn run again.
        let start = self
            .fresh
            .iter()
            .find(|event| crate::create::execution(event).is_some());
        self.inbox.extend(start.cloned());
        self.facts = facts;
        self
    }

    fn stall(
        &mut self,
        stalled: ExecutionStalledEvent,
        before: Option<&ExecutionStalledEvent>,
        at: Timestamp,
    ) {
        let is_known = before.is_some_and(|before| before.description == stalled.description);
        if !is_known || self.restarted {
            let event = event(NO_ID, at, EventType::ExecutionStalled(stalled.clone()));
            self.facts.add(&event);
            self.fresh.push(event);
        }
        self.stalled = Some(stalled);
    }
}

/// What a worker answers is bounded, and has nothing twice.
fn check_actions(instance: &str, actions: &[OrchestratorAction]) -> Result<(), TurnError> {
    use OrchestratorActionType as Act;
    let instance = || instance.to_owned();
    if actions.len() > MAX_ACTIONS {
        return Err(TurnError::TooManyActions {
            instance: instance(),
            actions: actions.len(),
        });
    }
    let mut known = HashSet::with_capacity(actions.len());
    let begins = |action: &&OrchestratorAction| {
        matches!(
            action.orchestrator_action_type,
            Some(Act::ScheduleTask(_) | Act::CreateTimer(_) | Act::CreateSubOrchestration(_))
        )
    };
    match actions
        .iter()
        .filter(begins)
        .find(|action| !known.insert(action.id))
    {
        None => Ok(()),
        Some(repeated) => Err(TurnError::RepeatedAction {
            instance: instance(),
            action: repeated.id,
        }),
    }
}

/// The patches of the history have to be the first ones that the worker has now.
fn patch_mismatch(
    history: &[String],
    version: Option<&OrchestrationVersion>,
) -> Option<ExecutionStalledEvent> {
    let current = version.map_or(&[][..], |version| &version.patches);
    if current.starts_with(history) {
        return None;
    }
    Some(ExecutionStalledEvent {
        reason: StalledReason::PatchMismatch.into(),
        description: Some(format!(
            "Patch mismatch. History patches: [{}], current patches: [{}]. ",
            history.join(", "),
            current.join(", ")
        )),
    })
}

#[cfg(test)]
mod tests;
