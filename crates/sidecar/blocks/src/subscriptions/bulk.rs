//! Bulk subscriptions: several events in one call of the app.
//!
//! The engine orders, attempts and retries each event separately. Attempts that start at about the same time
//! are collected here and sent together.

mod grpc;
mod http;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::future::join_all;
use outrigger_component::pubsub::Window;
use outrigger_delivery::Verdict;
use outrigger_offload::offload;
use outrigger_policy::resiliency::Outcome;
use outrigger_runtime::app::{AppChannel, AppError, Turn};
use outrigger_runtime::resilience::Attempt;
use outrigger_telemetry::trace::{Parent, Span};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::LOG;
use super::attempt::{self, DROPPED, failed, success};
use super::incoming::Incoming;
use super::metrics::{DROP, RETRY, SUCCESS, labels};
use super::spec::{AppSubscription, Bulk};
use super::target::{Target, timed_out};

/// Payload bytes at which a batch is sent without waiting for more.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Collects attempts into batches.
pub(super) struct Collector {
    bulk: Bulk,
    waiting: Mutex<OpenBatches>,
    /// Notified when no further event can arrive, so that open batches are complete.
    complete: Notify,
}

struct OpenBatches {
    /// By path.
    batches: HashMap<String, Batch>,
    next: u64,
    budget: EventBudget,
}

/// The engine's current and allowed number of events.
struct EventBudget {
    /// Most events in flight.
    limit: usize,
    /// Most unsettled events that the broker sends.
    window: Window,
    in_flight: usize,
    /// All unsettled events, including those in flight.
    unsettled: usize,
}

impl OpenBatches {
    /// Whether the open batches are complete, because no further event can arrive until one of them is
    /// settled. Either they hold all events that may be in flight, or the broker's window is full and they
    /// hold every event in flight.
    fn are_complete(&self) -> bool {
        let members = self.batches.values().map(|batch| batch.members.len());
        let (members, budget) = (members.sum::<usize>(), &self.budget);
        // Batches of one event wait too: the contract delivers them at the pace of the subscription.
        if budget.limit.min(budget.window.get()) <= 1 {
            return false;
        }
        let is_closed = budget.unsettled >= budget.window.get() && members >= budget.in_flight;
        members >= budget.limit || is_closed
    }
}

struct Batch {
    number: u64,
    members: Vec<Member>,
    /// Payload bytes of all members.
    bytes: usize,
}

struct Member {
    event: Arc<Incoming>,
    answer: oneshot::Sender<(Verdict, Outcome)>,
}

/// The part of an attempt in its batch.
enum BatchRole {
    /// Calls the app with these batches now.
    Call(Vec<Batch>),
    /// Opened the batch, and calls the app when the batch's wait is over.
    Lead(u64),
    /// Waits for the call of another attempt.
    Follow,
}

impl Collector {
    /// With `immediate`, each event is sent by itself, without a wait.
    pub(super) fn new(bulk: Bulk, immediate: bool) -> Self {
        let count = match immediate {
            true => 1,
            false => bulk.count,
        };
        Self {
            bulk: Bulk { count, ..bulk },
            waiting: Mutex::new(OpenBatches {
                batches: HashMap::new(),
                next: 0,
                budget: EventBudget {
                    limit: usize::MAX,
                    window: Window::default(),
                    in_flight: 0,
                    unsettled: 0,
                },
            }),
            complete: Notify::new(),
        }
    }

    /// Sets the limit of events in flight and the broker's window.
    pub(super) fn limit(&self, limit: usize, window: Window) {
        self.waiting().budget = EventBudget {
            limit,
            window,
            in_flight: 0,
            unsettled: 0,
        };
    }

