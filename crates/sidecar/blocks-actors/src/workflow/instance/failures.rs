//! Instances whose runs fail: the last error of each, and the backoff before a worker is asked again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use outrigger_backoff::Backoff;
use outrigger_telemetry::metrics::Gauge;
use tokio::time::Instant;
use tonic::Status;

use crate::workflow::error::retry_later;
use crate::workflow::protocol::LOG;

/// Instances whose failures are known, at most.
const MAX_KNOWN: usize = 4096;
/// Characters of an error that are kept.
const MAX_TEXT: usize = 1024;
/// The longest time between two runs of an instance that cannot go on.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with an instance.
#[derive(Clone, Debug)]
pub(crate) struct FailureRecord {
    /// Why its last run failed.
    pub(crate) why: String,
    /// How many have failed since one was well.
    pub(crate) count: u32,
    /// When the last one did.
    pub(crate) at: SystemTime,
    /// How many answers could not be carried out, and the time before which no worker is asked again.
    refused: u32,
    until: Option<Instant>,
    /// The reminder that has it run then, and when it is due.
    later: Option<(String, Instant)>,
    /// How many steps in a row lost their worker, and the time before which there is no other. Neither an event nor a worker
    /// that comes is an occasion to try it sooner: an app that it ends comes again and again.
    lost: u32,
    lost_until: Option<Instant>,
    /// The instance is elsewhere, or nowhere: only how many steps were lost is known still.
    is_left: bool,
}

impl FailureRecord {
    fn until(&self) -> Option<Instant> {
        self.until.max(self.lost_until)
    }

    /// How long it is until a worker is asked again.
    fn left(&self) -> Option<Duration> {
        let left = self.until()?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    fn ask_at_once(&mut self) {
        (self.refused, self.until) = (0, None);
    }

    /// What is known of it when it is here no more; `None` where that is nothing.
    fn leave(mut self) -> Option<Self> {
        self.ask_at_once();
        self.later = None;
        self.is_left = true;
        (self.lost > 0).then_some(self)
    }
}

/// The pause behind so many failures in a row.
fn pause_after(failures: u32) -> Duration {
    // The second try comes as soon as its reminder: what was wrong may have passed.
    match failures.saturating_sub(1) {
        0 => Duration::ZERO,
        others => Backoff::new(Duration::from_secs(1), MAX_PAUSE).after(others),
    }
}

/// What has failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failed {
    /// Anything, of a run.
    Run,
    /// The answer of a worker, or what it begins.
    Answer,
    /// A worker, with the step.
    Worker,
}

/// The instances of this sidecar whose runs fail.
#[derive(Default)]
pub(crate) struct InstanceFailures {
    known: Mutex<HashMap<String, FailureRecord>>,
    /// How many of them are here.
    gauge: Gauge,
}

