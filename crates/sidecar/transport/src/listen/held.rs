//! Answers that HTTP/1.1 clients do not read. Each connection holds one at most, but there are many connections: a server
//! has a bound for all of them, and ends connections rather than exceed it: those on which nothing was read for a while, and
//! where there are none, the youngest, so that who reads slowly gets all of an answer whoever comes later.

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

/// Bytes of answers that clients on HTTP/1.1 have not read, on all connections of a server. An answer that is larger by
/// itself is held all the same, alone.
const MAX_UNREAD_ANSWERS: usize = 1 << 30;
/// A smaller answer is not counted: counting would cost every call, and sockets take it at once, mostly.
const MIN_COUNTED: usize = 64 << 10;

/// From here on a client counts as one that does not read. A kernel that holds megabytes for it takes more only now and then,
/// however steadily they are read.
const STALLED: Duration = Duration::from_secs(5);

/// The large answers of a server that are not written whole.
#[derive(Clone, Debug)]
pub struct HeldAnswers(Arc<Answers>);

#[derive(Debug)]
struct Answers {
    /// Bytes of all of them.
    most: usize,
    begun: Instant,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    /// How many there have been: an older one has a smaller number.
    count: u64,
    answers: HashMap<u64, Arc<Answer>>,
    warning: LogThrottle,
}

#[derive(Debug)]
struct Answer {
    bytes: usize,
    /// When the client read something last, in milliseconds.
    read: AtomicU64,
    /// Whether it has to make room.
    ended: AtomicBool,
    /// The connection.
    waits: AtomicWaker,
}

/// The place of an answer among those of its server, until it is dropped.
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

    /// Counts an answer of so many bytes, where it is large. Others have to make room where there is none.
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
        let ended = held.room(bytes, self.0.most, now);
        held.count += 1;
        let id = held.count;
        held.bytes += bytes;
        held.answers.insert(id, Arc::clone(&answer));
        let warnings: Vec<u64> = ended.iter().filter_map(|_| held.warning.happened()).collect();
        drop(held);
        for times in warnings {
            tracing::warn!(
                target: LOG,
                "connections end on which large answers are not read, {times} since the last time that this was said: \
                 all connections of a server together may have {} bytes of answers that are not read; read them, or ask \
                 for less at once",
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
    /// Takes out answers until there is room for one of so many bytes, or none is left. Each is looked at once, however many
    /// have to go.
    fn room(&mut self, bytes: usize, most: usize, now: u64) -> Vec<Arc<Answer>> {
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
    /// Takes note of a write.
    ///
    /// # Errors
    /// The connection has to make room for others.
    pub(super) fn written(&self, written: &Poll<io::Result<usize>>, cx: &Context<'_>) -> io::Result<()> {
        if written.is_pending() {
            self.answer.waits.register(cx.waker());
        } else {
            self.answer.read.store(self.answers.now(), Ordering::Relaxed);
        }
        if self.answer.ended.load(Ordering::Acquire) {
            let text = "the answer was not read, and there was no room for those of others";
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
    async fn who_reads_nothing_makes_room_and_else_the_youngest() {
        let answers = HeldAnswers::up_to(3 * LARGE);
        let cx = Context::from_waker(std::task::Waker::noop());
        assert!(answers.hold(LARGE - 1).is_none(), "it is small");
        let held: Vec<HeldAnswer> = (0..3).filter_map(|_| answers.hold(LARGE)).collect();
        let ended = || held.iter().map(is_ended).collect::<Vec<_>>();
        // Nobody was seen to read yet, and all may: those that come later do not end those that came before.
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