    /// Updates the counts of events; sends batches that become complete.
    pub(super) fn observe(&self, in_flight: usize, unsettled: usize) {
        let mut waiting = self.waiting();
        (waiting.budget.in_flight, waiting.budget.unsettled) = (in_flight, unsettled);
        if !waiting.batches.is_empty() && waiting.are_complete() {
            self.complete.notify_waiters();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, OpenBatches> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn attempt(
        &self,
        target: &Target,
        app: &AppChannel,
        event: Arc<Incoming>,
        limit: Attempt,
        ending: &CancellationToken,
    ) -> (Verdict, Outcome) {
        let (answer, mut answered) = oneshot::channel();
        let path = event.path.clone();
        let (batches, mut turn) = match self.join(Member { event, answer }) {
            BatchRole::Call(batches) => (batches, None),
            BatchRole::Follow => (Vec::new(), None),
            BatchRole::Lead(number) => {
                tokio::select! {
                    // The batch was completed by others before the wait ended.
                    said = &mut answered => return said.unwrap_or_else(|_| abandoned()),
                    () = self.complete.notified() => {}
                    () = tokio::time::sleep(self.bulk.wait) => {}
                    () = ending.cancelled() => {}
                }
                // The batch keeps filling until the app accepts a call.
                let turn = tokio::select! {
                    said = &mut answered => return said.unwrap_or_else(|_| abandoned()),
                    turn = app.turn() => turn,
                };
                (self.take(&path, number).into_iter().collect(), Some(turn))
            }
        };
        let calls = batches
            .into_iter()
            .map(|batch| call(target, app, batch.members, limit, turn.take()));
        join_all(calls).await;
        // The batch is already being sent, so the permit is released.
        drop(turn);
        answered.await.unwrap_or_else(|_| abandoned())
    }

    fn join(&self, member: Member) -> BatchRole {
        let mut waiting = self.waiting();
        let number = waiting.next;
        let path = member.event.path.clone();
        let batch = waiting.batches.entry(path.clone()).or_insert_with(|| Batch {
            number,
            members: Vec::new(),
            bytes: 0,
        });
        batch.bytes += member.event.payload.len();
        batch.members.push(member);
        // Further events stay at the broker.
        let is_whole = batch.members.len() >= self.bulk.count || batch.bytes >= MAX_BATCH_BYTES;
        let own = batch.number == number;
        if own {
            waiting.next += 1;
        }
        if is_whole && let Some(batch) = waiting.batches.remove(&path) {
            return BatchRole::Call(vec![batch]);
        }
        if waiting.are_complete() {
            return BatchRole::Call(waiting.batches.drain().map(|(_, batch)| batch).collect());
        }
        if own {
            BatchRole::Lead(number)
        } else {
            BatchRole::Follow
        }
    }

    /// Takes the batch with this number, unless it is already being sent.
    fn take(&self, path: &str, number: u64) -> Option<Batch> {
        let mut waiting = self.waiting();
        let is_it = waiting
            .batches
            .get(path)
            .is_some_and(|batch| batch.number == number);
        is_it.then(|| waiting.batches.remove(path)).flatten()
    }
}

fn abandoned() -> (Verdict, Outcome) {
    failed("the bulk was abandoned", None)
}

/// Sends a batch to the app, and passes each attempt its result. The attempt's timeout starts with its
/// permit.
async fn call(
    target: &Target,
    app: &AppChannel,
    members: Vec<Member>,
    limit: Attempt,
    turn: Option<Result<Turn, AppError>>,
) {
    let turn = match turn {
        Some(turn) => turn,
        None => app.turn().await,
    };
    let mut entries: Vec<Entry> = members
        .iter()
        .map(|member| Entry {
            id: uuid::Uuid::new_v4().to_string(),
            span: target.span(&member.event),
            event: Arc::clone(&member.event),
        })
        .collect();
    let Some(first) = entries.first() else { return };
    let topic = Arc::clone(&first.event.topic);
    let started = Instant::now();
    let trace = trace(target, &entries).unwrap_or_default();
    let asked = async {
        match turn {
            Ok(turn) if app.is_grpc() => grpc::call(target, app, &entries, &trace, &turn).await,
            Ok(turn) => http::call(target, app, &entries, trace, turn).await,
            Err(error) => BulkResponse::unsent(&error),
        }
    };
    let answers = limit.within(pin!(asked)).await;
    let mut seen = [(SUCCESS, false), (RETRY, false), (DROP, false)];
    for (member, entry) in members.into_iter().zip(&mut entries) {
        let (verdict, outcome) = match &answers {
            None => timed_out(),
            Some(answers) => answers.of(&entry.id),
        };
        entry.end_span(answers.as_ref(), &verdict);
        let [status, _] = labels(&verdict);
        for ([known, _], is_seen) in &mut seen {
            *is_seen |= *known == status;
        }
        // The engine has cancelled the attempt.
        let _gone = member.answer.send((verdict, outcome));
    }
    for (labels, is_seen) in seen {
        if is_seen {
            target.metrics().bulk(&topic, labels, started.elapsed());
        }
    }
}

/// The trace of a bulk call: that of the first event with one.
fn trace(target: &Target, entries: &[Entry]) -> Option<Parent> {
    let naming = entries.iter().find(|entry| entry.event.names_trace);
    match naming.filter(|_| !target.wanted.raw) {
        Some(entry) => Some(entry.event.app_trace(entry.span.as_parent())),
        None => Some(entries.first()?.span.as_parent().without_made_up()),
    }
}

struct Entry {
    id: String,
    event: Arc<Incoming>,
    /// The span of this event's delivery.
    span: Span,
}

impl Entry {
    /// Records the outcome of the event.
    fn end_span(&mut self, answers: Option<&BulkResponse>, verdict: &Verdict) {
        let status = answers.and_then(|answers| answers.http);
        if let Some(status) = status {
            self.span.http_status(status);
        }
        if status.is_none_or(|status| status < 400) {
            attempt::note(&mut self.span, verdict);
        }
    }
}

/// The app's response to a bulk.
struct BulkResponse {
    /// The HTTP status, for an HTTP app.
    http: Option<u16>,
    statuses: Statuses,
}

enum Statuses {
    /// The same result for all entries.
    All(Verdict, Outcome),
    /// By entry id.
    Each(HashMap<String, (Verdict, Outcome)>),
}

impl BulkResponse {
    fn all((verdict, outcome): (Verdict, Outcome)) -> Self {
        Self {
            http: None,
            statuses: Statuses::All(verdict, outcome),
        }
    }

    /// The call did not reach the app.
    fn unsent(error: &AppError) -> Self {
        let text = format!("error returned from app channel while sending pub/sub event to app: {error}");
        Self::all(failed(text, None))
    }

    fn each(said: impl Iterator<Item = (String, (Verdict, Outcome))>) -> Self {
        Self {
            http: None,
            statuses: Statuses::Each(said.collect()),
        }
    }

    /// The result of entry `id`.
    fn of(&self, id: &str) -> (Verdict, Outcome) {
        match &self.statuses {
            Statuses::All(verdict, outcome) => (verdict.clone(), *outcome),
            Statuses::Each(statuses) => statuses.get(id).cloned().unwrap_or_else(|| {
                let text = format!(
                    "response not received, RETRY required while processing bulk subscribe event for entry id: {id}"
                );
                failed(text, None)
            }),
        }
    }
}

/// An event and its id in the bulk.
type IdentifiedEvent = (String, Arc<Incoming>);

/// Serialises the request; off the serving thread if it is large.
async fn written<T: Send + 'static>(
    wanted: &Arc<AppSubscription>,
    entries: &[Entry],
    write: impl FnOnce(&AppSubscription, &[IdentifiedEvent]) -> T + Send + 'static,
) -> T {
    let shown = entries
        .iter()
        .map(|entry| (entry.id.clone(), Arc::clone(&entry.event)));
    let shown: Vec<IdentifiedEvent> = shown.collect();
    let size = shown.iter().map(|(_, event)| event.data.len()).sum();
    let wanted = Arc::clone(wanted);
    offload(size, move || write(&wanted, &shown)).await
}

fn dropped(entry: &str) -> (Verdict, Outcome) {
    tracing::warn!(
        target: LOG,
        "DROP status returned from app while processing pub/sub event with entry {entry}"
    );
    success(DROPPED)
}

#[cfg(test)]
mod tests;