impl InstanceFailures {
    /// `gauge` says how many there are.
    pub(crate) fn new(gauge: Gauge) -> Self {
        Self {
            known: Mutex::default(),
            gauge,
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, FailureRecord>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record is none of those here any more.
    fn uncount(&self, record: &FailureRecord) {
        if !record.is_left {
            self.gauge.add(-1);
        }
    }

    /// Whether that is news, and how many steps have lost their worker; `None` where that is not known.
    fn note(&self, id: &str, why: &str, failed: Failed) -> (bool, Option<u32>) {
        let mut all = self.locked();
        if all.len() >= MAX_KNOWN && !all.contains_key(id) {
            all.retain(|_, record| !record.is_left);
            if all.len() >= MAX_KNOWN {
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

    /// Those that are here, `most` of them, sorted: what was last wrong, how many runs have failed, and when.
    pub(crate) fn all(&self, most: usize) -> Vec<(String, FailureRecord)> {
        let all = self.locked();
        let here = all.iter().filter(|(_, record)| !record.is_left);
        let here = here.map(|(id, record)| (id.clone(), record.clone()));
        let mut here: Vec<_> = here.take(most).collect();
        here.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        here
    }

    /// A run failed; whether it has not failed so before.
    pub(crate) fn failed(&self, id: &str, why: &str) -> bool {
        self.note(id, why, Failed::Run).0
    }

    /// The answer of a worker cannot be carried out, and a repetition is likely to be the same; whether that is news.
    fn refused(&self, id: &str, why: &str) -> bool {
        self.note(id, why, Failed::Answer).0
    }

    /// As [`InstanceFailures::refused`], logged once. The status that the run fails with.
    pub(crate) fn reject(&self, id: &str, why: &str) -> Status {
        if self.refused(id, why) {
            tracing::warn!(
                target: LOG,
                "workflow '{id}' cannot proceed, trying again at growing intervals: {why}"
            );
        }
        retry_later(why)
    }

    /// The worker that had the step of an instance went away. How many steps in a row have lost theirs; `None` where too much is
    /// known of others already.
    pub(crate) fn lost(&self, id: &str, why: &str) -> Option<u32> {
        self.note(id, why, Failed::Worker).1
    }

    /// How many steps of an instance in a row have lost their worker.
    pub(crate) fn losses_of(&self, id: &str) -> u32 {
        self.locked().get(id).map_or(0, |record| record.lost)
    }

    /// How long it is until a worker is asked again; `None` where one is asked at once.
    pub(crate) fn pause(&self, id: &str) -> Option<Duration> {
        self.locked().get(id)?.left()
    }

    /// Whether another reminder than this one is to come within this time, and has the instance run. One that was due may have
    /// come elsewhere, and be gone.
    pub(crate) fn comes_later(&self, id: &str, than: &str, pause: Duration) -> bool {
        let now = Instant::now();
        let all = self.locked();
        let later = all.get(id).and_then(|record| record.later.as_ref());
        later.is_some_and(|(later, due)| later != than && *due > now && *due <= now + pause)
    }

    /// A reminder of this name has the instance run after this time.
    pub(crate) fn postpone(&self, id: &str, later: String, pause: Duration) {
        if let Some(record) = self.locked().get_mut(id) {
            record.later = Some((later, Instant::now() + pause));
        }
    }

    /// A worker that comes may have what is missing: instances that are to be run at once, and not later.
    pub(crate) fn take_postponed(&self) -> Vec<String> {
        let mut woken = Vec::new();
        for (id, record) in self.locked().iter_mut() {
            if record.later.is_none() {
                continue;
            }
            record.ask_at_once();
            if record.left().is_none() {
                record.later = None;
                woken.push(id.clone());
            }
        }
        woken
    }

    /// Why no worker is to be asked now.
    pub(crate) fn pauses(&self, id: &str) -> Option<String> {
        let all = self.locked();
        let record = all.get(id)?;
        record.left().map(|_| record.why.clone())
    }

    /// Something new has come: a worker is asked at once.
    pub(crate) fn wake(&self, id: &str) {
        if let Some(record) = self.locked().get_mut(id) {
            record.ask_at_once();
        }
    }

    /// A run was well.
    pub(crate) fn clear(&self, id: &str) {
        let known = self.locked().remove(id);
        known.iter().for_each(|record| self.uncount(record));
    }

    /// The instance is not here any more; whether it was to run later, and may be run at once elsewhere.
    pub(crate) fn depart(&self, id: &str) -> bool {
        let mut all = self.locked();
        let Some(record) = all.remove(id) else {
            return false;
        };
        self.uncount(&record);
        let is_postponed = record.later.is_some();
        let Some(known) = record.leave() else {
            return is_postponed;
        };
        let runs_at_once = is_postponed && known.left().is_none();
        all.insert(id.to_owned(), known);
        runs_at_once
    }

    /// Whether its next run was put off: another host has it run at once.
    pub(crate) fn is_postponed(&self, id: &str) -> bool {
        self.locked().get(id).is_some_and(|record| record.later.is_some())
    }

    /// Workers have come anew, maybe with other code; or the one that an instance ended.
    pub(crate) fn forget(&self) {
        let mut all = self.locked();
        let known = std::mem::take(&mut *all).into_iter();
        let known = known.inspect(|(_, record)| self.uncount(record));
        *all = known
            .filter_map(|(id, record)| Some((id, record.leave()?)))
            .collect();
    }

    /// What is wrong with an instance; `None` where nothing is known to be.
    pub(crate) fn of(&self, id: &str) -> Option<FailureRecord> {
        self.locked().get(id).filter(|record| !record.is_left).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_cannot_be_carried_out_are_asked_for_ever_more_seldom() {
        let failures = InstanceFailures::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            failures.refused("a", "no such action");
            let began = Instant::now();
            while failures.pauses("a").is_some() {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            pauses.push(began.elapsed().as_secs());
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(!failures.refused("a", "no such action"), "that is known");
        assert_eq!(failures.pause("a"), Some(MAX_PAUSE));
        assert_eq!(failures.pauses("a").as_deref(), Some("no such action"));
        assert_eq!(failures.pauses("b"), None);
        // An event is an occasion to ask again, at once.
        failures.wake("a");
        assert_eq!((failures.pauses("a"), failures.pause("a")), (None, None));
        // Other failures are told, and come again as their reminders do.
        assert!(failures.failed("a", "bank is not there"));
        assert!(!failures.failed("a", "bank is not there"));
        assert_eq!(failures.pauses("a"), None);
        let found = failures.of("a").unwrap();
        assert_eq!((found.why.as_str(), found.count), ("bank is not there", 2));
        failures.clear("a");
        assert!(failures.of("a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_reminder_has_an_instance_run_later_until_a_worker_comes() {
        const PAUSE: Duration = Duration::from_secs(8);
        let failures = InstanceFailures::default();
        failures.postpone("a", "start-0".to_owned(), PAUSE);
        assert!(
            !failures.comes_later("a", "start-1", PAUSE),
            "nothing is wrong with it"
        );
        for id in ["a", "b"] {
            failures.refused(id, "no such action");
        }
        failures.postpone("a", "start-0".to_owned(), PAUSE);
        assert!(failures.comes_later("a", "new-event-1", PAUSE));
        assert!(!failures.comes_later("a", "start-0", PAUSE), "it is the one");
        assert!(
            !failures.comes_later("a", "new-event-1", PAUSE / 2),
            "it comes too late"
        );
        assert!(!failures.comes_later("b", "start-0", PAUSE));
        assert!(failures.is_postponed("a") && !failures.is_postponed("b"));
        tokio::time::advance(PAUSE).await;
        // It may have come to another sidecar.
        assert!(!failures.comes_later("a", "new-event-1", PAUSE), "it was due");
        assert_eq!(failures.take_postponed(), ["a"]);
        assert_eq!(failures.take_postponed(), [""; 0], "once");
        failures.postpone("b", "start-0".to_owned(), PAUSE);
        assert!(failures.depart("b") && !failures.depart("b") && !failures.depart("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn turns_that_lose_their_worker_come_ever_more_seldom_whatever_comes() {
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
            // The last worker goes, and one comes.
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
    fn no_more_is_known_than_there_may_be() {
        let failures = InstanceFailures::default();
        let long = "\u{e9}".repeat(2 * MAX_TEXT);
        for id in 0..=MAX_KNOWN {
            failures.failed(&id.to_string(), &long);
        }
        assert_eq!(failures.locked().len(), MAX_KNOWN);
        assert_eq!(failures.of("0").unwrap().why.chars().count(), MAX_TEXT);
        failures.failed("0", "other");
        assert_eq!(failures.of("0").unwrap().why, "other");
    }
}
