//! Work for the workers of the app: turns of workflows and runs of activities, each given to one of the streams that the
//! workers have open, and waited for until the worker answers or its stream ends.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use outrigger_accept::budget::{self, HeldPayload, Payloads};
use outrigger_wire::durabletask::{ActivityRequest, ActivityResponse, OrchestratorResponse};
use tokio::sync::{Notify, Semaphore, oneshot};

use super::item::{Item, Task};

mod answers;
mod permits;
pub use permits::Progress;

/// Work that waits or is with workers, at most; what comes beyond is refused, and comes again with its reminder.
pub const MAX_WORK: usize = 1 << 16;
/// The part of the memory budget for the turns, and for the inputs of the activities, one in so many.
const MEMORY_PART: usize = 2;
/// Pieces that were withdrawn and are still in the row of those that wait, beyond as many as wait.
const SLACK: usize = 64;

/// The work was not done: the stream of its worker ended, there is too much of it, its answer got lost, or the sidecar ends.
/// It is to be tried again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cancelled {
    /// The stream that the work was sent on ended before the worker answered.
    #[error("the worker that had it disconnected")]
    Disconnected,
    /// The same, and the worker had a turn too of an instance whose turns have lost their worker before.
    #[error("the worker that had it disconnected; a workflow that the worker had too may be the cause")]
    DisconnectedWithSuspect {
        /// How often in a row that had happened.
        losses: u32,
    },
    /// More work than is kept.
    #[error("{MAX_WORK} work items wait for workers already; start more workers, or limit what is started")]
    TooMuch,
    /// The same, in bytes.
    #[error(
        "the work items of workers hold as many bytes as they may, {0}; start more workers, pass less data, or raise {name}",
        name = budget::VARIABLE
    )]
    TooLargeTogether(usize),
    /// The worker's answer was larger than a message may be.
    #[error(
        "the worker's answer has {size} bytes, which exceeds the {limit} bytes that a message may have; increase daprd \
         --max-body-size, or pass less data"
    )]
    TooLarge {
        /// Bytes of the answer.
        size: usize,
        /// Bytes that it may have.
        limit: usize,
    },
    /// The answer may have reached another sidecar of the app, and got lost on the way from there.
    #[error("its answer may have been lost on the way from another sidecar of the app")]
    Lost,
    /// The sidecar ends.
    #[error("the sidecar ends")]
    Ended,
}

/// How much may be with workers at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Turns of workflows; `None` = no limit.
    pub steps: Option<usize>,
    /// Activities; `None` = no limit.
    pub activities: Option<usize>,
}

/// What a worker's answer is matched by, as the contract has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Step(String),
    Activity(String, i32),
}

/// What a worker answered.
enum WorkerResponse {
    Step(OrchestratorResponse),
    Activity(ActivityResponse),
}

/// A piece of work, from when somebody waits for it to when nobody does any more.
struct PendingWork {
    key: Key,
    /// What is sent; `None` once it was.
    item: Option<Item>,
    answer: oneshot::Sender<Result<WorkerResponse, Cancelled>>,
    /// The stream that it was sent on, and when.
    sent: Option<(u64, SystemTime)>,
    /// How many turns of the instance in a row have lost their worker; 0 of an activity.
    step_losses: u32,
}

#[derive(Default)]
struct Work {
    /// Of the next piece, and of the next stream.
    next: u64,
    pieces: HashMap<u64, PendingWork>,
    /// All who want work done, those too who wait until more may be with workers.
    wanted: usize,
    /// How many wait until more may be with workers.
    held: HashMap<Key, usize>,
    /// The latest piece of each key: the one that an answer without a token is for.
    by_key: HashMap<Key, u64>,
    /// Pieces that no stream has taken, in the order in which they came, and some that were withdrawn.
    waiting: VecDeque<u64>,
    /// How many of them were not withdrawn.
    unsent: usize,
    ended: bool,
}

impl Work {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes a piece out, wherever it is.
    fn take(&mut self, number: u64) -> Option<PendingWork> {
        let piece = self.pieces.remove(&number)?;
        if self.by_key.get(&piece.key) == Some(&number) {
            self.by_key.remove(&piece.key);
        }
        if piece.item.is_some() {
            self.unsent -= 1;
            // Each look at all of them is paid for by as many that were withdrawn.
            if self.waiting.len() > 2 * self.unsent + SLACK {
                let pieces = &self.pieces;
                self.waiting.retain(|waiting| pieces.contains_key(waiting));
            }
        }
        Some(piece)
    }

