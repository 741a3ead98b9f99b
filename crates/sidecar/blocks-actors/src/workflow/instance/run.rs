//! A run of an instance: sends the inbox to a worker, performs its answer and stores the step.

use std::sync::Arc;

use outrigger_wire::durabletask::backend::v1::DurableTimer;
use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    ExecutionStalledEvent, OrchestrationStatus, StalledReason, WorkflowResponse,
};
use outrigger_workflow::event::Awaited;
use outrigger_workflow::{Answered, Instance, MAX_RESTARTS, Origin, Outcome, Step, StepContext, StepStart};
use prost_types::Timestamp;
use tonic::Status;

use super::group_commit::RunBudget;
use super::state::Held;
use super::store::Loaded;
use crate::workflow::error::{is_broken, retry_later, stalled_status};
use crate::workflow::metrics::Ended as Execution;
use crate::workflow::own::is_own;
use crate::workflow::protocol::{LOG, new_id, now};
use crate::workflow::spans;
use crate::workflow::worker::error::Cancelled;
use crate::workflow::worker::histories::{KnownHistory, StepRequest};

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    /// The run's purpose is fulfilled.
    Completed,
    /// The inbox was empty.
    Nothing,
    /// The step was stored with later events. They need another run, which only the current reminder
    /// triggers.
    EventsLeft,
    /// The inbox has only results for tasks that no stored step has started. That proves nothing about the
    /// failed step.
    OnlyEarly,
}

