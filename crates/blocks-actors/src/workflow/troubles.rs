//! What was last wrong with instances whose runs fail: for who asks why they do not go on, and so that a worker whose answer
//! cannot be carried out is not asked the same every second.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Instances whose troubles are known, at most.
const MAX_TOLD: usize = 4096;
/// Characters of an error that are kept.
const MAX_TEXT: usize = 1024;
/// The longest time between two turns whose answers cannot be carried out.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with an instance.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// Why its last run failed.
    pub(super) why: String,
    /// How many have failed since one was well.
    pub(super) count: u32,
    /// When the last one did.
    pub(super) at: SystemTime,
    /// How many answers could not be carried out, and the time before which no worker is asked again.
    refused: u32,
    until: Option<Instant>,
}

/// The instances of this sidecar whose runs fail.
#[derive(Default)]
pub(super) struct Troubles(Mutex<HashMap<String, Trouble>>);

impl Troubles {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, Trouble>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: &str, why: &str, refused: bool) {
        let mut all = self.locked();
        if all.len() >= MAX_TOLD && !all.contains_key(id) {
            return;
        }
        let trouble = all.entry(id.to_owned()).or_insert_with(|| Trouble {
            why: String::new(),
            count: 0,
            at: SystemTime::UNIX_EPOCH,
            refused: 0,
            until: None,
        });
        trouble.why = why.chars().take(MAX_TEXT).collect();
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
    }

    /// A run failed.
    pub(super) fn failed(&self, id: &str, why: &str) {
        self.note(id, why, false);
    }

    /// The answer of a worker cannot be carried out, and a repetition is likely to be the same.
    pub(super) fn refused(&self, id: &str, why: &str) {
        self.note(id, why, true);
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

    /// A run was well, or the instance is not here any more.
    pub(super) fn over(&self, id: &str) {
        self.locked().remove(id);
    }

    /// Workers have come anew, maybe with other code.
    pub(super) fn forget(&self) {
        self.locked().clear();
    }

    /// What is wrong with an instance; `None` where nothing is known to be.
    pub(super) fn of(&self, id: &str) -> Option<Trouble> {
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
        troubles.refused("a", "no such action");
        assert_eq!(troubles.pauses("a").as_deref(), Some("no such action"));
        assert_eq!(troubles.pauses("b"), None);
        // An event is an occasion to ask again, at once.
        troubles.wake("a");
        assert_eq!(troubles.pauses("a"), None);
        // Other failures are told, and come again as their reminders do.
        troubles.failed("a", "bank is not there");
        troubles.failed("a", "bank is not there");
        assert_eq!(troubles.pauses("a"), None);
        let told = troubles.of("a").unwrap();
        assert_eq!((told.why.as_str(), told.count), ("bank is not there", 2));
        troubles.over("a");
        assert!(troubles.of("a").is_none());
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