    /// Takes out what the stream is to send next.
    fn send(&mut self, stream: u64) -> Option<Item> {
        loop {
            let number = self.waiting.pop_front()?;
            if let Some(piece) = self.pieces.get_mut(&number) {
                self.unsent -= 1;
                piece.sent = Some((stream, SystemTime::now()));
                return piece.item.take();
            }
        }
    }
}

/// The work of one app, and the streams of its workers.
pub struct WorkQueue {
    /// What its tokens begin with: no other queue of the app, in whatever process, has the same.
    origin: String,
    work: Mutex<Work>,
    /// There is work that no stream has taken.
    arrived: Notify,
    limits: Limits,
    step_memory: Arc<Payloads>,
    /// For itself: turns do not wait for activities, which may take hours and may wait for turns.
    activity_memory: Arc<Payloads>,
    steps: Option<Semaphore>,
    activities: Option<Semaphore>,
    streams: AtomicUsize,
}

impl WorkQueue {
    /// Without work.
    pub fn new(limits: Limits) -> Arc<Self> {
        Self::within(limits, || Payloads::part(MEMORY_PART))
    }

    fn within(limits: Limits, memory: impl Fn() -> Arc<Payloads>) -> Arc<Self> {
        Arc::new(Self {
            origin: format!("{:016x}-", rand::random::<u64>()),
            work: Mutex::default(),
            arrived: Notify::new(),
            limits,
            step_memory: memory(),
            activity_memory: memory(),
            steps: limits.steps.map(Semaphore::new),
            activities: limits.activities.map(Semaphore::new),
            streams: AtomicUsize::new(0),
        })
    }

    /// Has a worker run a turn of an instance: an `OrchestratorRequest`, encoded, in pieces. `losses`: how many turns of it in a
    /// row have lost their worker. Dropping the future withdraws the work. While it is wanted `remote` runs, which may bring the
    /// answer, or give up.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub async fn run_step(
        &self,
        instance: &str,
        request: Vec<Bytes>,
        losses: u32,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<OrchestratorResponse, Cancelled> {
        let _wanted = self.want()?;
        let _memory = hold(&self.step_memory, request.iter().map(Bytes::len).sum())?;
        let key = Key::Step(instance.to_owned());
        let _permit = self.permit(self.steps.as_ref(), &key).await?;
        match self.work(key, Task::Step(request), losses, remote).await? {
            WorkerResponse::Step(response) => Ok(response),
            // Keys of the two kinds are never the same.
            WorkerResponse::Activity(_) => Err(Cancelled::Disconnected),
        }
    }

    /// Has a worker run an activity, as [`WorkQueue::run_step`] does.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub async fn run_activity(
        &self,
        request: ActivityRequest,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<ActivityResponse, Cancelled> {
        let _wanted = self.want()?;
        let _memory = hold(
            &self.activity_memory,
            request.input.as_ref().map_or(0, String::len),
        )?;
        let instance = request.orchestration_instance.as_ref();
        let instance = instance.map(|instance| instance.instance_id.clone());
        let key = Key::Activity(instance.unwrap_or_default(), request.task_id);
        let _permit = self.permit(self.activities.as_ref(), &key).await?;
        let task = Task::Activity(Box::new(request));
        match self.work(key, task, 0, remote).await? {
            WorkerResponse::Activity(response) => Ok(response),
            WorkerResponse::Step(_) => Err(Cancelled::Disconnected),
        }
    }

    /// Whether there is memory for a turn.
    ///
    /// # Errors
    /// [`Cancelled::TooLargeTogether`].
    pub fn has_memory(&self) -> Result<(), Cancelled> {
        let memory = &self.step_memory;
        let has_room = memory.has_room().then_some(());
        has_room.ok_or_else(|| Cancelled::TooLargeTogether(memory.most()))
    }

