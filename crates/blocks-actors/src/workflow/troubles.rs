//! What was last wrong with instances whose runs fail: for who asks why they do not go on, and so that what is likely to fail
//! again is not tried every second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Instances whose troubles are known, at most.
const MAX_TOLD: usize = 4096;
/// Characters of an error that are kept.
const MAX_TEXT: usize = 1024;
/// The longest time between two runs of an instance that cannot go on.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with an instance.
#[derive(Clone, Debug)]
pub(super) struct FailureRecord {
    /// Why its last run failed.
    pub(super) why: String,
    /// How many have failed since one was well.
    pub(super) count: u32,
    /// When the last one did.
    pub(super) at: SystemTime,
    /// How many answers could not be carried out, and the time before which no worker is asked again.
    refused: u32,
    until: Option<Instant>,
    /// The reminder that has it run then, and when it is due.
    later: Option<(String, Instant)>,
}

/// The instances of this sidecar whose runs fail.
#[derive(Default)]
pub(super) struct Troubles(Mutex<HashMap<String, FailureRecord>>);

impl Troubles {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, FailureRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that is news.
    fn note(&self, id: &str, why: &str, refused: bool) -> bool {
        let mut all = self.locked();
        if all.len() >= MAX_TOLD && !all.contains_key(id) {
            return true;
        }
        let trouble = all.entry(id.to_owned()).or_insert_with(|| FailureRecord {
            why: String::new(),
            count: 0,
            at: SystemTime::UNIX_EPOCH,
            refused: 0,
            until: None,
            later: None,
        });
        let why: String = why.chars().take(MAX_TEXT).collect();
        let is_news = trouble.why != why;
        trouble.why = why;
        trouble.at = SystemTime::now();
        if refused {
            trouble.refused = trouble.refused.saturating_add(1);
            // The second one comes as soon as its reminder: what was wrong may have passed.
            let doublings = trouble.refused - 1;
            let pause = match doublings {
                0 => Duration::ZERO,
                1..=6 => Duration::from_secs(1 << doublings).min(MAX_PAUSE),
                _ => MAX_PAUSE,
            };
            trouble.until = Some(Instant::now() + pause);
        } else {
            trouble.count = trouble.count.saturating_add(1);
        }
        is_news
    }

    /// A run failed; whether it has not failed so before.
    pub(super) fn failed(&self, id: &str, why: &str) -> bool {
        self.note(id, why, false)
    }

    /// The answer of a worker cannot be carried out, and a repetition is likely to be the same; whether that is news.
    pub(super) fn refused(&self, id: &str, why: &str) -> bool {
        self.note(id, why, true)
    }

    /// How long it is until a worker is asked again; `None` where one is asked at once.
    pub(super) fn pause(&self, id: &str) -> Option<Duration> {
        let left = self.locked().get(id)?.until?;
        let left = left.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether another reminder than this one is to come within this time, and has the instance run. One that was due may have
    /// come elsewhere, and be gone.
    pub(super) fn comes_later(&self, id: &str, than: &str, pause: Duration) -> bool {
        let now = Instant::now();
        let all = self.locked();
        let later = all.get(id).and_then(|trouble| trouble.later.as_ref());
        later.is_some_and(|(later, due)| later != than && *due > now && *due <= now + pause)
    }

    /// A reminder of this name has the instance run after this time.
    pub(super) fn put_off(&self, id: &str, later: String, pause: Duration) {
        if let Some(trouble) = self.locked().get_mut(id) {
            trouble.later = Some((later, Instant::now() + pause));
        }
    }

    /// A worker that comes may have what is missing: instances that are to be run at once, and not later.
    pub(super) fn take_put_off(&self) -> Vec<String> {
        let mut woken = Vec::new();
        for (id, trouble) in self.locked().iter_mut() {
            if trouble.later.take().is_some() {
                (trouble.refused, trouble.until) = (0, None);
                woken.push(id.clone());
            }
        }
        woken
    }

    /// Why no worker is to be asked now.
    pub(super) fn pauses(&self, id: &str) -> Option<String> {
        let all = self.locked();
        let trouble = all.get(id)?;
        let left = trouble.until?.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| trouble.why.clone())
    }

