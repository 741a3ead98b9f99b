//! Applies the worker's answer to a step.

use std::collections::HashSet;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType;
use outrigger_wire::durabletask::{
    CompleteWorkflowAction, ExecutionStalledEvent, OrchestrationStatus, StalledReason, WorkflowAction,
    WorkflowResponse, WorkflowVersion,
};
use prost_types::Timestamp;

use super::{Outcome, Step, StepContext};
use crate::actions::Effects;
use crate::error::StepError;
use crate::event::{NO_ID, ends};
use crate::instance::Instance;
use crate::payload::too_long;
use crate::propagation::scope;

/// Maximum times that a step may continue as new in a row.
pub const MAX_RESTARTS: u32 = 20;

/// Maximum actions of one answer.
pub(crate) const MAX_ACTIONS: usize = 100_000;

/// The result of an answer.
#[derive(Debug)]
pub enum Answered {
    /// Continued as new: ask the worker again.
    ContinuedAsNew(Box<Step>),
    /// The step is finished.
    Done(Box<Outcome>),
}

impl Step {
    /// Applies the worker's answer.
    ///
    /// # Errors
    /// [`StepError`]: nothing takes effect and the step must be repeated.
    pub fn answer(
        mut self,
        instance: &Instance,
        response: WorkflowResponse,
        outside: &mut StepContext<'_>,
    ) -> Result<Answered, StepError> {
        let WorkflowResponse {
            actions,
            custom_status,
            version,
            ..
        } = response;
        check_actions(&self.id, &actions)?;
        let version = version.filter(|version| !version.patches.is_empty() || version.name.is_some());
        let mismatch = patch_mismatch(&self.facts.patches, version.as_ref());
        let before = self.clone();
        self.record(version.clone());
        let mut effects = Effects::default();
        for action in actions {
            if let Some(next) = self.apply(instance, action, outside, &mut effects)? {
                if let Some(stalled) = outside.limit.stalls(next.size()) {
                    let mut outcome = next.hold(instance);
                    outcome.stall(stalled, None, outside.at);
                    return Ok(Answered::Done(Box::new(outcome)));
                }
                if self.restarts < MAX_RESTARTS {
                    return Ok(Answered::ContinuedAsNew(Box::new(next)));
                }
                // Progress so far is kept, so that the next attempt gets further.
                let mut outcome = next.hold(instance);
                outcome.runs_again = true;
                return Ok(Answered::Done(Box::new(outcome)));
            }
        }
        if self.facts.completed.is_none() && self.terminated.is_some() {
            let version = version.filter(|_| mismatch.is_none());
            let outcome = before.terminate(instance, version, custom_status, outside.at);
            return Ok(Answered::Done(Box::new(outcome)));
        }
        let propagation = self.propagation(instance);
        let oversized = effects.tasks.iter().find_map(|task| {
            let passed = propagation.of(task.event_id, scope(task));
            outside.limit.stalls_task(task, passed.as_ref())
        });
        let is_oversized = oversized.is_some();
        // Includes children of another app, whose limit is unknown here: the input stays in the parent's
        // history, which its worker receives.
        let child = effects
            .messages
            .iter()
            .filter(|message| message.creates())
            .find_map(|message| {
                let passed = message
                    .cause
                    .and_then(|id| propagation.of(id, message.propagates));
                outside
                    .limit
                    .stalls_child(&message.target, &message.event, passed.as_ref())
            });
        let past = if self.is_restart() {
            0
        } else {
            instance.history.len()
        };
        let too_long = too_long(past + self.fresh.len());
        let stalled = effects
            .stalled
            .take()
            .or(mismatch)
            .or(oversized)
            .or(child)
            .or(too_long);
        if let Some(stalled) = stalled {
            let mut outcome = before.hold(instance);
            outcome.stall(stalled, self.stalled_before.as_ref(), outside.at);
            if is_oversized {
                outcome.refused = effects.tasks;
            }
            return Ok(Answered::Done(Box::new(outcome)));
        }
        Ok(Answered::Done(Box::new(self.finish(
            instance,
            effects,
            custom_status,
        ))))
    }

    /// Ends the execution as its termination says, without the effects of the worker's answer.
    fn terminate(
        mut self,
        instance: &Instance,
        version: Option<WorkflowVersion>,
        custom_status: Option<String>,
        at: Timestamp,
    ) -> Outcome {
        self.record(version);
        let result = self.terminated.clone().and_then(|terminated| terminated.input);
        let complete = CompleteWorkflowAction {
            workflow_status: OrchestrationStatus::Terminated.into(),
            result,
            ..CompleteWorkflowAction::default()
        };
        let mut effects = Effects::default();
        self.complete(NO_ID, complete, None, at, &mut effects);
        self.finish(instance, effects, custom_status)
    }

    fn finish(self, instance: &Instance, effects: Effects, custom_status: Option<String>) -> Outcome {
        let Effects {
            tasks,
            mut timers,
            messages,
            ..
        } = effects;
        if self.facts.completed.is_some() {
            timers.clear();
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
            refused: Vec::new(),
            runs_again: false,
            restarted: self.restarts > 0,
            received: self.received,
            facts: self.facts,
            fresh: self.fresh,
            custom_status,
            inbox: early,
        }
    }

    /// The state to store if the worker disconnects after the workflow continued as new: the next execution,
    /// not begun.
    #[must_use]
    pub fn abandoned(self, instance: &Instance) -> Option<Outcome> {
        self.is_restart().then(|| self.hold(instance))
    }

    /// Only the continue-as-new of the step, if any.
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
            received: self.received,
            generation: instance.generation + 1,
            inbox: self.fresh.into_iter().skip(1).collect(),
            ..Outcome::default()
        }
    }

    /// Records the worker's version and new patches in this step's first event.
    fn record(&mut self, version: Option<WorkflowVersion>) {
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
        if let Some(EventType::WorkflowStarted(started)) =
            self.fresh.first_mut().and_then(|event| event.event_type.as_mut())
        {
            started.version = Some(version);
        }
    }
}

/// Checks the number of actions and rejects duplicates.
fn check_actions(instance: &str, actions: &[WorkflowAction]) -> Result<(), StepError> {
    use WorkflowActionType as Act;
    let instance = || instance.to_owned();
    if actions.len() > MAX_ACTIONS {
        return Err(StepError::TooManyActions {
            instance: instance(),
            actions: actions.len(),
        });
    }
    let mut known = HashSet::with_capacity(actions.len());
    let begins = |action: &&WorkflowAction| {
        matches!(
            action.workflow_action_type,
            Some(Act::ScheduleTask(_) | Act::CreateTimer(_) | Act::CreateChildWorkflow(_))
        )
    };
    match actions
        .iter()
        .filter(begins)
        .find(|action| !known.insert(action.id))
    {
        None => Ok(()),
        Some(repeated) => Err(StepError::RepeatedAction {
            instance: instance(),
            action: repeated.id,
        }),
    }
}

/// The patches of the history must be a prefix of the worker's patches.
fn patch_mismatch(history: &[String], version: Option<&WorkflowVersion>) -> Option<ExecutionStalledEvent> {
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
