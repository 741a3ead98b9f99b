//! Executors: actors that connect a worker's answer with the sidecar that waits for it, if answers may reach
//! any sidecar of the app. The waiting sidecar watches the work item's executor; the sidecar with the answer
//! calls it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use prost_types::Any;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;

use crate::actors::{ActorCall, InternalActors, Update, Watched};
use crate::workflow::protocol::methods;

/// Maximum work items awaited at the executors of one sidecar.
const MAX_WAITING: usize = 1 << 16;
/// Maximum cancellations kept without a watcher; the oldest is dropped.
const MAX_CANCELLED: usize = 1024;
/// How long those are kept. A sidecar that loses its worker may cancel before it has begun to watch.
const CANCELLATION_RETENTION: Duration = Duration::from_secs(5);

type WorkResult = Result<Any, Status>;

/// The executors of this sidecar; only watched ones use memory.
#[derive(Default)]
pub(crate) struct Executors {
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_id: HashMap<String, Vec<(u64, oneshot::Sender<WorkResult>)>>,
    /// Number of watchers, including notified ones that have not left.
    count: usize,
    next: u64,
    cancelled: VecDeque<(Instant, String)>,
}

impl State {
    /// Consumes a cancellation that preceded its watcher.
    fn take_cancelled(&mut self, id: &str) -> bool {
        let now = Instant::now();
        self.cancelled
            .retain(|(at, _)| now - *at < CANCELLATION_RETENTION);
        let place = self.cancelled.iter().position(|(_, cancelled)| cancelled == id);
        place.is_some_and(|place| self.cancelled.remove(place).is_some())
    }

    fn cancel_later(&mut self, id: &str) {
        if self.cancelled.len() == MAX_CANCELLED {
            self.cancelled.pop_front();
        }
        self.cancelled.push_back((Instant::now(), id.to_owned()));
    }
}

impl Waiting {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one notification.
    fn watch(self: &Arc<Self>, id: &str) -> Result<Watched, Status> {
        let (sender, receiver) = oneshot::channel();
        let number = {
            let mut state = self.locked();
            if state.take_cancelled(id) {
                return Ok(stream::once(std::future::ready(Err(cancelled()))).boxed());
            }
            if state.count >= MAX_WAITING {
                return Err(Status::resource_exhausted(format!(
                    "the limit of {MAX_WAITING} awaited answers is reached"
                )));
            }
            state.next += 1;
            state.count += 1;
            let number = state.next;
            state
                .by_id
                .entry(id.to_owned())
                .or_default()
                .push((number, sender));
            number
        };
        let watcher = Watcher {
            waiting: Arc::clone(self),
            id: id.to_owned(),
            number,
        };
        Ok(stream::once(async move {
            let result = receiver.await;
            drop(watcher);
            let gone = |_| Err(Status::unavailable("the executor is no longer on this sidecar"));
            result.unwrap_or_else(gone).map(Update::from)
        })
        .boxed())
    }

    /// Notifies all watchers of an executor; returns whether there were any.
    fn notify(&self, id: &str, result: &WorkResult) -> bool {
        let watchers = self.locked().by_id.remove(id).unwrap_or_default();
        Self::send(watchers, result)
    }

    fn send(watchers: Vec<(u64, oneshot::Sender<WorkResult>)>, result: &WorkResult) -> bool {
        let sent = watchers
            .into_iter()
            .filter_map(|(_, watcher)| watcher.send(result.clone()).ok());
        sent.count() > 0
    }

    fn complete(&self, call: &ActorCall) -> Result<(), Status> {
        let answer = Any {
            type_url: String::new(),
            value: call.body.to_vec(),
        };
        match self.notify(&call.id, &Ok(answer)) {
            true => Ok(()),
            // The sender keeps the answer and may retry.
            false => Err(Status::not_found(format!("no call waits for '{}'", call.id))),
        }
    }

    fn cancel(&self, id: &str) {
        // One lock for both: a new watcher must see either the notification or the cancellation.
        let mut state = self.locked();
        let watchers = state.by_id.remove(id).unwrap_or_default();
        if !Self::send(watchers, &Err(cancelled())) {
            state.cancel_later(id);
        }
    }
}

fn cancelled() -> Status {
    Status::aborted("the worker disconnected")
}

/// A watcher, until dropped.
struct Watcher {
    waiting: Arc<Waiting>,
    id: String,
    number: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut state = self.waiting.locked();
        state.count -= 1;
        let Some(watchers) = state.by_id.get_mut(&self.id) else {
            return;
        };
        watchers.retain(|(number, _)| *number != self.number);
        if watchers.is_empty() {
            state.by_id.remove(&self.id);
        }
    }
}