    fn want(&self) -> Result<Demand<'_>, Cancelled> {
        let mut work = self.locked();
        if work.ended {
            return Err(Cancelled::Ended);
        }
        if work.wanted >= MAX_WORK {
            return Err(Cancelled::TooMuch);
        }
        work.wanted += 1;
        Ok(Demand(self))
    }

    async fn work(
        &self,
        key: Key,
        task: Task,
        step_losses: u32,
        remote: impl Future<Output = Cancelled>,
    ) -> Result<WorkerResponse, Cancelled> {
        let (answer, answered) = oneshot::channel();
        let number = {
            let mut work = self.locked();
            if work.ended {
                return Err(Cancelled::Ended);
            }
            let number = work.number();
            work.by_key.insert(key.clone(), number);
            work.waiting.push_back(number);
            work.unsent += 1;
            let item = Item {
                task,
                // A worker that hands it back answers this piece, and no later one of the same key.
                token: self.token(number),
            };
            let piece = PendingWork {
                key,
                item: Some(item),
                answer,
                sent: None,
                step_losses,
            };
            work.pieces.insert(number, piece);
            number
        };
        self.arrived.notify_one();
        let _withdrawn = Withdraw { queue: self, number };
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or(Err(Cancelled::Disconnected)),
            cancelled = remote => Err(cancelled),
        }
    }

    fn token(&self, number: u64) -> String {
        format!("{}{number}", self.origin)
    }

    /// Whether a token is of a piece of this queue, waited for or not.
    pub fn is_own(&self, token: &str) -> bool {
        token.starts_with(&self.origin)
    }

    /// Opens a stream of work.
    pub fn open(self: &Arc<Self>) -> WorkStream {
        self.streams.fetch_add(1, Ordering::AcqRel);
        let number = self.locked().number();
        WorkStream {
            queue: Arc::clone(self),
            number,
        }
    }

    /// How many streams are open.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Acquire)
    }

    /// How much work waits for a stream to take it, or until more may be with workers.
    pub fn waiting(&self) -> usize {
        let work = self.locked();
        work.unsent + work.held.values().sum::<usize>()
    }

    /// Cancels all work, and takes no more.
    pub fn end(&self) {
        let pieces = {
            let mut work = self.locked();
            work.ended = true;
            work.waiting.clear();
            work.unsent = 0;
            work.by_key.clear();
            std::mem::take(&mut work.pieces)
        };
        for piece in pieces.into_values() {
            // Who does not wait any more needs no answer.
            let _gone = piece.answer.send(Err(Cancelled::Ended));
        }
    }

    fn locked(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds work about so many bytes: as its instance has them, and as they are sent.
fn hold(memory: &Arc<Payloads>, bytes: usize) -> Result<HeldPayload, Cancelled> {
    let held = memory.try_hold(bytes.saturating_mul(2));
    held.ok_or_else(|| Cancelled::TooLargeTogether(memory.most()))
}

/// Somebody wants work done, until it is dropped.
struct Demand<'a>(&'a WorkQueue);

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        self.0.locked().wanted -= 1;
    }
}

/// Nobody waits for the piece any more.
struct Withdraw<'a> {
    queue: &'a WorkQueue,
    number: u64,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        self.queue.locked().take(self.number);
    }
}

/// One worker's stream of work. When it is dropped, what was sent on it and not answered is cancelled.
pub struct WorkStream {
    queue: Arc<WorkQueue>,
    number: u64,
}

impl WorkStream {
    /// The next piece of work, which is this stream's from now on.
    pub async fn next(&self) -> Item {
        loop {
            let arrived = self.queue.arrived.notified();
            if let Some(item) = self.take() {
                return item;
            }
            arrived.await;
        }
    }

    fn take(&self) -> Option<Item> {
        let mut work = self.queue.locked();
        let item = work.send(self.number);
        let more = work.unsent > 0;
        drop(work);
        if more {
            // Notices of several pieces may have become one.
            self.queue.arrived.notify_one();
        }
        item
    }
}

impl Drop for WorkStream {
    fn drop(&mut self) {
        self.queue.streams.fetch_sub(1, Ordering::AcqRel);
        let lost: Vec<_> = {
            let mut work = self.queue.locked();
            let of_this = |(number, piece): (&u64, &PendingWork)| {
                piece
                    .sent
                    .is_some_and(|(stream, _)| stream == self.number)
                    .then_some(*number)
            };
            let numbers: Vec<_> = work.pieces.iter().filter_map(of_this).collect();
            numbers
                .into_iter()
                .filter_map(|number| work.take(number))
                .collect()
        };
        // What only ran beside that is not blamed.
        let losses = lost
            .iter()
            .map(|piece| piece.step_losses)
            .max()
            .unwrap_or_default();
        for piece in lost {
            let why = match piece.key {
                Key::Activity(..) if losses > 0 => Cancelled::DisconnectedWithSuspect { losses },
                _ => Cancelled::Disconnected,
            };
            let _gone = piece.answer.send(Err(why));
        }
        // A notice that this stream had and did not use is another's.
        self.queue.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests;