impl Held<'_> {
    /// Runs the instance. `timer`: a fired timer; `of`: the execution named by the reminder. Steps follow
    /// each other while each is stored together with the result it waits for.
    pub(crate) async fn run(
        &mut self,
        timer: Option<DurableTimer>,
        of: &Origin,
    ) -> Result<RunOutcome, Status> {
        let budget = RunBudget::new(timer.is_some());
        let first = self.run_once(timer, of, &budget).await?;
        if first != RunOutcome::EventsLeft {
            return Ok(first);
        }
        while self.run_once(None, of, &budget).await? == RunOutcome::EventsLeft {}
        Ok(RunOutcome::Completed)
    }

    /// Runs one step. If the instance in memory has nothing to do, its stored state is checked, because
    /// another sidecar may have changed it.
    async fn run_once(
        &mut self,
        timer: Option<DurableTimer>,
        of: &Origin,
        budget: &RunBudget,
    ) -> Result<RunOutcome, Status> {
        let is_cached = self.entry.loaded.is_some();
        let outcome = Box::pin(self.begin(timer.clone(), of, budget)).await?;
        let is_idle = matches!(outcome, RunOutcome::Nothing | RunOutcome::OnlyEarly);
        if is_cached && is_idle && self.forget_if_changed().await? {
            return Box::pin(self.begin(timer, of, budget)).await;
        }
        if outcome == RunOutcome::Nothing {
            self.leave_memory();
        }
        Ok(outcome)
    }

    async fn begin(
        &mut self,
        timer: Option<DurableTimer>,
        of: &Origin,
        budget: &RunBudget,
    ) -> Result<RunOutcome, Status> {
        if self.entry.loaded.is_none() && self.is_over(timer.as_ref()).await? {
            return Ok(RunOutcome::Completed);
        }
        let Some(mut loaded) = self.take().await? else {
            return Ok(RunOutcome::Completed);
        };
        let own = loaded.instance.execution();
        let is_old =
            |timer: &DurableTimer| timer.generation < loaded.instance.generation || of.is_of_another(own);
        if timer.as_ref().is_some_and(is_old) {
            self.keep(loaded);
            return Ok(RunOutcome::Nothing);
        }
        let at = now();
        // Its own reminder starts it, regardless of the clock here.
        let begins_later = loaded.instance.begins_later(at);
        if let Some(due) = begins_later.filter(|_| timer.is_none() && of.execution != own) {
            let engine = Arc::clone(&self.all.engine);
            engine
                .remind_start(self.id, &loaded.instance, Some(due), true)
                .await?;
            self.keep(loaded);
            return Ok(RunOutcome::Completed);
        }
        let fired = timer.and_then(|timer| timer.timer_event).map(|mut event| {
            event.timestamp = Some(at);
            event
        });
        let engine = Arc::clone(&self.all.engine);
        match loaded.instance.begin(&engine.app_id, fired, at, engine.limit) {
            StepStart::Idle => {
                let only_early = !loaded.instance.inbox().is_empty();
                self.idle(loaded).await?;
                return Ok(match only_early {
                    true => RunOutcome::OnlyEarly,
                    false => RunOutcome::Nothing,
                });
            }
            StepStart::Dropped(change) => {
                self.save(loaded, *change).await?;
                if let Some(loaded) = self.take().await? {
                    self.idle(loaded).await?;
                }
            }
            StepStart::Stalled(outcome) => {
                let started = loaded.instance.start_event();
                engine.count_size(
                    started.map_or("", |started| started.name.as_str()),
                    &loaded.instance,
                );
                return self.finish(loaded, *outcome, budget).await;
            }
            StepStart::Step(step) => return Box::pin(self.step(loaded, *step, budget)).await,
        }
        Ok(RunOutcome::Completed)
    }

    /// Checks cheaply, reading one or two keys, whether there is nothing to run: ended instances have
    /// left-over reminders, one per event stored with others. State read for a run is kept.
    async fn is_over(&mut self, timer: Option<&DurableTimer>) -> Result<bool, Status> {
        let engine = Arc::clone(&self.all.engine);
        let Some(found) = engine.find(self.id).await? else {
            tracing::warn!(target: LOG, "workflow '{}' has no stored state: dropping its reminder", self.id);
            return Ok(true);
        };
        if timer.is_some_and(|timer| timer.generation < found.counts.generation) {
            return Ok(true);
        }
        // Without events there is nothing to run, ended or not. Children may be left to terminate.
        if timer.is_none() && found.counts.inbox == 0 && !found.counts.cascades {
            if engine.retention.is_none() {
                return Ok(true);
            }
            // Schedules the purge if that is still missing.
            if let Some(last) = engine.last_event(self.id, &found).await?
                && let Some(EventType::ExecutionCompleted(completed)) = &last.event_type
            {
                let status = completed.workflow_status();
                engine.retain(self.id, status, last.timestamp).await?;
                return Ok(true);
            }
        }
        match engine.read(self.id, found).await {
            Ok(loaded) => {
                let loaded = self.verified(loaded).await?;
                self.keep(loaded);
            }
            // It is read again.
            Err(error) if is_broken(error.code()) => {}
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Drops an instance that waits only for events and timers. Dapr's actor leaves memory after such a run too.
    /// One with tasks in progress stays, because their results come soon.
    fn leave_memory(&mut self) {
        let is_busy = |loaded: &Loaded| {
            let facts = loaded.instance.facts();
            let tasks = facts.open(Awaited::Task).chain(facts.open(Awaited::Child));
            tasks.take(1).count() > 0
        };
        let is_needed = self.entry.loaded.as_ref().is_some_and(is_busy)
            || self.all.watchers.has(self.id)
            || self.all.failures.is_postponed(self.id);
        if !is_needed {
            self.entry.loaded = None;
        }
    }

    /// Nothing to run: finishes the end of an ended instance if that was interrupted.
    async fn idle(&mut self, loaded: Loaded) -> Result<(), Status> {
        let ended = ended(&loaded.instance);
        let terminations = loaded.instance.cascade(now());
        self.keep(loaded);
        match ended {
            None => Ok(()),
            Some(ended) if terminations.is_empty() => {
                self.all.engine.retain(self.id, ended.status, ended.at).await
            }
            Some(ended) => {
                self.all.engine.terminate(self.id, &terminations).await?;
                self.complete(ended).await
            }
        }
    }

    async fn step(
        &mut self,
        loaded: Loaded,
        mut step: Step,
        budget: &RunBudget,
    ) -> Result<RunOutcome, Status> {
        let engine = Arc::clone(&self.all.engine);
        let mut span = spans::step_span(&engine.tracer, self.id, &mut step);
        spans::timers(&engine.tracer, &span, &loaded.instance, &step);
        let workflow = workflow_name(&step);
        if step.begins_execution() {
            engine.count_begun(&step);
        }
        engine.count_size(&workflow, &loaded.instance);
        loop {
            let known = self.all.workers.queue.known(self.id);
            let request = step_request(&step, &loaded.instance, known);
            let response = match self.ask_worker(&workflow, request).await {
                Ok(response) => response,
                Err(cancelled) => {
                    engine.metrics.execution(&workflow, Execution::Recoverable, None);
                    let why = format!("the step of workflow '{}' failed: {cancelled}", self.id);
                    let lost = match cancelled {
                        Cancelled::Disconnected => self.all.failures.lost(self.id, &why),
                        _ => None,
                    };
                    if let Some(outcome) = step.abandoned(&loaded.instance) {
                        self.abandon(loaded, outcome).await?;
                    } else {
                        self.keep(loaded);
                        self.stall_after(lost.unwrap_or_default()).await?;
                    }
                    return Err(match cancelled {
                        // The next answer is likely to be as large.
                        Cancelled::TooLarge { .. } => self.all.failures.reject(self.id, &why),
                        _ => retry_later(why),
                    });
                }
            };
            spans::patches(&mut span, &response);
            let last = step.facts().started.clone();
            // Dropped before the next await.
            let answered = {
                let outside = &mut StepContext {
                    at: now(),
                    trace: spans::trace_context(&span),
                    new_id: &mut new_id,
                    new_trace: spans::new_trace,
                    limit: engine.limit,
                };
                step.answer(&loaded.instance, response, outside)
            };
            match answered {
                Ok(Answered::ContinuedAsNew(next)) => {
                    step = *next;
                    if engine.signs() {
                        step.keep_scheduled_input(last.as_deref());
                    }
                    spans::end_continued(span);
                    span = spans::step_span(&engine.tracer, self.id, &mut step);
                }
                Ok(Answered::Done(outcome)) => {
                    let is_over = spans::record(&mut span, &outcome);
                    engine.count_tasks(&workflow, &outcome);
                    let ended = outcome
                        .facts()
                        .completed
                        .as_ref()
                        .map(|completed| completed.status());
                    let since = loaded.instance.first_at().or_else(|| outcome.facts().first_at);
                    let finished = self.finish(loaded, *outcome, budget).await;
                    // On failure the step is repeated and ends the span then.
                    if finished.is_ok() && is_over {
                        span.end();
                    }
                    engine.count(&workflow, ended.filter(|_| is_over), since, finished.is_ok());
                    return finished;
                }
                Err(error) => {
                    engine.metrics.execution(&workflow, Execution::Failed, None);
                    self.keep(loaded);
                    return Err(self.all.failures.reject(self.id, &error.to_string()));
                }
            }
        }
    }

    /// Sends the step to a worker. After losses the step is isolated from other suspects, as activities are.
    /// A step of the sidecar's own workflows runs here.
    async fn ask_worker(&self, workflow: &str, request: StepRequest) -> Result<WorkflowResponse, Cancelled> {
        if is_own(workflow) {
            return self.all.workers.run_own_step(&request.whole);
        }
        let losses = self.all.failures.losses_of(self.id);
        let _isolated = self.all.activity_failures.isolate_after(losses).await;
        self.all.workers.run_step(self.id, request, losses).await
    }

    /// The worker disconnected after the workflow continued as new: stores the new execution.
    async fn abandon(&mut self, mut loaded: Loaded, outcome: Outcome) -> Result<(), Status> {
        self.run_again(&loaded.instance).await?;
        let change = loaded.instance.commit(outcome);
        self.save(loaded, change).await
    }

    /// Stalls the instance visibly if its steps have lost too many workers. The step is retried at long
    /// intervals, because a fixed worker cannot be distinguished from the one that crashed.
    pub(crate) async fn stall_after(&mut self, losses: u32) -> Result<(), Status> {
        let limit = self
            .all
            .activity_failures
            .limit()
            .filter(|limit| losses >= *limit);
        let Some(limit) = limit else { return Ok(()) };
        let Some(mut loaded) = self.take().await? else {
            return Ok(());
        };
        let description = format!(
            "Workers lost: {limit} times in a row the worker's stream ended before it answered a step, so the workflow's code \
             may crash the app. See the app's log, and deploy a fixed version. The step is retried once a minute."
        );
        let known = loaded.instance.facts().stalled.as_ref();
        let is_known = known.is_some_and(|known| known.description.as_ref() == Some(&description));
        if is_known || loaded.instance.is_completed() {
            self.keep(loaded);
            return Ok(());
        }
        tracing::error!(target: LOG, "workflow '{}' is stalled: {description}", self.id);
        let stalled = ExecutionStalledEvent {
            // The contract has no reason for this; as with a missing version, other worker code is needed.
            reason: StalledReason::VersionNotAvailable.into(),
            description: Some(description),
        };
        let outcome = loaded.instance.stall(stalled, now());
        let change = loaded.instance.commit(outcome);
        self.save(loaded, change).await
    }

    /// Performs the worker's answer and stores the step.
    async fn finish(
        &mut self,
        mut loaded: Loaded,
        mut outcome: Outcome,
        budget: &RunBudget,
    ) -> Result<RunOutcome, Status> {
        if let Some(stalled) = outcome.stalled.clone() {
            let change = loaded.instance.commit(outcome);
            self.save(loaded, change).await?;
            self.entry.is_stalled = true;
            let why = stalled.description.unwrap_or_default();
            tracing::warn!(target: LOG, "workflow '{}' is stalled: {why}", self.id);
            return Err(stalled_status());
        }
        if outcome.runs_again {
            tracing::warn!(
                target: LOG,
                "workflow '{}' exceeded tight-loop continue-as-new limit of {MAX_RESTARTS} iterations: it continues \
                 after other workflows",
                self.id
            );
            self.abandon(loaded, outcome).await?;
            return Ok(RunOutcome::Completed);
        }
        let engine = Arc::clone(&self.all.engine);
        let set = engine.prepare_timers(self.id, &outcome).await;
        set.map_err(|error| self.all.failures.reject(self.id, error.message()))?;
        let attested = engine.attest_results(&mut outcome);
        attested.map_err(|error| self.all.failures.reject(self.id, error.message()))?;
        let due = loaded.instance.first_at().or_else(|| outcome.facts().first_at);
        let execution = (outcome.generation, outcome.facts().execution());
        let propagation = &outcome.propagation(&engine.app_id, &loaded.instance);
        let started = outcome.facts().started.clone();
        let workflow = started.as_ref().map_or("", |started| &started.event.name);
        let (started, sent) = tokio::join!(
            engine.start((self.id, workflow), execution, due, &outcome.tasks, propagation),
            engine.send(self.id, &outcome.messages, propagation),
        );
        let failed = started.and(sent);
        if let Some(why) = failed.why {
            if failed.only_remote && outcome.may_be_stored_in_part() {
                self.run_again(&loaded.instance).await?;
                let partly = outcome.without(&loaded.instance, &failed.causes);
                let change = loaded.instance.commit(partly);
                self.save(loaded, change).await?;
            } else {
                self.keep(loaded);
            }
            return Err(self.all.failures.reject(self.id, &why));
        }
        if outcome.wakes {
            self.run_again(&loaded.instance).await?;
        }
        self.entry
            .awaited
            .extend(outcome.tasks.iter().map(|task| task.event_id));
        if let Some(batch) = self.await_results(&loaded, &outcome, budget).await {
            self.commit_with_results(loaded, outcome, batch, budget).await?;
            return Ok(RunOutcome::EventsLeft);
        }
        // Early results are verified against their tasks when the instance is read again.
        let reads_again = outcome.wakes && engine.signs();
        let change = loaded.instance.commit(outcome);
        let ended = ended(&loaded.instance);
        let terminations = loaded.instance.cascade(now());
        self.save(loaded, change).await?;
        if reads_again {
            self.entry.loaded = None;
        }
        self.entry.stores_alone = false;
        // On failure the reminder is redelivered, and finds an ended instance with children to terminate.
        engine.terminate(self.id, &terminations).await?;
        if let Some(ended) = ended {
            self.complete(ended).await?;
        }
        Ok(RunOutcome::Completed)
    }

    async fn complete(&mut self, ended: Ended) -> Result<(), Status> {
        let engine = &self.all.engine;
        engine.retain(self.id, ended.status, ended.at).await?;
        if ended.has_timers {
            // Unneeded timers would fire after the workflow has ended.
            engine.forget_instance(self.id, ended.activities, false).await?;
            // Activities without reminders do not answer either.
            self.entry.awaited.clear();
        }
        tracing::debug!(target: LOG, "workflow '{}' has ended: {}", self.id, ended.status.as_str_name());
        Ok(())
    }
}

struct Ended {
    status: OrchestrationStatus,
    at: Option<Timestamp>,
    has_timers: bool,
    activities: Vec<String>,
}

fn ended(instance: &Instance) -> Option<Ended> {
    let facts = instance.facts();
    let completed = facts.completed.as_ref()?;
    Some(Ended {
        status: completed.status(),
        at: completed.at,
        has_timers: facts.open(Awaited::Timer).next().is_some(),
        activities: instance.activities(),
    })
}

/// The request of a step, for any worker and for the one that has this part of a history.
fn step_request(step: &Step, instance: &Instance, known: Option<KnownHistory>) -> StepRequest {
    let (execution, events) = (instance.execution_key(), instance.facts().len);
    let rest = known
        .filter(|known| known.execution == execution)
        .and_then(|known| Some((step.rest_of_request(instance, known.events)?, known)));
    StepRequest {
        whole: step.request(instance),
        history: (!step.is_restart()).then_some(KnownHistory { execution, events }),
        rest,
    }
}

/// The workflow name of a step.
fn workflow_name(step: &Step) -> String {
    let started = step.facts().started.as_ref();
    started.map_or_else(String::new, |started| started.event.name.clone())
}
