//! Work for the workers of the app: turns of workflows and runs of activities, each given to one of the streams that the
//! workers have open, and waited for until the worker answers or its stream ends.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use outrigger_wire::durabletask::{ActivityRequest, ActivityResponse, OrchestratorResponse};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};

use super::item::{Item, Task};

/// Work that waits or is with workers, at most; what comes beyond is refused, and comes again with its reminder.
pub const MAX_WORK: usize = 1 << 16;
/// Pieces that were withdrawn and are still in the row of those that wait, beyond as many as wait.
const SLACK: usize = 64;

/// The work was not done: the stream of its worker ended, there is too much of it, its answer got lost, or the sidecar ends.
/// It is to be tried again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cancelled {
    /// The stream that the work was sent on ended before the worker answered.
    #[error("the worker that had it disconnected")]
    Disconnected,
    /// More work than is kept.
    #[error(
        "{MAX_WORK} pieces of work wait for workers already; start more workers, or limit what is started"
    )]
    TooMuch,
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
    pub turns: Option<usize>,
    /// Activities; `None` = no limit.
    pub activities: Option<usize>,
}

/// What a worker's answer is matched by, as the contract has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Turn(String),
    Activity(String, i32),
}

/// What a worker answered.
enum WorkerResponse {
    Turn(OrchestratorResponse),
    Activity(ActivityResponse),
}

/// A piece of work, from when somebody waits for it to when nobody does any more.
struct PendingWork {
    key: Key,
    /// What is sent; `None` once it was.
    item: Option<Item>,
    answer: oneshot::Sender<Result<WorkerResponse, Cancelled>>,
    /// The stream that it was sent on.
    stream: Option<u64>,
}

#[derive(Default)]
struct Work {
    /// Of the next piece, and of the next stream.
    next: u64,
    pieces: HashMap<u64, PendingWork>,
    /// All who want work done, those too who wait until more may be with workers.
    wanted: usize,
    /// The latest piece of each key is the one that an answer is for.
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
                piece.stream = Some(stream);
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
    turns: Option<Semaphore>,
    activities: Option<Semaphore>,
    streams: AtomicUsize,
}

