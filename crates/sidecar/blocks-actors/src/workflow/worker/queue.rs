//! The queue of work items: workflow steps and activity runs. Each item goes to one worker stream, and its
//! caller waits until the worker answers or the stream ends.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use outrigger_accept::budget::{HeldPayload, Payloads};
use outrigger_wire::durabletask::{ActivityResponse, WorkflowResponse};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

use super::error::{Cancelled, MAX_WORK};
use super::histories::{KnownHistory, StatefulStream, StatefulStreams, StepRequest};
use super::item::{Item, Task};

/// Divisor: the share of the memory budget for steps, and for activities.
const MEMORY_PART: usize = 2;
/// Withdrawn items that may remain in `order` beyond the number of queued ones.
const SLACK: usize = 64;

/// Maximum work in progress at workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Workflow steps; `None` is unlimited.
    pub(crate) steps: Option<usize>,
    /// Activities; `None` is unlimited.
    pub(crate) activities: Option<usize>,
}

/// Progress of a work item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Held back: the maximum is in progress at workers.
    Limit(usize),
    /// Queued.
    Untaken,
    /// Sent to a worker at this time, not answered.
    Sent(SystemTime),
}

/// Matches a worker's answer, as in the contract: the instance and the activity's number (`None`: the step).
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) instance: Arc<str>,
    task: Option<i32>,
}

impl Key {
    pub(super) fn new(instance: &str, task: Option<i32>) -> Self {
        let instance = Arc::from(instance);
        Self { instance, task }
    }
}

/// A worker's answer.
enum WorkerResponse {
    Step(WorkflowResponse),
    Activity(ActivityResponse),
}

/// Work with its token.
struct Queued {
    work: Work,
    token: String,
}

/// Work to send.
enum Work {
    Step(StepRequest),
    /// An encoded `ActivityRequest`.
    Activity(Bytes),
}

impl Queued {
    /// The item for a stream.
    fn item(self, instance: &Arc<str>, stream: Option<&mut StatefulStream>) -> Item {
        let task = match (self.work, stream) {
            (Work::Step(step), Some(stream)) => Task::Step(stream.request(instance, step)),
            (Work::Step(step), None) => Task::Step(step.whole),
            (Work::Activity(activity), _) => Task::Activity(activity),
        };
        let token = self.token;
        Item { task, token }
    }
}

enum Stage {
    /// Held back by the limit.
    Limited,
    /// Queued for a stream.
    Queued(Queued),
    /// Sent on this stream at this time.
    Sent(u64, SystemTime),
}

/// A work item, from its request until its caller is answered or gives up.
struct WorkItem {
    number: u64,
    stage: Stage,
    /// A later item with its key was queued: an answer without a token is for that one.
    is_superseded: bool,
    answer: oneshot::Sender<Result<WorkerResponse, Cancelled>>,
    /// Losses in a row of the instance's steps; 0 for an activity.
    step_losses: u32,
}

/// The item that an answer without a token is for.
fn current(items: &[WorkItem]) -> Option<&WorkItem> {
    let is_limited = |item: &WorkItem| matches!(item.stage, Stage::Limited);
    items.iter().find(|item| !item.is_superseded && !is_limited(item))
}

fn progress(items: &[WorkItem], limit: Option<usize>) -> Option<Progress> {
    match current(items).map(|item| &item.stage) {
        Some(Stage::Sent(_, at)) => Some(Progress::Sent(*at)),
        Some(_) => Some(Progress::Untaken),
        None => {
            let is_limited = items.iter().any(|item| matches!(item.stage, Stage::Limited));
            limit.filter(|_| is_limited).map(Progress::Limit)
        }
    }
}

#[derive(Default)]
struct State {
    /// Last number given to an item or stream.
    last: u64,
    /// Mostly one per key: a repeated step requests its activities again while workers still run the first
    /// ones.
    items: HashMap<Key, Vec<WorkItem>>,
    /// Number of waiting callers, including answered ones.
    wanted: usize,
    /// Queue order, including some withdrawn items.
    order: VecDeque<(u64, Key)>,
    /// The queues of streams that keep histories.
    stateful: StatefulStreams,
    /// Number of queued items.
    queued: usize,
    ended: bool,
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn find(&mut self, key: &Key, number: u64) -> Option<&mut WorkItem> {
        let items = self.items.get_mut(key)?;
        items.iter_mut().find(|item| item.number == number)
    }

