//! Activities whose workers disconnect. An activity that repeatedly loses its worker may crash the app: it
//! first runs isolated, and is finally quarantined.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prost::Message as _;
use prost_types::Any;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// Losses from which an activity is a suspect. Suspects run one at a time, so that an innocent one can
/// finish.
const SUSPECT_AFTER_LOSSES: u32 = 3;
/// How long a suspect waits for other suspects.
const ISOLATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Losses from which the count is saved in the activity's reminder, for a sidecar that starts later. A single
/// loss is any restart of the app, with all its activities.
const SAVE_AFTER_LOSSES: u32 = 2;
/// Maximum activities with a loss count.
const MAX_COUNTED: usize = 1 << 16;
/// How long an unchanged count is kept.
const COUNT_RETENTION: Duration = Duration::from_secs(3600);

/// Field appended to the event in an activity's reminder data; Dapr's sidecars skip it.
#[derive(Clone, PartialEq, prost::Message)]
struct Saved {
    #[prost(uint32, tag = "1001")]
    losses: u32,
}

/// Appends the loss count to an activity's reminder data, if it must be saved.
pub(crate) fn with_count(mut data: Any, losses: u32) -> Option<Any> {
    if losses < SAVE_AFTER_LOSSES {
        return None;
    }
    // Concatenated protobuf messages are merged; the last value of a field counts.
    data.value.extend(Saved { losses }.encode_to_vec());
    Some(data)
}

/// The loss count in an activity's reminder data.
pub(crate) fn saved_count(data: &[u8]) -> u32 {
    Saved::decode(data).map_or(0, |saved| saved.losses)
}

/// Loss counts by activity, from this process and from reminders.
pub(crate) struct ActivityFailures {
    limit: Option<u32>,
    counts: Mutex<HashMap<String, (u32, Instant)>>,
    alone: Semaphore,
}

impl ActivityFailures {
    /// `limit`: losses after which an activity is quarantined; `None` is never.
    pub(crate) fn new(limit: Option<u32>) -> Self {
        Self {
            limit,
            counts: Mutex::default(),
            alone: Semaphore::new(1),
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for other suspects if the activity is a suspect.
    pub(crate) async fn isolate(&self, activity: &str) -> Option<SemaphorePermit<'_>> {
        self.isolate_after(self.count_of(activity)).await
    }

    /// Waits for other suspects if `count` losses make one.
    pub(crate) async fn isolate_after(&self, count: u32) -> Option<SemaphorePermit<'_>> {
        if self.limit.is_none() || count < SUSPECT_AFTER_LOSSES {
            return None;
        }
        // After the timeout it runs anyway: the other suspect may just be slow.
        timeout(ISOLATION_TIMEOUT, self.alone.acquire()).await.ok()?.ok()
    }

    /// Losses after which an activity is quarantined; `None` is never.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// Records that the activity's worker disconnected. Returns the count if it reaches the limit.
    pub(crate) fn record_loss(&self, activity: &str) -> Option<u32> {
        let limit = self.limit?;
        self.count(activity, |count| count + 1)
            .filter(|count| *count >= limit)
    }

    /// The loss count of an activity.
    pub(crate) fn count_of(&self, activity: &str) -> u32 {
        self.locked().get(activity).map_or(0, |(count, _)| *count)
    }

    /// Restores a loss count from another sidecar or process.
    pub(crate) fn restore(&self, activity: &str, saved: u32) {
        if self.limit.is_some() && saved > 0 {
            self.count(activity, |count| count.max(saved));
        }
    }

    /// Updates a count; `None` if the table is full.
    fn count(&self, activity: &str, count_anew: impl FnOnce(u32) -> u32) -> Option<u32> {
        let now = Instant::now();
        let mut counts = self.locked();
        if counts.len() >= MAX_COUNTED && !counts.contains_key(activity) {
            counts.retain(|_, (_, last)| now - *last < COUNT_RETENTION);
            if counts.len() >= MAX_COUNTED {
                return None;
            }
        }
        let (count, last) = counts.entry(activity.to_owned()).or_insert((0, now));
        (*count, *last) = (count_anew(*count), now);
        Some(*count)
    }

    /// The loss count of an activity if it is quarantined.
    pub(crate) fn quarantined(&self, activity: &str) -> Option<u32> {
        let limit = self.limit?;
        Some(self.count_of(activity)).filter(|count| *count >= limit)
    }

    /// The activity was answered, or its workflow knows that it is quarantined.
    pub(crate) fn clear(&self, activity: &str) {
        self.locked().remove(activity);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn reports_limit_and_resets_on_answer() {
        let losses = ActivityFailures::new(Some(3));
        assert_eq!(
            (
                losses.record_loss("a"),
                losses.record_loss("a"),
                losses.record_loss("b")
            ),
            (None, None, None)
        );
        assert_eq!(losses.quarantined("a"), None);
        assert_eq!(
            (losses.record_loss("a"), losses.quarantined("a")),
            (Some(3), Some(3))
        );
        losses.clear("a");
        assert_eq!(
            (
                losses.quarantined("a"),
                losses.record_loss("a"),
                losses.record_loss("b")
            ),
            (None, None, None)
        );
        losses.clear("b");
        assert_eq!(
            (
                losses.record_loss("b"),
                losses.record_loss("b"),
                losses.record_loss("b")
            ),
            (None, None, Some(3))
        );
        let never = ActivityFailures::new(None);
        assert!((0..1000).all(|_| never.record_loss("a").is_none()));
        assert!(never.locked().is_empty());
    }

    #[test]
    fn saved_count_leaves_event_readable() {
        use outrigger_wire::durabletask::HistoryEvent;
        let event = HistoryEvent {
            event_id: 7,
            ..HistoryEvent::default()
        };
        let data = Any {
            value: event.encode_to_vec(),
            ..Any::default()
        };
        assert_eq!(saved_count(&data.value), 0);
        assert_eq!(with_count(data.clone(), SAVE_AFTER_LOSSES - 1), None);
        let data = with_count(data, 4).and_then(|data| with_count(data, 5)).unwrap();
        assert_eq!(saved_count(&data.value), 5);
        assert_eq!(HistoryEvent::decode(&data.value[..]).unwrap(), event);
        let losses = ActivityFailures::new(Some(6));
        losses.restore("a", 5);
        losses.restore("a", 2);
        assert_eq!(
            (losses.quarantined("a"), losses.record_loss("a")),
            (None, Some(6))
        );
        let never = ActivityFailures::new(None);
        never.restore("a", 5);
        assert!(never.locked().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn only_suspects_run_isolated() {
        let losses = ActivityFailures::new(Some(9));
        for name in ["a", "b"] {
            (0..SUSPECT_AFTER_LOSSES).for_each(|_| assert_eq!(losses.record_loss(name), None));
        }
        let first = losses.isolate("a").await;
        assert!(first.is_some());
        assert!(
            losses
                .isolate("c")
                .now_or_never()
                .is_some_and(|permit| permit.is_none())
        );
        let mut second = std::pin::pin!(losses.isolate("b"));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.await.is_some());
        let _held = losses.isolate("a").await;
        let began = Instant::now();
        assert!(losses.isolate("b").await.is_none());
        assert_eq!(began.elapsed(), ISOLATION_TIMEOUT);
    }
}