impl WorkQueue {
    /// Without work.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            origin: format!("{:016x}-", rand::random::<u64>()),
            work: Mutex::default(),
            arrived: Notify::new(),
            turns: limits.turns.map(Semaphore::new),
            activities: limits.activities.map(Semaphore::new),
            streams: AtomicUsize::new(0),
        })
    }

    /// Has a worker run a turn of an instance: an `OrchestratorRequest`, encoded, in pieces. Dropping the future withdraws
    /// the work. While it is wanted `relay` runs, which may bring the answer, or give up.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub async fn orchestrate(
        &self,
        instance: &str,
        request: Vec<Bytes>,
        relay: impl Future<Output = Cancelled>,
    ) -> Result<OrchestratorResponse, Cancelled> {
        let _wanted = self.want()?;
        let _permit = permit(self.turns.as_ref()).await?;
        let key = Key::Turn(instance.to_owned());
        match self.work(key, Task::Turn(request), relay).await? {
            WorkerResponse::Turn(response) => Ok(response),
            // Keys of the two kinds are never the same.
            WorkerResponse::Activity(_) => Err(Cancelled::Disconnected),
        }
    }

    /// Has a worker run an activity, as [`WorkQueue::orchestrate`] does.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub async fn execute(
        &self,
        request: ActivityRequest,
        relay: impl Future<Output = Cancelled>,
    ) -> Result<ActivityResponse, Cancelled> {
        let _wanted = self.want()?;
        let _permit = permit(self.activities.as_ref()).await?;
        let instance = request.orchestration_instance.as_ref();
        let instance = instance.map(|instance| instance.instance_id.clone());
        let key = Key::Activity(instance.unwrap_or_default(), request.task_id);
        let task = Task::Activity(Box::new(request));
        match self.work(key, task, relay).await? {
            WorkerResponse::Activity(response) => Ok(response),
            WorkerResponse::Turn(_) => Err(Cancelled::Disconnected),
        }
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
        relay: impl Future<Output = Cancelled>,
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
                stream: None,
            };
            work.pieces.insert(number, piece);
            number
        };
        self.arrived.notify_one();
        let _withdrawn = Withdraw { queue: self, number };
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or(Err(Cancelled::Disconnected)),
            cancelled = relay => Err(cancelled),
        }
    }

    fn token(&self, number: u64) -> String {
        format!("{}{number}", self.origin)
    }

    /// Whether a token is of a piece of this queue, waited for or not.
    pub fn is_own(&self, token: &str) -> bool {
        token.starts_with(&self.origin)
    }

    /// A worker has run a turn. Its answer comes back where nobody waits for it here.
    pub fn turn_done(&self, response: OrchestratorResponse) -> Option<OrchestratorResponse> {
        let key = Key::Turn(response.instance_id.clone());
        let Some(piece) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        // Who gives up in this moment needs no answer.
        let _gone = piece.answer.send(Ok(WorkerResponse::Turn(response)));
        None
    }

    /// A worker has run an activity. Its answer comes back where nobody waits for it here.
    pub fn activity_done(&self, response: ActivityResponse) -> Option<ActivityResponse> {
        let key = Key::Activity(response.instance_id.clone(), response.task_id);
        let Some(piece) = self.answered(&key, &response.completion_token) else {
            return Some(response);
        };
        let _gone = piece.answer.send(Ok(WorkerResponse::Activity(response)));
        None
    }

    /// Takes out the piece that an answer is for.
    fn answered(&self, key: &Key, token: &str) -> Option<PendingWork> {
        let mut work = self.locked();
        let number = work.by_key.get(key).copied()?;
        let is_another = !token.is_empty() && token != self.token(number);
        let is_unsent = work.pieces.get(&number).is_some_and(|piece| piece.item.is_some());
        // What was not sent yet cannot be what the worker answers.
        if is_another || is_unsent {
            return None;
        }
        work.take(number)
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

    /// How much work waits for a stream to take it.
    pub fn waiting(&self) -> usize {
        self.locked().unsent
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

async fn permit(limit: Option<&Semaphore>) -> Result<Option<SemaphorePermit<'_>>, Cancelled> {
    match limit {
        None => Ok(None),
        // It is never closed.
        Some(limit) => limit.acquire().await.map(Some).map_err(|_| Cancelled::Ended),
    }
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
                (piece.stream == Some(self.number)).then_some(*number)
            };
            let numbers: Vec<_> = work.pieces.iter().filter_map(of_this).collect();
            numbers
                .into_iter()
                .filter_map(|number| work.take(number))
                .collect()
        };
        for piece in lost {
            let _gone = piece.answer.send(Err(Cancelled::Disconnected));
        }
        // A notice that this stream had and did not use is another's.
        self.queue.arrived.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures::FutureExt;
    use outrigger_wire::durabletask::OrchestrationInstance;

    use super::*;

    fn activity(instance: &str, task: i32) -> ActivityRequest {
        ActivityRequest {
            orchestration_instance: Some(OrchestrationInstance {
                instance_id: instance.to_owned(),
                execution_id: None,
            }),
            task_id: task,
            ..ActivityRequest::default()
        }
    }

    fn turned(instance: &str, token: &str) -> OrchestratorResponse {
        OrchestratorResponse {
            instance_id: instance.to_owned(),
            completion_token: token.to_owned(),
            ..OrchestratorResponse::default()
        }
    }

    fn acted(instance: &str, task: i32) -> ActivityResponse {
        ActivityResponse {
            instance_id: instance.to_owned(),
            task_id: task,
            ..ActivityResponse::default()
        }
    }

    #[tokio::test]
    async fn work_goes_to_one_stream_and_its_answer_back() {
        let queue = WorkQueue::new(Limits::default());
        let (one, two) = (queue.open(), queue.open());
        assert_eq!(queue.streams(), 2);
        let mut first = std::pin::pin!(queue.orchestrate("a", Vec::new(), pending()));
        let mut second = std::pin::pin!(queue.execute(activity("a", 3), pending()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(queue.turn_done(turned("a", "")).is_some(), "it was not sent yet");
        let (a, b) = (one.next().await, two.next().await);
        assert!(matches!(a.task, Task::Turn(_)));
        assert!(matches!(b.task, Task::Activity(_)));
        assert!(one.next().now_or_never().is_none());
        assert!(queue.activity_done(acted("a", 4)).is_some(), "another task");
        assert!(queue.activity_done(acted("a", 3)).is_none());
        assert!(queue.turn_done(turned("a", &a.token)).is_none());
        assert!(queue.turn_done(turned("a", "")).is_some(), "once");
        assert!(first.await.is_ok());
        assert_eq!(second.await.unwrap().task_id, 3);
        assert!(queue.locked().pieces.is_empty() && queue.locked().by_key.is_empty());
    }

    #[tokio::test]
    async fn what_a_stream_leaves_is_cancelled_and_what_it_did_not_take_is_not() {
        let queue = WorkQueue::new(Limits::default());
        let stream = queue.open();
        let mut sent = std::pin::pin!(queue.orchestrate("a", Vec::new(), pending()));
        assert!(sent.as_mut().now_or_never().is_none());
        stream.next().await;
        let mut unsent = std::pin::pin!(queue.orchestrate("b", Vec::new(), pending()));
        assert!(unsent.as_mut().now_or_never().is_none());
        drop(stream);
        assert_eq!(sent.await.unwrap_err(), Cancelled::Disconnected);
        assert!(unsent.as_mut().now_or_never().is_none());
        let stream = queue.open();
        stream.next().await;
        assert!(queue.turn_done(turned("b", "")).is_none());
        assert!(unsent.await.is_ok());
    }

    #[tokio::test]
    async fn an_answer_to_an_earlier_piece_is_none_to_a_later_one() {
        let queue = WorkQueue::new(Limits::default());
        let stream = queue.open();
        let mut earlier = Box::pin(queue.orchestrate("a", Vec::new(), pending()));
        assert!(earlier.as_mut().now_or_never().is_none());
        let old = stream.next().await;
        drop(earlier);
        let mut later = std::pin::pin!(queue.orchestrate("a", Vec::new(), pending()));
        assert!(later.as_mut().now_or_never().is_none());
        let new = stream.next().await;
        assert!(queue.turn_done(turned("a", &old.token)).is_some());
        assert!(queue.turn_done(turned("a", &new.token)).is_none());
        assert!(later.await.is_ok());
    }

    #[tokio::test]
    async fn tokens_are_of_one_queue() {
        let (here, there) = (
            WorkQueue::new(Limits::default()),
            WorkQueue::new(Limits::default()),
        );
        let (one, two) = (here.open(), there.open());
        let mut wanted = std::pin::pin!(here.orchestrate("a", Vec::new(), pending()));
        let mut other = std::pin::pin!(there.orchestrate("a", Vec::new(), pending()));
        assert!(wanted.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        let (item, foreign) = (one.next().await, two.next().await);
        assert!(here.is_own(&item.token) && !here.is_own(&foreign.token) && !here.is_own(""));
        let back = here.turn_done(turned("a", &foreign.token));
        assert_eq!(back, Some(turned("a", &foreign.token)), "for who waits elsewhere");
        assert!(here.turn_done(turned("a", &item.token)).is_none());
        assert!(wanted.await.is_ok());
    }

    #[tokio::test]
    async fn a_relay_brings_an_answer_or_gives_up() {
        let queue = WorkQueue::new(Limits {
            turns: Some(1),
            activities: None,
        });
        let stream = queue.open();
        let brought = {
            let relay = async {
                let item = stream.next().await;
                assert!(queue.turn_done(turned("a", &item.token)).is_none());
                pending().await
            };
            queue.orchestrate("a", Vec::new(), relay).await
        };
        assert!(brought.is_ok());
        let lost = queue.orchestrate("a", Vec::new(), ready(Cancelled::Lost)).await;
        assert_eq!(lost.unwrap_err(), Cancelled::Lost);
        assert!(queue.locked().pieces.is_empty() && queue.locked().by_key.is_empty());
        let mut held = std::pin::pin!(queue.orchestrate("b", Vec::new(), pending()));
        assert!(held.as_mut().now_or_never().is_none());
        let waiting = queue.orchestrate("a", Vec::new(), ready(Cancelled::Lost));
        assert!(waiting.now_or_never().is_none(), "it is not with a worker yet");
    }

    #[tokio::test]
    async fn limits_hold_work_back() {
        let queue = WorkQueue::new(Limits {
            turns: None,
            activities: Some(1),
        });
        let stream = queue.open();
        let mut one = std::pin::pin!(queue.execute(activity("a", 1), pending()));
        let mut two = std::pin::pin!(queue.execute(activity("a", 2), pending()));
        assert!(one.as_mut().now_or_never().is_none());
        assert!(two.as_mut().now_or_never().is_none());
        stream.next().await;
        assert!(stream.next().now_or_never().is_none());
        assert!(queue.activity_done(acted("a", 1)).is_none());
        assert!(one.await.is_ok());
        assert!(two.as_mut().now_or_never().is_none());
        stream.next().await;
        assert!(queue.activity_done(acted("a", 2)).is_none());
        assert!(two.await.is_ok());
    }

    #[tokio::test]
    async fn what_a_limit_holds_back_counts_as_work() {
        let queue = WorkQueue::new(Limits {
            turns: None,
            activities: Some(1),
        });
        let want = |task| {
            let queue = Arc::clone(&queue);
            let mut wanted = Box::pin(async move { queue.execute(activity("a", task), pending()).await });
            wanted.as_mut().now_or_never().is_none().then_some(wanted)
        };
        let mut held: Vec<_> = (0..MAX_WORK)
            .map(|task| want(i32::try_from(task).unwrap()).unwrap())
            .collect();
        assert_eq!(queue.waiting(), 1);
        let beyond = queue.execute(activity("b", 1), pending()).now_or_never();
        assert_eq!(beyond.unwrap().unwrap_err(), Cancelled::TooMuch);
        held.pop();
        held.push(want(-1).unwrap());
        drop(held);
        assert_eq!(queue.locked().wanted, 0);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_not_sent() {
        let queue = WorkQueue::new(Limits::default());
        let mut dropped = Box::pin(queue.orchestrate("a", Vec::new(), pending()));
        assert!(dropped.as_mut().now_or_never().is_none());
        assert_eq!(queue.waiting(), 1);
        drop(dropped);
        assert_eq!(queue.waiting(), 0);
        let stream = queue.open();
        assert!(stream.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn what_was_withdrawn_is_skipped_and_does_not_pile_up() {
        let queue = WorkQueue::new(Limits::default());
        let want = |task: i32| {
            let queue = Arc::clone(&queue);
            let mut wanted = Box::pin(async move { queue.execute(activity("a", task), pending()).await });
            assert!(wanted.as_mut().now_or_never().is_none());
            wanted
        };
        let mut held: VecDeque<_> = (0..10).map(want).collect();
        drop(held.pop_front());
        assert_eq!(queue.waiting(), 9);
        assert_eq!(queue.locked().waiting.len(), 10, "it is not looked for");
        for task in 10..1000 {
            drop(want(task));
            assert!(queue.locked().waiting.len() <= 2 * 10 + SLACK);
        }
        assert_eq!(queue.waiting(), 9);
        let stream = queue.open();
        for task in 1..10 {
            let item = stream.next().now_or_never().unwrap();
            assert!(matches!(item.task, Task::Activity(sent) if sent.task_id == task));
        }
        assert_eq!(queue.waiting(), 0);
        assert!(stream.next().now_or_never().is_none());
        drop(held);
        assert_eq!(queue.waiting(), 0);
        let again = want(1);
        assert_eq!(queue.waiting(), 1);
        queue.end();
        drop(again);
        assert_eq!(queue.waiting(), 0);
    }

    #[tokio::test]
    async fn an_end_cancels_everything() {
        let queue = WorkQueue::new(Limits::default());
        let mut waiting = std::pin::pin!(queue.orchestrate("a", Vec::new(), pending()));
        assert!(waiting.as_mut().now_or_never().is_none());
        queue.end();
        assert_eq!(waiting.await.unwrap_err(), Cancelled::Ended);
        assert_eq!(
            queue.orchestrate("a", Vec::new(), pending()).await.unwrap_err(),
            Cancelled::Ended
        );
    }
}
