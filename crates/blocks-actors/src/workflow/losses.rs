//! Activities whose workers go away while they run. One that does so again and again may be what ends the app: it is run
//! alone, and in the end not any more.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// Losses from which an activity is suspected: those that are take turns, so that one that only ran beside it is done.
const SUSPECTED: u32 = 3;
/// How long one that is suspected waits for the others.
const TURN: Duration = Duration::from_secs(30);
/// Activities whose losses are counted, at most.
const MAX_COUNTED: usize = 1 << 16;
/// How long a count is kept that does not grow.
const KEPT: Duration = Duration::from_secs(3600);

/// Counts by activity. They are of this process.
pub(super) struct Losses {
    limit: Option<u32>,
    counts: Mutex<HashMap<String, (u32, Instant)>>,
    alone: Semaphore,
}

impl Losses {
    /// `limit`: losses after which an activity is not run again; `None` = it always is.
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self {
            limit,
            counts: Mutex::default(),
            alone: Semaphore::new(1),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn, if the activity is suspected.
    pub(super) async fn turn(&self, activity: &str) -> Option<SemaphorePermit<'_>> {
        let count = self.locked().get(activity).map_or(0, |(count, _)| *count);
        if self.limit.is_none() || count < SUSPECTED {
            return None;
        }
        // Its turn comes in any case: another one may just take long.
        timeout(TURN, self.alone.acquire()).await.ok()?.ok()
    }

    /// The worker of an activity went away. How often that has happened, where it was once too often.
    pub(super) fn lost(&self, activity: &str) -> Option<u32> {
        let limit = self.limit?;
        let now = Instant::now();
        let mut counts = self.locked();
        if counts.len() >= MAX_COUNTED && !counts.contains_key(activity) {
            counts.retain(|_, (_, last)| now - *last < KEPT);
            if counts.len() >= MAX_COUNTED {
                return None;
            }
        }
        let (count, last) = counts.entry(activity.to_owned()).or_insert((0, now));
        (*count, *last) = (*count + 1, now);
        Some(*count).filter(|count| *count >= limit)
    }

    /// How often the worker of an activity went away, if it is not to be run again.
    pub(super) fn parked(&self, activity: &str) -> Option<u32> {
        let limit = self.limit?;
        let count = self.locked().get(activity).map(|(count, _)| *count);
        count.filter(|count| *count >= limit)
    }

    /// An activity was answered, or its workflow knows that it is parked.
    pub(super) fn answered(&self, activity: &str) {
        self.locked().remove(activity);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_last_loss_is_told_and_an_answer_begins_anew() {
        let losses = Losses::new(Some(3));
        assert_eq!(
            (losses.lost("a"), losses.lost("a"), losses.lost("b")),
            (None, None, None)
        );
        assert_eq!(losses.parked("a"), None);
        assert_eq!((losses.lost("a"), losses.parked("a")), (Some(3), Some(3)));
        losses.answered("a");
        assert_eq!(
            (losses.parked("a"), losses.lost("a"), losses.lost("b")),
            (None, None, None)
        );
        losses.answered("b");
        assert_eq!(
            (losses.lost("b"), losses.lost("b"), losses.lost("b")),
            (None, None, Some(3))
        );
        let never = Losses::new(None);
        assert!((0..1000).all(|_| never.lost("a").is_none()));
        assert!(never.locked().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn suspects_take_turns_and_others_do_not() {
        let losses = Losses::new(Some(9));
        for name in ["a", "b"] {
            (0..SUSPECTED).for_each(|_| assert_eq!(losses.lost(name), None));
        }
        let first = losses.turn("a").await;
        assert!(first.is_some());
        assert!(losses.turn("c").now_or_never().is_some_and(|turn| turn.is_none()));
        let mut second = std::pin::pin!(losses.turn("b"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.await.is_some());
        let _held = losses.turn("a").await;
        let began = Instant::now();
        assert!(losses.turn("b").await.is_none());
        assert_eq!(began.elapsed(), TURN);
    }
}
