//! Several events in one call of the app.
//!
//! The engine decides over each event by itself: its order, its attempts, its retries. Attempts that begin at about the
//! same time wait for each other here, and go to the app together.

mod grpc;
mod http;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::future::join_all;
use outrigger_component::offload::offload;
use outrigger_component::pubsub::Window;
use outrigger_delivery::Verdict;
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

/// Payloads of a batch, bytes, from which on it does not wait for more.
const MAX_BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Attempts that wait for company.
pub(super) struct Collector {
    bulk: Bulk,
    waiting: Mutex<OpenBatches>,
    /// Bulks are complete as nothing else can come.
    complete: Notify,
}

struct OpenBatches {
    /// By path.
    batches: HashMap<String, Batch>,
    next: u64,
    budget: EventBudget,
}

/// How many events the engine has, and how many it may have.
struct EventBudget {
    /// Events that may be under way at once.
    limit: usize,
    /// What the broker sends before it hears of one.
    window: Window,
    in_flight: usize,
    /// In all, those in flight included.
    unsettled: usize,
}

impl OpenBatches {
    /// Whether none of the bulks has company to wait for, because no other event can come before one of them is done: they
    /// have all that may be under way between them, or the broker waits for their outcome, and so does whatever else is here.
    fn are_complete(&self) -> bool {
        let members = self.batches.values().map(|batch| batch.members.len());
        let (members, budget) = (members.sum::<usize>(), &self.budget);
        let is_closed = budget.unsettled >= budget.window.get() && members >= budget.in_flight;
        members >= budget.limit || is_closed
    }
}

struct Batch {
    number: u64,
    members: Vec<Member>,
    /// Of the payloads of all members.
    bytes: usize,
}

struct Member {
    event: Arc<Incoming>,
    answer: oneshot::Sender<(Verdict, Outcome)>,
}

/// What an attempt has to do for its batch.
enum BatchRole {
    /// It makes these calls now.
    Call(Vec<Batch>),
    /// It was the first, and makes the call when the others had their time.
    Lead(u64),
    /// Another makes the call.
    Follow,
}

impl Collector {
    pub(super) fn new(bulk: Bulk) -> Self {
        Self {
            bulk,
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

    /// No more than `limit` events are under way at once, and the broker has this window.
    pub(super) fn limit(&self, limit: usize, window: Window) {
        self.waiting().budget = EventBudget {
            limit,
            window,
            in_flight: 0,
            unsettled: 0,
        };
    }

    /// The events that are in flight now, and those unsettled in all. Bulks that have become complete by that go to the app.
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
                    // Its batch was complete before its time was up.
                    said = &mut answered => return said.unwrap_or_else(|_| given_up()),
                    () = self.complete.notified() => {}
                    () = tokio::time::sleep(self.bulk.wait) => {}
                    () = ending.cancelled() => {}
                }
                // It goes on filling until the app takes a call.
                let turn = tokio::select! {
                    said = &mut answered => return said.unwrap_or_else(|_| given_up()),
                    turn = app.turn() => turn,
                };
                (self.take(&path, number).into_iter().collect(), Some(turn))
            }
        };
        let calls = batches
            .into_iter()
            .map(|batch| call(target, app, batch.members, limit, turn.take()));
        join_all(calls).await;
        // Nothing is to be called: its batch is under way.
        drop(turn);
        answered.await.unwrap_or_else(|_| given_up())
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
        // The broker keeps what would make it larger.
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

    /// The batch with this number, unless it is under way already.
    fn take(&self, path: &str, number: u64) -> Option<Batch> {
        let mut waiting = self.waiting();
        let is_it = waiting
            .batches
            .get(path)
            .is_some_and(|batch| batch.number == number);
        is_it.then(|| waiting.batches.remove(path)).flatten()
    }
}

fn given_up() -> (Verdict, Outcome) {
    failed("the bulk was abandoned", None)
}

/// Hands a batch to the app, and tells each attempt what came of its event. The time of the attempt begins with its turn.
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
        // The engine gave the attempt up.
        let _gone = member.answer.send((verdict, outcome));
    }
    for (labels, is_seen) in seen {
        if is_seen {
            target.metrics().bulk(&topic, labels, started.elapsed());
        }
    }
}

/// The trace that the app gets with a bulk: that of the first event that names one.
fn trace(target: &Target, entries: &[Entry]) -> Option<Parent> {
    let naming = entries.iter().find(|entry| entry.event.names_trace);
    match naming.filter(|_| !target.wanted.raw) {
        Some(entry) => Some(entry.event.told_trace(entry.span.as_parent())),
        None => Some(entries.first()?.span.as_parent().without_made_up()),
    }
}

struct Entry {
    id: String,
    event: Arc<Incoming>,
    /// Of the delivery of this event.
    span: Span,
}

impl Entry {
    /// Notes what came of the event.
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

/// What the app says about a bulk.
struct BulkResponse {
    /// The status of its answer, over HTTP.
    http: Option<u16>,
    statuses: Statuses,
}

enum Statuses {
    /// The same about all its entries.
    All(Verdict, Outcome),
    /// By the entry's id.
    Each(HashMap<String, (Verdict, Outcome)>),
}

impl BulkResponse {
    fn all((verdict, outcome): (Verdict, Outcome)) -> Self {
        Self {
            http: None,
            statuses: Statuses::All(verdict, outcome),
        }
    }

    /// The app did not get it.
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

    /// What it says about the entry `id`.
    fn of(&self, id: &str) -> (Verdict, Outcome) {
        match &self.statuses {
            Statuses::All(verdict, outcome) => (verdict.clone(), *outcome),
            Statuses::Each(statuses) => statuses
                .get(id)
                .cloned()
                .unwrap_or_else(|| failed("the app's answer has no status for it", None)),
        }
    }
}

/// An event and its id in the bulk.
type Shown = (String, Arc<Incoming>);

/// What the app gets, written where it keeps nobody waiting.
async fn written<T: Send + 'static>(
    wanted: &Arc<AppSubscription>,
    entries: &[Entry],
    write: impl FnOnce(&AppSubscription, &[Shown]) -> T + Send + 'static,
) -> T {
    let shown = entries
        .iter()
        .map(|entry| (entry.id.clone(), Arc::clone(&entry.event)));
    let shown: Vec<Shown> = shown.collect();
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
