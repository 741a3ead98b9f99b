//! Responses that HTTP/1.1 clients do not read. Each connection buffers at most one, but a server has many
//! connections, so one limit covers them all. Over the limit the server closes connections: first those
//! stalled for longest, then the youngest, so a slow reader still gets its whole response.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use outrigger_accept::LogThrottle;
use tokio::time::Instant;

use super::LOG;

/// Bytes of responses that HTTP/1.1 clients have not read, for all connections of a server. A larger response
/// is buffered only if it is the only one.
const MAX_UNREAD_ANSWERS: usize = 1 << 30;
/// Smaller responses are not counted: counting costs every call, and the socket buffer usually takes them at
/// once.
const MIN_COUNTED: usize = 64 << 10;

/// Time without progress after which a client counts as stalled. A kernel that buffers megabytes for a client
/// accepts more only now and then, even if the client reads steadily.
const STALLED: Duration = Duration::from_secs(5);

/// The large responses of a server that are not yet fully written.
#[derive(Clone, Debug)]
pub struct HeldAnswers(Arc<Answers>);

#[derive(Debug)]
struct Answers {
    /// Limit on the total, bytes.
    most: usize,
    begun: Instant,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// Responses counted so far, which number them in order of age.
    count: u64,
    answers: HashMap<u64, Arc<Answer>>,
    warning: LogThrottle,
}

#[derive(Debug)]
struct Answer {
    bytes: usize,
    /// When the client last read something, in milliseconds since `begun`.
    read: AtomicU64,
    /// Whether this response has been evicted.
    ended: AtomicBool,
    /// Wakes the connection.
    waits: AtomicWaker,
}

/// The slot of a response among those of its server, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldAnswer {
    id: u64,
    answer: Arc<Answer>,
    answers: HeldAnswers,
}

impl Default for HeldAnswers {
    fn default() -> Self {
        Self::up_to(MAX_UNREAD_ANSWERS)
    }
}

impl HeldAnswers {
    pub(super) fn up_to(most: usize) -> Self {
        Self(Arc::new(Answers {
            most,
            begun: Instant::now(),
            held: Mutex::default(),
        }))
    }

    /// Counts a response of `bytes` bytes if it is large, and evicts others if there is no room.
    #[inline]
    pub(super) fn hold(&self, bytes: usize) -> Option<HeldAnswer> {
        (bytes >= MIN_COUNTED).then(|| self.count(bytes))
    }

    fn count(&self, bytes: usize) -> HeldAnswer {
        let now = self.now();
        let answer = Arc::new(Answer {
            bytes,
            read: AtomicU64::new(now),
            ended: AtomicBool::new(false),
            waits: AtomicWaker::new(),
        });
        let mut held = self.held();
        let ended = held.make_room(bytes, self.0.most, now);
        held.count += 1;
        let id = held.count;
        held.bytes += bytes;
        held.answers.insert(id, Arc::clone(&answer));
        let warnings: Vec<u64> = ended.iter().filter_map(|_| held.warning.happened()).collect();
        drop(held);
        for times in warnings {
            tracing::warn!(
                target: LOG,
                "closing connections with large unread responses ({times} since the last such line): \
                 the connections of a server may buffer {} bytes of unread responses; read them, or request \
                 less at once",
                self.0.most
            );
        }
        for answer in ended {
            answer.ended.store(true, Ordering::Release);
            answer.waits.wake();
        }
        HeldAnswer {
            id,
            answer,
            answers: self.clone(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Held {
    /// Evicts responses until `bytes` more fit or none is left, in one pass over the list.
    fn make_room(&mut self, bytes: usize, most: usize, now: u64) -> Vec<Arc<Answer>> {
        if self.bytes.saturating_add(bytes) <= most {
            return Vec::new();
        }
        let turn = |(id, answer): (&u64, &Arc<Answer>)| {
            let read = answer.read.load(Ordering::Relaxed);
            let stalled = u128::from(now.saturating_sub(read)) >= STALLED.as_millis();
            // The longest stalled first, then the youngest.
            (!stalled, if stalled { read } else { u64::MAX - id }, *id)
        };
        let mut turns: Vec<_> = self.answers.iter().map(turn).collect();
        turns.sort_unstable();
        let mut ended = Vec::new();
        for (_, _, id) in turns {
            if self.bytes.saturating_add(bytes) <= most {
                break;
            }
            ended.extend(self.remove(id));
        }
        ended
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Answer>> {
        let answer = self.answers.remove(&id)?;
        self.bytes -= answer.bytes;
        Some(answer)
    }
}

impl HeldAnswer {
    /// Records the outcome of a write.
    ///
    /// # Errors
    /// The response was evicted.
    pub(super) fn written(&self, written: &Poll<io::Result<usize>>, cx: &Context<'_>) -> io::Result<()> {
        if written.is_pending() {
            self.answer.waits.register(cx.waker());
        } else {
            self.answer.read.store(self.answers.now(), Ordering::Relaxed);
        }
        if self.answer.ended.load(Ordering::Acquire) {
            let text = "unread response evicted to make room for others";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        Ok(())
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.answers.held().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = MIN_COUNTED;

    fn is_ended(held: &HeldAnswer) -> bool {
        held.answer.ended.load(Ordering::Acquire)
    }

    #[tokio::test(start_paused = true)]
    async fn evicts_stalled_then_youngest_response() {
        let answers = HeldAnswers::up_to(3 * LARGE);
        let cx = Context::from_waker(std::task::Waker::noop());
        assert!(answers.hold(LARGE - 1).is_none(), "it is small");
        let held: Vec<HeldAnswer> = (0..3).filter_map(|_| answers.hold(LARGE)).collect();
        let ended = || held.iter().map(is_ended).collect::<Vec<_>>();
        // No client has read yet, and all still may: an older response is not evicted for a newer one.
        let fourth = answers.hold(LARGE).unwrap();
        assert_eq!(ended(), [false, false, true]);
        tokio::time::advance(STALLED / 2).await;
        held[0].written(&Poll::Ready(Ok(1)), &cx).unwrap();
        held[1].written(&Poll::Pending, &cx).unwrap();
        fourth.written(&Poll::Ready(Ok(1)), &cx).unwrap();
        tokio::time::advance(STALLED / 2).await;
        let fifth = answers.hold(LARGE).unwrap();
        assert_eq!(ended(), [false, true, true]);
        assert!(!is_ended(&fourth));
        assert!(held[1].written(&Poll::Pending, &cx).is_err());
        drop(fifth);
        let sixth = answers.hold(LARGE).unwrap();
        assert!(!is_ended(&held[0]) && !is_ended(&fourth), "there is room again");
        let alone = answers.hold(10 * LARGE).unwrap();
        assert!(held.iter().all(is_ended) && is_ended(&fourth) && !is_ended(&alone));
        drop((held, fourth, sixth, alone));
        assert_eq!(answers.held().bytes, 0);
    }
}