    /// Something new has come: a worker is asked at once.
    pub(super) fn wake(&self, id: &str) {
        if let Some(trouble) = self.locked().get_mut(id) {
            (trouble.refused, trouble.until) = (0, None);
        }
    }

    /// A run was well, or the instance is not here any more; whether it was to run later.
    pub(super) fn clear(&self, id: &str) -> bool {
        let trouble = self.locked().remove(id);
        trouble.is_some_and(|trouble| trouble.later.is_some())
    }

    /// Whether its next run was put off: another host has it run at once.
    pub(super) fn is_put_off(&self, id: &str) -> bool {
        self.locked()
            .get(id)
            .is_some_and(|trouble| trouble.later.is_some())
    }

    /// Workers have come anew, maybe with other code.
    pub(super) fn forget(&self) {
        self.locked().clear();
    }

    /// What is wrong with an instance; `None` where nothing is known to be.
    pub(super) fn of(&self, id: &str) -> Option<FailureRecord> {
        self.locked().get(id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_that_cannot_be_carried_out_are_asked_for_ever_more_seldom() {
        let troubles = Troubles::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            troubles.refused("a", "no such action");
            let began = Instant::now();
            while troubles.pauses("a").is_some() {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            pauses.push(began.elapsed().as_secs());
        }
        assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert!(!troubles.refused("a", "no such action"), "that is known");
        assert_eq!(troubles.pause("a"), Some(MAX_PAUSE));
        assert_eq!(troubles.pauses("a").as_deref(), Some("no such action"));
        assert_eq!(troubles.pauses("b"), None);
        // An event is an occasion to ask again, at once.
        troubles.wake("a");
        assert_eq!((troubles.pauses("a"), troubles.pause("a")), (None, None));
        // Other failures are told, and come again as their reminders do.
        assert!(troubles.failed("a", "bank is not there"));
        assert!(!troubles.failed("a", "bank is not there"));
        assert_eq!(troubles.pauses("a"), None);
        let found = troubles.of("a").unwrap();
        assert_eq!((found.why.as_str(), found.count), ("bank is not there", 2));
        troubles.clear("a");
        assert!(troubles.of("a").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_reminder_has_an_instance_run_later_until_a_worker_comes() {
        const PAUSE: Duration = Duration::from_secs(8);
        let troubles = Troubles::default();
        troubles.put_off("a", "start-0".to_owned(), PAUSE);
        assert!(
            !troubles.comes_later("a", "start-1", PAUSE),
            "nothing is wrong with it"
        );
        for id in ["a", "b"] {
            troubles.refused(id, "no such action");
        }
        troubles.put_off("a", "start-0".to_owned(), PAUSE);
        assert!(troubles.comes_later("a", "new-event-1", PAUSE));
        assert!(!troubles.comes_later("a", "start-0", PAUSE), "it is the one");
        assert!(
            !troubles.comes_later("a", "new-event-1", PAUSE / 2),
            "it comes too late"
        );
        assert!(!troubles.comes_later("b", "start-0", PAUSE));
        assert!(troubles.is_put_off("a") && !troubles.is_put_off("b"));
        tokio::time::advance(PAUSE).await;
        // It may have come to another sidecar.
        assert!(!troubles.comes_later("a", "new-event-1", PAUSE), "it was due");
        assert_eq!(troubles.take_put_off(), ["a"]);
        assert_eq!(troubles.take_put_off(), [""; 0], "once");
        troubles.put_off("b", "start-0".to_owned(), PAUSE);
        assert!(troubles.clear("b") && !troubles.clear("b") && !troubles.clear("a"));
    }

    #[test]
    fn no_more_is_known_than_there_may_be() {
        let troubles = Troubles::default();
        let long = "\u{e9}".repeat(2 * MAX_TEXT);
        for id in 0..=MAX_TOLD {
            troubles.failed(&id.to_string(), &long);
        }
        assert_eq!(troubles.locked().len(), MAX_TOLD);
        assert_eq!(troubles.of("0").unwrap().why.chars().count(), MAX_TEXT);
        troubles.failed("0", "other");
        assert_eq!(troubles.of("0").unwrap().why, "other");
    }
}