impl InternalActors for Executors {
    fn invoke<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move {
            match call.method.as_str() {
                methods::COMPLETE => self.waiting.complete(call)?,
                methods::CANCEL => self.waiting.cancel(&call.id),
                other => return Err(Status::unimplemented(format!("unknown method: {other}"))),
            }
            Ok(Bytes::new())
        })
    }

    fn remind<'a>(
        &'a self,
        id: &'a str,
        name: &'a str,
        _data: Option<&'a Any>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            Err(Status::unimplemented(format!(
                "executor '{id}' has no reminder '{name}'"
            )))
        })
    }

    fn watch<'a>(&'a self, call: &'a ActorCall) -> BoxFuture<'a, Result<Watched, Status>> {
        Box::pin(async move {
            match call.method.as_str() {
                methods::WATCH_COMPLETE => self.waiting.watch(&call.id),
                other => Err(Status::unimplemented(format!("unknown method: {other}"))),
            }
        })
    }

    /// The actor runtime ends the watches.
    fn halt<'a>(&'a self, _id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {})
    }

    /// Watchers do not need an active actor.
    fn is_kept(&self, _id: &str) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tonic::Code;

    use super::*;

    fn call(method: &str, id: &str, body: &'static [u8]) -> ActorCall {
        ActorCall {
            id: id.to_owned(),
            method: method.to_owned(),
            body: Bytes::from_static(body),
            ..ActorCall::default()
        }
    }

    async fn watch(executors: &Executors, id: &str) -> Watched {
        executors
            .watch(&call(methods::WATCH_COMPLETE, id, b""))
            .await
            .unwrap()
    }

    async fn complete(executors: &Executors, id: &str, body: &'static [u8]) -> Option<Code> {
        let result = executors.invoke(&call(methods::COMPLETE, id, body)).await;
        result.err().map(|error| error.code())
    }

    #[tokio::test]
    async fn answer_reaches_its_watchers_only() {
        let executors = Executors::default();
        let mut gone = watch(&executors, "a").await;
        assert!(gone.next().now_or_never().is_none());
        drop(gone);
        assert_eq!(complete(&executors, "a", b"0").await, Some(Code::NotFound));
        let (mut one, mut two) = (watch(&executors, "a").await, watch(&executors, "a").await);
        let mut other = watch(&executors, "a/1").await;
        assert_eq!(complete(&executors, "a", b"1").await, None);
        for watcher in [&mut one, &mut two] {
            assert_eq!(watcher.next().await.unwrap().unwrap().data.value, b"1");
            assert!(watcher.next().await.is_none(), "each is notified once");
        }
        assert!(other.next().now_or_never().is_none());
        assert_eq!(complete(&executors, "a", b"2").await, Some(Code::NotFound));
        drop(other);
        let state = executors.waiting.locked();
        assert!(state.by_id.is_empty() && state.count == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn keeps_early_cancellation_briefly() {
        let executors = Executors::default();
        let cancel = async |id: &str| executors.invoke(&call(methods::CANCEL, id, b"")).await.unwrap();
        let mut waiting = watch(&executors, "a").await;
        cancel("a").await;
        let next_code = async |watched: &mut Watched| watched.next().await.unwrap().unwrap_err().code();
        assert_eq!(next_code(&mut waiting).await, Code::Aborted);
        cancel("a").await;
        assert_eq!(next_code(&mut watch(&executors, "a").await).await, Code::Aborted);
        let mut again = watch(&executors, "a").await;
        assert!(again.next().now_or_never().is_none(), "one is notified");
        cancel("b").await;
        tokio::time::advance(CANCELLATION_RETENTION).await;
        let mut late = watch(&executors, "b").await;
        assert!(late.next().now_or_never().is_none());
        for number in 0..=MAX_CANCELLED {
            cancel(&number.to_string()).await;
        }
        assert_eq!(executors.waiting.locked().cancelled.len(), MAX_CANCELLED);
        assert!(watch(&executors, "0").await.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn rejects_unknown_methods() {
        let executors = Executors::default();
        let asked = executors.invoke(&call("WatchComplete", "a", b"")).await;
        assert_eq!(asked.unwrap_err().code(), Code::Unimplemented);
        let asked = executors.watch(&call("Complete", "a", b"")).await;
        assert_eq!(asked.err().unwrap().code(), Code::Unimplemented);
        let reminded = executors.remind("a", "x", None).await;
        assert_eq!(reminded.unwrap_err().code(), Code::Unimplemented);
    }
}
