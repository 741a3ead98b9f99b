//! Steps of instances and runs of activities, and how they are stored.

use outrigger_wire::durabletask::WorkflowResponse;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType as Act;

use super::*;

impl World {
    /// Runs an activity and other due activities of its workflow: their results arrive together.
    pub(super) fn run_activities(&mut self, first: &(i64, String, String)) -> Result<(), Crash> {
        let workflow = |actor: &str| actor.split_once("::").unwrap().0.to_owned();
        let id = workflow(&first.1);
        let due = self.reminders.iter().filter_map(|(key, due)| match due {
            Due::Activity(task, origin) if key.0 <= self.now && workflow(&key.1) == id => {
                Some((key.clone(), (task.clone(), origin.clone())))
            }
            _ => None,
        });
        let due: Vec<_> = due.take(TOGETHER).collect();
        let mut results = Vec::new();
        for (_, (task, origin)) in &due {
            results.push(self.run_activity(task, origin)?);
        }
        self.add(&id, results)?;
        for (key, _) in due {
            self.may_crash()?;
            self.reminders.remove(&key);
        }
        Ok(())
    }

    fn run_activity(&mut self, task: &HistoryEvent, origin: &Origin) -> Result<Arrival, Crash> {
        let Some(EventType::TaskScheduled(scheduled)) = &task.event_type else {
            panic!()
        };
        let (task_scheduled_id, task_execution_id) = (task.event_id, scheduled.task_execution_id.clone());
        let result = match program::activity(scheduled.input.as_ref().unwrap()) {
            Ok(result) => EventType::TaskCompleted(TaskCompletedEvent {
                task_scheduled_id,
                task_execution_id,
                result: Some(result),
                attestation: None,
                signer_certificate: None,
            }),
            Err(error_message) => EventType::TaskFailed(TaskFailedEvent {
                task_scheduled_id,
                task_execution_id,
                failure_details: Some(TaskFailureDetails {
                    error_message,
                    ..TaskFailureDetails::default()
                }),
                attestation: None,
                signer_certificate: None,
            }),
        };
        self.may_crash()?;
        let (event, origin) = (event(-1, self.at(), result), origin.clone());
        Ok(Arrival {
            event,
            origin,
            waited: false,
        })
    }

    /// Runs an instance while its steps are stored together with later events, for one reminder. `false`:
    /// retry.
    pub(super) fn run_until_stored(
        &mut self,
        id: &str,
        timer: Option<(HistoryEvent, u64)>,
    ) -> Result<bool, Crash> {
        let is_timers = timer.is_some();
        let mut ran = self.run_instance(id, timer, is_timers)?;
        while ran == Ran::TookMore {
            ran = self.run_instance(id, None, is_timers)?;
        }
        Ok(ran == Ran::Over)
    }

    fn run_instance(
        &mut self,
        id: &str,
        timer: Option<(HistoryEvent, u64)>,
        is_timers: bool,
    ) -> Result<Ran, Crash> {
        let Some(mut instance) = self.load(id) else {
            return Ok(Ran::Over);
        };
        if timer
            .as_ref()
            .is_some_and(|(_, generation)| *generation < instance.generation)
        {
            self.memory.insert(id.to_owned(), instance);
            return Ok(Ran::Over);
        }
        let fired = timer.map(|(fired, _)| fired);
        let app = self.apps[id].clone();
        let mut step = match instance.begin(&app, fired, self.at(), LIMIT) {
            StepStart::Idle => {
                let terminations = instance.cascade(self.at());
                self.memory.insert(id.to_owned(), instance);
                self.terminate(id, terminations)?;
                return Ok(Ran::Over);
            }
            StepStart::Dropped(change) => {
                self.save(instance, *change)?;
                return Ok(Ran::Over);
            }
            StepStart::Stalled(stalled) => panic!("{stalled:?}"),
            StepStart::Step(step) => *step,
        };
        let outcome = loop {
            self.may_crash()?;
            let request = WorkflowRequest::decode(step.request(&instance).concat().as_slice()).unwrap();
            assert_eq!(
                request.past_events.len(),
                if step.is_restart() {
                    0
                } else {
                    instance.facts().len
                }
            );
            let program = self.program.clone();
            let mut answer = replay::step(request, &|context| {
                let steps = program::steps_of(&program, &context.name);
                program::run(&steps, context)
            });
            self.distinguish(&mut answer);
            if step.is_restart() && self.may_crash().is_err() {
                // Only the worker crashed.
                let outcome = step.abandoned(&instance).unwrap();
                // A timer of the last generation would not run the next one.
                self.run_again(id);
                let change = instance.commit(outcome);
                self.save(instance, change)?;
                return Ok(Ran::Again);
            }
            let at = self.at();
            let next_id = &mut self.next_id;
            let mut new_id = || {
                *next_id += 1;
                next_id.to_string()
            };
            let outside = &mut StepContext {
                at,
                trace: None,
                new_id: &mut new_id,
                new_trace: Default::default,
                limit: LIMIT,
            };
            match step.answer(&instance, answer, outside).unwrap() {
                Answered::ContinuedAsNew(next) => step = *next,
                Answered::Done(outcome) => break *outcome,
            }
        };
        self.carry_out(instance, outcome, is_timers)
    }