    /// Returns whether the item is for any stream.
    fn enqueue(&mut self, key: &Key, number: u64, queued: Queued) -> bool {
        for earlier in self.items.get_mut(key).into_iter().flatten() {
            earlier.is_superseded |= !matches!(earlier.stage, Stage::Limited);
        }
        let is_step = matches!(queued.work, Work::Step(_));
        if let Some(limited) = self.find(key, number) {
            limited.stage = Stage::Queued(queued);
        }
        self.queued += 1;
        let is_owned = is_step && self.stateful.enqueue(number, key);
        if !is_owned {
            self.order.push_back((number, key.clone()));
        }
        !is_owned
    }

    /// Removes an item in any state.
    fn take(&mut self, key: &Key, number: u64) -> Option<WorkItem> {
        let items = self.items.get_mut(key)?;
        let at = items.iter().position(|item| item.number == number)?;
        let item = items.swap_remove(at);
        if items.is_empty() {
            self.items.remove(key);
        }
        if matches!(item.stage, Stage::Queued(_)) {
            self.queued -= 1;
            self.stateful.withdraw(number);
            // Amortized: each compaction removes as many withdrawn items as it visits.
            if self.order.len() > 2 * self.queued + SLACK {
                let items = &self.items;
                let is_known = |(number, key): &(u64, Key)| {
                    let mut items = items.get(key).into_iter().flatten();
                    items.any(|item| item.number == *number)
                };
                self.order.retain(is_known);
            }
        }
        Some(item)
    }

    /// Takes the next item for a stream.
    fn send(&mut self, stream: u64) -> Option<Item> {
        loop {
            let own = self.stateful.0.get_mut(&stream);
            let own = own.and_then(|own| own.queued.pop_front());
            let (number, key) = own.or_else(|| self.order.pop_front())?;
            let sent = Stage::Sent(stream, SystemTime::now());
            let stage = self
                .find(&key, number)
                .map(|item| std::mem::replace(&mut item.stage, sent));
            if let Some(Stage::Queued(queued)) = stage {
                self.queued -= 1;
                let stream = self.stateful.0.get_mut(&stream);
                return Some(queued.item(&key.instance, stream));
            }
        }
    }
}

/// The work queue of an app, and its worker streams.
pub(crate) struct WorkQueue {
    /// Prefix of its tokens, unique across all processes of the app.
    origin: String,
    state: Mutex<State>,
    /// Notified when items are queued.
    arrived: Notify,
    limits: Limits,
    step_memory: Arc<Payloads>,
    /// Separate from steps, which must not wait for long activities that may themselves wait for steps.
    activity_memory: Arc<Payloads>,
    step_permits: Option<Semaphore>,
    activity_permits: Option<Semaphore>,
    streams: AtomicUsize,
}

