//! Failing instances: the last error of each, and the backoff before a worker is asked again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use outrigger_backoff::Backoff;
use outrigger_telemetry::metrics::Gauge;
use tokio::time::Instant;
use tonic::Status;

use crate::workflow::error::retry_later;
use crate::workflow::protocol::LOG;

/// Maximum instances with a record.
const MAX_RECORDS: usize = 4096;
/// Maximum characters of an error text.
const MAX_TEXT: usize = 1024;
/// Maximum pause between two runs of a failing instance.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The failures of an instance.
#[derive(Clone, Debug)]
pub(crate) struct FailureRecord {
    /// The last error.
    pub(crate) why: String,
    /// Failed runs since the last success.
    pub(crate) count: u32,
    /// Time of the last failure.
    pub(crate) at: SystemTime,
    /// Rejected answers in a row, and the time before which no worker is asked again.
    refused: u32,
    until: Option<Instant>,
    /// The reminder that runs it then, and its due time.
    later: Option<(String, Instant)>,
    /// Steps in a row that lost their worker, and the time before the next one. Neither an event nor a new
    /// worker shortens it: an app that the instance crashes reconnects again and again.
    lost: u32,
    lost_until: Option<Instant>,
    /// The instance is not hosted here: only the loss count is kept.
    is_left: bool,
}

impl FailureRecord {
    fn until(&self) -> Option<Instant> {
        self.until.max(self.lost_until)
    }

    /// Time until a worker is asked again.
    fn left(&self) -> Option<Duration> {
        let left = self.until()?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    fn clear_backoff(&mut self) {
        (self.refused, self.until) = (0, None);
    }

    /// The record to keep after the instance leaves; `None` without losses.
    fn leave(mut self) -> Option<Self> {
        self.clear_backoff();
        self.later = None;
        self.is_left = true;
        (self.lost > 0).then_some(self)
    }
}

/// The pause after this many failures in a row.
fn pause_after(failures: u32) -> Duration {
    // The first retry comes with the reminder at once, as the error may have passed.
    match failures.saturating_sub(1) {
        0 => Duration::ZERO,
        others => Backoff::new(Duration::from_secs(1), MAX_PAUSE).after(others),
    }
}

/// What failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// The run, for any reason.
    Run,
    /// The worker's answer, or starting its effects.
    Answer,
    /// The worker disconnected during the step.
    Worker,
}

/// The failing instances of this sidecar.
#[derive(Default)]
pub(crate) struct InstanceFailures {
    known: Mutex<HashMap<String, FailureRecord>>,
    /// Number of failing instances hosted here.
    gauge: Gauge,
}