    /// Gives each attempt of a step new execution ids for its activities.
    fn distinguish(&mut self, answer: &mut WorkflowResponse) {
        if !self.distinguishes {
            return;
        }
        for action in &mut answer.actions {
            if let Some(Act::ScheduleTask(task)) = &mut action.workflow_action_type {
                self.next_id += 1;
                task.task_execution_id = format!("{}-{}", task.task_execution_id, self.next_id);
            }
        }
    }

    fn carry_out(&mut self, mut instance: Instance, outcome: Outcome, is_timers: bool) -> Result<Ran, Crash> {
        let id = instance.id.clone();
        if outcome.runs_again {
            self.run_again(&id);
            let change = instance.commit(outcome);
            self.save(instance, change)?;
            return Ok(Ran::Over);
        }
        for timer in &outcome.superseded {
            self.may_crash()?;
            let name = timer_reminder(*timer);
            self.reminders
                .retain(|(_, actor, known), _| *actor != id || *known != name);
        }
        self.set_timers(&id, outcome.generation, &outcome.timers)?;
        let execution = outcome.facts().execution();
        let unsent = self.send(
            &id,
            (outcome.generation, execution),
            &outcome.tasks,
            &outcome.messages,
        )?;
        if outcome.wakes {
            self.run_again(&id);
        }
        if !unsent.is_empty() {
            if outcome.may_be_stored_in_part() {
                self.run_again(&id);
                let partly = outcome.without(&instance, &unsent);
                let change = instance.commit(partly);
                self.save(instance, change)?;
            }
            return Ok(Ran::Again);
        }
        let came = self.linger(&id, &instance, &outcome)?;
        if !came.is_empty() {
            return self.store_together(instance, outcome, came, is_timers);
        }
        let ended = outcome.is_completed();
        let change = instance.commit(outcome);
        let terminations = instance.cascade(self.at());
        self.save(instance, change)?;
        self.terminate(&id, terminations)?;
        if ended {
            self.reminders
                .retain(|(_, actor, name), _| *actor != id || !name.starts_with("timer-"));
        }
        Ok(Ran::Over)
    }

    /// Events that arrive before the step is stored, each with the reminder that waits until then.
    fn linger(
        &mut self,
        id: &str,
        instance: &Instance,
        outcome: &Outcome,
    ) -> Result<Vec<(Came, Arrival)>, Crash> {
        let lingers = match &mut self.lingering {
            Some((random, together)) => {
                outcome.awaits_its_only_activity(instance) && random.random_bool(*together)
            }
            None => false,
        };
        let mut came = Vec::new();
        if !lingers {
            return Ok(came);
        }
        let prefix = format!("{id}::");
        let due = self.reminders.iter().find_map(|(key, due)| match due {
            Due::Activity(task, origin) if key.0 <= self.now && key.1.starts_with(&prefix) => {
                Some((key.clone(), task.clone(), origin.clone()))
            }
            _ => None,
        });
        if let Some((key, task, origin)) = due {
            came.push((Came::Result(key), self.run_activity(&task, &origin)?));
        }
        if id == ROOT
            && let Some(next) = self.next_sent()
        {
            came.push((Came::Client, self.sent(next).into()));
        }
        Ok(came)
    }

    fn store_together(
        &mut self,
        mut instance: Instance,
        outcome: Outcome,
        came: Vec<(Came, Arrival)>,
        is_timers: bool,
    ) -> Result<Ran, Crash> {
        let id = instance.id.clone();
        // A timer's reminder would not run the next generation.
        if is_timers {
            self.may_crash()?;
            self.run_again(&id);
        }
        let (senders, events): (Vec<_>, Vec<_>) = came.into_iter().unzip();
        let Additions { added, change, .. } = instance.commit_with(outcome, events, Limit::default());
        assert!(added.iter().all(Result::is_ok), "not stalled: {added:?}");
        self.save(instance, change)?;
        self.stored_together += 1;
        for sender in senders {
            self.may_crash()?;
            match sender {
                Came::Result(key) => drop(self.reminders.remove(&key)),
                Came::Client => drop(self.to_send.remove(0)),
            }
        }
        Ok(Ran::TookMore)
    }
}