impl WorkQueue {
    /// An empty queue.
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Self::within(limits, || Payloads::part(MEMORY_PART))
    }

    fn within(limits: Limits, memory: impl Fn() -> Arc<Payloads>) -> Arc<Self> {
        Arc::new(Self {
            origin: format!("{:016x}-", rand::random::<u64>()),
            state: Mutex::default(),
            arrived: Notify::new(),
            limits,
            step_memory: memory(),
            activity_memory: memory(),
            step_permits: limits.steps.map(Semaphore::new),
            activity_permits: limits.activities.map(Semaphore::new),
            streams: AtomicUsize::new(0),
        })
    }

    /// The history of an instance that the worker has which will get its next step.
    pub(crate) fn known(&self, instance: &str) -> Option<KnownHistory> {
        self.locked().stateful.known(instance)
    }

    /// Sends a step to a worker and waits for the answer. `losses`: the instance's losses in a row. Dropping the future withdraws the work. `remote` runs
    /// concurrently, and may return the answer or give up.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_step(
        &self,
        instance: &str,
        request: StepRequest,
        losses: u32,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<WorkflowResponse, Cancelled> {
        let _memory = hold(&self.step_memory, request.size())?;
        let (key, work) = (Key::new(instance, None), Work::Step(request));
        match self
            .run(key, work, losses, self.step_permits.as_ref(), remote)
            .await?
        {
            WorkerResponse::Step(response) => Ok(response),
            // Steps and activities have different keys.
            WorkerResponse::Activity(_) => Err(Cancelled::Disconnected),
        }
    }

    /// As [`WorkQueue::run_step`], for an activity: an encoded `ActivityRequest`.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(crate) async fn run_activity(
        &self,
        instance: &str,
        task: i32,
        request: Bytes,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<ActivityResponse, Cancelled> {
        let _memory = hold(&self.activity_memory, request.len())?;
        let (key, work) = (Key::new(instance, Some(task)), Work::Activity(request));
        match self
            .run(key, work, 0, self.activity_permits.as_ref(), remote)
            .await?
        {
            WorkerResponse::Activity(response) => Ok(response),
            WorkerResponse::Step(_) => Err(Cancelled::Disconnected),
        }
    }

    /// Waits for a place under the limit of activities, if there is one.
    pub(crate) async fn activity_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.activity_permits.as_ref()?.acquire().await.ok()
    }

    /// Checks the memory for a step.
    ///
    /// # Errors
    /// [`Cancelled::TooLargeTogether`].
    pub(crate) fn has_memory(&self) -> Result<(), Cancelled> {
        let memory = &self.step_memory;
        let has_room = memory.has_room().then_some(());
        has_room.ok_or_else(|| Cancelled::TooLargeTogether(memory.most()))
    }

    async fn run(
        &self,
        key: Key,
        work: Work,
        step_losses: u32,
        permits: Option<&Semaphore>,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<WorkerResponse, Cancelled> {
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut state = self.locked();
            if state.ended {
                return Err(Cancelled::Ended);
            }
            if state.wanted >= MAX_WORK {
                return Err(Cancelled::TooMuch);
            }
            state.wanted += 1;
            let number = state.number();
            state.items.entry(key.clone()).or_default().push(WorkItem {
                number,
                stage: Stage::Limited,
                is_superseded: false,
                answer,
                step_losses,
            });
            number
        };
        let mut ticket = Ticket {
            queue: self,
            key,
            number,
            _permit: None,
        };
        if let Some(permits) = permits {
            // The semaphore is never closed.
            let permit = permits.acquire().await.map_err(|_| Cancelled::Ended)?;
            ticket._permit = Some(permit);
        }
        let is_shared = {
            let mut state = self.locked();
            if state.ended {
                return Err(Cancelled::Ended);
            }
            // An answer with this token is for this item, not for a later one of the key.
            let token = format!("{}{number}", self.origin);
            state.enqueue(&ticket.key, number, Queued { work, token })
        };
        if is_shared {
            self.arrived.notify_one();
        }
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or(Err(Cancelled::Disconnected)),
            cancelled = remote => Err(cancelled),
        }
    }

    /// Whether a token was issued by this queue.
    pub(crate) fn is_own(&self, token: &str) -> bool {
        token.starts_with(&self.origin)
    }

    /// Handles a worker's answer to a step; returned if no item waits for it.
    pub(crate) fn step_done(&self, response: WorkflowResponse) -> Option<WorkflowResponse> {
        let key = Key::new(&response.instance_id, None);
        let Some(item) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        // Fails if the caller gave up.
        let _gone = item.answer.send(Ok(WorkerResponse::Step(response)));
        None
    }

    /// Rejects a worker's answer to a step; returns whether an item waited for it.
    pub(crate) fn reject_step(&self, instance: &str, token: &str, why: Cancelled) -> bool {
        let item = self.answered(&Key::new(instance, None), token);
        item.is_some_and(|item| item.answer.send(Err(why)).is_ok())
    }

    /// Handles a worker's answer to an activity; returned if no item waits for it.
    pub(crate) fn activity_done(&self, response: ActivityResponse) -> Option<ActivityResponse> {
        let key = Key::new(&response.instance_id, Some(response.task_id));
        let Some(item) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        let _gone = item.answer.send(Ok(WorkerResponse::Activity(response)));
        None
    }

    /// Removes the item that an answer is for; unsent items do not match.
    fn answered(&self, key: &Key, token: &str) -> Option<WorkItem> {
        let mut state = self.locked();
        let number = match token {
            "" => current(state.items.get(key)?)?.number,
            token => token.strip_prefix(&self.origin)?.parse().ok()?,
        };
        let is_sent = matches!(state.find(key, number)?.stage, Stage::Sent(..));
        is_sent.then(|| state.take(key, number)).flatten()
    }

    /// Progress of an instance's step; `None` if none is pending here.
    pub(crate) fn step_progress(&self, instance: &str) -> Option<Progress> {
        let state = self.locked();
        progress(state.items.get(&Key::new(instance, None))?, self.limits.steps)
    }

    /// Progress of an activity; `None` if it is not pending here.
    pub(crate) fn activity_progress(&self, instance: &str, task: i32) -> Option<Progress> {
        let state = self.locked();
        let items = state.items.get(&Key::new(instance, Some(task)))?;
        progress(items, self.limits.activities)
    }

    /// Up to `most` pending items: instance, activity (`None`: step) and progress.
    pub(crate) fn wanted(&self, most: usize) -> Vec<(String, Option<i32>, Progress)> {
        let state = self.locked();
        let wanted = state.items.iter().filter_map(|(key, items)| {
            let limit = match key.task {
                None => self.limits.steps,
                Some(_) => self.limits.activities,
            };
            Some((key.instance.to_string(), key.task, progress(items, limit)?))
        });
        let mut wanted: Vec<_> = wanted.take(most).collect();
        drop(state);
        wanted.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        wanted
    }

    /// Items that are queued or held back.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.locked();
        let items = state.items.values().flatten();
        items
            .filter(|item| !matches!(item.stage, Stage::Sent(..)))
            .count()
    }

    /// Opens a stream; returns its number. `is_stateful`: its worker keeps histories.
    pub(super) fn open_stream(&self, is_stateful: bool) -> u64 {
        self.streams.fetch_add(1, Ordering::AcqRel);
        let mut state = self.locked();
        let number = state.number();
        if is_stateful {
            state.stateful.0.insert(number, StatefulStream::default());
        }
        number
    }

    /// Number of open streams.
    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Acquire)
    }

    /// Waits for the next item of a stream.
    pub(super) async fn next(&self, stream: u64) -> Item {
        let own = self
            .locked()
            .stateful
            .0
            .get(&stream)
            .map(|own| Arc::clone(&own.arrived));
        loop {
            let arrived = self.arrived.notified();
            let (item, has_more) = {
                let mut state = self.locked();
                (state.send(stream), !state.order.is_empty())
            };
            if has_more {
                // Notifications of several items may have been merged.
                self.arrived.notify_one();
            }
            match item {
                Some(item) => return item,
                None => match &own {
                    Some(own) => tokio::select! {
                        () = arrived => {}
                        () = own.notified() => {}
                    },
                    None => arrived.await,
                },
            }
        }
    }

    /// Closes a stream and cancels its unanswered items.
    pub(super) fn close_stream(&self, stream: u64) {
        self.streams.fetch_sub(1, Ordering::AcqRel);
        let mut lost = Vec::new();
        {
            let mut state = self.locked();
            // Any stream may take the steps that waited for this one.
            let unsent = state.stateful.0.remove(&stream);
            state
                .order
                .extend(unsent.into_iter().flat_map(|stream| stream.queued));
            let is_lost = |item: &WorkItem| matches!(item.stage, Stage::Sent(sent, _) if sent == stream);
            state.items.retain(|key, items| {
                let of_key = items.extract_if(.., |item| is_lost(item));
                lost.extend(of_key.map(|item| (key.task, item)));
                !items.is_empty()
            });
        }
        let losses = lost
            .iter()
            .map(|(_, item)| item.step_losses)
            .max()
            .unwrap_or_default();
        for (task, item) in lost {
            let why = match task {
                // An activity that ran alongside a suspect is not blamed.
                Some(_) if losses > 0 => Cancelled::DisconnectedWithSuspect { losses },
                _ => Cancelled::Disconnected,
            };
            let _gone = item.answer.send(Err(why));
        }
        // Passes on a notification that this stream did not use.
        self.arrived.notify_one();
    }

    /// Cancels all work and closes the queue.
    pub(crate) fn end(&self) {
        let items = {
            let mut state = self.locked();
            state.ended = true;
            state.order.clear();
            state.stateful = StatefulStreams::default();
            state.queued = 0;
            std::mem::take(&mut state.items)
        };
        for item in items.into_values().flatten() {
            let _gone = item.answer.send(Err(Cancelled::Ended));
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserves about twice the bytes of an item: the instance's copy and the sent one.
fn hold(memory: &Arc<Payloads>, bytes: usize) -> Result<HeldPayload, Cancelled> {
    let held = memory.try_hold(bytes.saturating_mul(2));
    held.ok_or_else(|| Cancelled::TooLargeTogether(memory.most()))
}

/// A waiting caller. Dropping it withdraws the item before its permit is released.
struct Ticket<'a> {
    queue: &'a WorkQueue,
    key: Key,
    number: u64,
    _permit: Option<SemaphorePermit<'a>>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.locked();
        state.wanted -= 1;
        state.take(&self.key, self.number);
    }
}

#[cfg(test)]
mod tests;