impl InstanceFailures {
    /// `gauge` counts failing instances.
    pub(crate) fn new(gauge: Gauge) -> Self {
        Self {
            known: Mutex::default(),
            gauge,
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, FailureRecord>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a record from the gauge.
    fn decrement_gauge(&self, record: &FailureRecord) {
        if !record.is_left {
            self.gauge.add(-1);
        }
    }

    /// Records a failure. Returns whether its text is new, and the number of losses; `None` if the table is
    /// full.
    fn note(&self, id: &str, why: &str, failed: Failed) -> (bool, Option<u32>) {
        let mut all = self.locked();
        if all.len() >= MAX_RECORDS && !all.contains_key(id) {
            all.retain(|_, record| !record.is_left);
            if all.len() >= MAX_RECORDS {
                return (true, None);
            }
        }
        let record = all.entry(id.to_owned()).or_insert_with(|| FailureRecord {
            why: String::new(),
            count: 0,
            at: SystemTime::UNIX_EPOCH,
            refused: 0,
            until: None,
            later: None,
            lost: 0,
            lost_until: None,
            is_left: true,
        });
        if std::mem::take(&mut record.is_left) {
            self.gauge.add(1);
        }
        let why: String = why.chars().take(MAX_TEXT).collect();
        let is_news = record.why != why;
        record.why = why;
        record.at = SystemTime::now();
        match failed {
            Failed::Run => record.count = record.count.saturating_add(1),
            Failed::Answer => {
                record.refused = record.refused.saturating_add(1);
                record.until = Some(Instant::now() + pause_after(record.refused));
            }
            Failed::Worker => {
                record.lost = record.lost.saturating_add(1);
                record.lost_until = Some(Instant::now() + pause_after(record.lost));
            }
        }
        (is_news, Some(record.lost))
    }

    /// Up to `most` failing instances hosted here, sorted by id.
    pub(crate) fn all(&self, most: usize) -> Vec<(String, FailureRecord)> {
        let all = self.locked();
        let here = all.iter().filter(|(_, record)| !record.is_left);
        let here = here.map(|(id, record)| (id.clone(), record.clone()));
        let mut here: Vec<_> = here.take(most).collect();
        here.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        here
    }

    /// Records a failed run; returns whether the error is new.
    pub(crate) fn failed(&self, id: &str, why: &str) -> bool {
        self.note(id, why, Failed::Run).0
    }

    /// Records a rejected answer, which a retry is likely to repeat; returns whether the error is new.
    fn refused(&self, id: &str, why: &str) -> bool {
        self.note(id, why, Failed::Answer).0
    }

    /// As [`InstanceFailures::refused`], logged once; returns the status of the failed run.
    pub(crate) fn reject(&self, id: &str, why: &str) -> Status {
        if self.refused(id, why) {
            tracing::warn!(
                target: LOG,
                "workflow '{id}' cannot proceed, retrying with backoff: {why}"
            );
        }
        retry_later(why)
    }

    /// Records that the worker with the instance's step disconnected. Returns the losses in a row; `None` if
    /// the table is full.
    pub(crate) fn lost(&self, id: &str, why: &str) -> Option<u32> {
        self.note(id, why, Failed::Worker).1
    }

    /// Losses in a row of an instance's steps.
    pub(crate) fn losses_of(&self, id: &str) -> u32 {
        self.locked().get(id).map_or(0, |record| record.lost)
    }

    /// Time until a worker is asked again; `None` if there is no backoff.
    pub(crate) fn pause(&self, id: &str) -> Option<Duration> {
        self.locked().get(id)?.left()
    }

    /// Whether another reminder than `than` will run the instance within `pause`. An overdue one does not
    /// count: it may have fired on another sidecar.
    pub(crate) fn has_later_reminder(&self, id: &str, than: &str, pause: Duration) -> bool {
        let now = Instant::now();
        let all = self.locked();
        let later = all.get(id).and_then(|record| record.later.as_ref());
        later.is_some_and(|(later, due)| later != than && *due > now && *due <= now + pause)
    }

    /// Records the reminder that runs the instance later.
    pub(crate) fn postpone(&self, id: &str, later: String, pause: Duration) {
        if let Some(record) = self.locked().get_mut(id) {
            record.later = Some((later, Instant::now() + pause));
        }
    }

    /// The postponed instances to run at once because a new worker may have what was missing.
    pub(crate) fn take_postponed(&self) -> Vec<String> {
        let mut woken = Vec::new();
        for (id, record) in self.locked().iter_mut() {
            if record.later.is_none() {
                continue;
            }
            record.clear_backoff();
            if record.left().is_none() {
                record.later = None;
                woken.push(id.clone());
            }
        }
        woken
    }

    /// The error of an instance in backoff.
    pub(crate) fn backoff_error(&self, id: &str) -> Option<String> {
        let all = self.locked();
        let record = all.get(id)?;
        record.left().map(|_| record.why.clone())
    }

    /// A new event arrived: clears the backoff of rejected answers.
    pub(crate) fn wake(&self, id: &str) {
        if let Some(record) = self.locked().get_mut(id) {
            record.clear_backoff();
        }
    }

    /// A run succeeded.
    pub(crate) fn clear(&self, id: &str) {
        let known = self.locked().remove(id);
        known.iter().for_each(|record| self.decrement_gauge(record));
    }

    /// The instance leaves this sidecar; returns whether it was postponed and may run at once elsewhere.
    pub(crate) fn depart(&self, id: &str) -> bool {
        let mut all = self.locked();
        let Some(record) = all.remove(id) else {
            return false;
        };
        self.decrement_gauge(&record);
        let is_postponed = record.later.is_some();
        let Some(known) = record.leave() else {
            return is_postponed;
        };
        let runs_at_once = is_postponed && known.left().is_none();
        all.insert(id.to_owned(), known);
        runs_at_once
    }

    /// Whether its next run is postponed: another host runs it at once.
    pub(crate) fn is_postponed(&self, id: &str) -> bool {
        self.locked().get(id).is_some_and(|record| record.later.is_some())
    }

    /// Workers have reconnected, perhaps with other code, or after a crash caused by an instance: keeps loss
    /// counts only.
    pub(crate) fn forget(&self) {
        let mut all = self.locked();
        let known = std::mem::take(&mut *all).into_iter();
        let known = known.inspect(|(_, record)| self.decrement_gauge(record));
        *all = known
            .filter_map(|(id, record)| Some((id, record.leave()?)))
            .collect();
    }

    /// The failures of an instance, if any.
    pub(crate) fn of(&self, id: &str) -> Option<FailureRecord> {
        self.locked().get(id).filter(|record| !record.is_left).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejected_answers_back_off() {
        let failures = InstanceFailures::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            failures.refused("a", "no such action");
            let began = Instant::now();
            while failures.backoff_error("a").is_some() {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            pauses.push(began.elapsed().as_secs());
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(!failures.refused("a", "no such action"), "that is known");
        assert_eq!(failures.pause("a"), Some(MAX_PAUSE));
        assert_eq!(failures.backoff_error("a").as_deref(), Some("no such action"));
        assert_eq!(failures.backoff_error("b"), None);
        // An event clears the backoff.
        failures.wake("a");
        assert_eq!((failures.backoff_error("a"), failures.pause("a")), (None, None));
        // Other failures are reported, and retried with their reminders.
        assert!(failures.failed("a", "bank is not there"));
        assert!(!failures.failed("a", "bank is not there"));
        assert_eq!(failures.backoff_error("a"), None);
        let found = failures.of("a").unwrap();
        assert_eq!((found.why.as_str(), found.count), ("bank is not there", 2));
        failures.clear("a");
        assert!(failures.of("a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn postpones_until_worker_connects() {
        const PAUSE: Duration = Duration::from_secs(8);
        let failures = InstanceFailures::default();
        failures.postpone("a", "start-0".to_owned(), PAUSE);
        assert!(
            !failures.has_later_reminder("a", "start-1", PAUSE),
            "nothing is wrong with it"
        );
        for id in ["a", "b"] {
            failures.refused(id, "no such action");
        }
        failures.postpone("a", "start-0".to_owned(), PAUSE);
        assert!(failures.has_later_reminder("a", "new-event-1", PAUSE));
        assert!(
            !failures.has_later_reminder("a", "start-0", PAUSE),
            "it is the one"
        );
        assert!(
            !failures.has_later_reminder("a", "new-event-1", PAUSE / 2),
            "it comes too late"
        );
        assert!(!failures.has_later_reminder("b", "start-0", PAUSE));
        assert!(failures.is_postponed("a") && !failures.is_postponed("b"));
        tokio::time::advance(PAUSE).await;
        // It may have fired on another sidecar.
        assert!(
            !failures.has_later_reminder("a", "new-event-1", PAUSE),
            "it was due"
        );
        assert_eq!(failures.take_postponed(), ["a"]);
        assert_eq!(failures.take_postponed(), [""; 0], "once");
        failures.postpone("b", "start-0".to_owned(), PAUSE);
        assert!(failures.depart("b") && !failures.depart("b") && !failures.depart("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn lost_workers_back_off_despite_events() {
        let failures = InstanceFailures::default();
        let mut pauses = Vec::new();
        for count in 1..=9 {
            assert_eq!(failures.lost("a", "it disconnected"), Some(count));
            failures.wake("a");
            failures.postpone("a", "start-0".to_owned(), MAX_PAUSE);
            let is_short = count == 1;
            assert_eq!(
                failures.take_postponed().len(),
                usize::from(is_short),
                "a worker comes"
            );
            // The last worker disconnects and another one connects.
            assert!(!failures.depart("a"));
            failures.forget();
            assert!(failures.of("a").is_none(), "it is not here");
            pauses.push(failures.pause("a").unwrap_or_default().as_secs());
            assert_eq!(failures.losses_of("a"), count);
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60]);
        failures.clear("a");
        assert_eq!((failures.losses_of("a"), failures.pause("a")), (0, None));
        failures.lost("b", "it disconnected");
        failures.postpone("b", "start-0".to_owned(), MAX_PAUSE);
        assert!(failures.depart("b"), "it may run at once elsewhere");
    }

    #[test]
    fn bounds_failure_records() {
        let failures = InstanceFailures::default();
        let long = "\u{e9}".repeat(2 * MAX_TEXT);
        for id in 0..=MAX_RECORDS {
            failures.failed(&id.to_string(), &long);
        }
        assert_eq!(failures.locked().len(), MAX_RECORDS);
        assert_eq!(failures.of("0").unwrap().why.chars().count(), MAX_TEXT);
        failures.failed("0", "other");
        assert_eq!(failures.of("0").unwrap().why, "other");
    }
}
