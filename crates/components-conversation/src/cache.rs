//! Answers kept for a while, so that the same question is not paid for twice.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use outrigger_component::conversation::Response;
use tokio::time::Instant;

/// Most answers that are kept.
const MOST: usize = 1024;

/// What identifies a question: the hash of all that is sent.
pub(super) type Key = [u8; 32];

pub(super) struct Cache {
    ttl: Duration,
    answers: Mutex<HashMap<Key, (Instant, Response)>>,
}

impl Cache {
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            answers: Mutex::default(),
        }
    }

    pub(super) fn key(question: &[u8]) -> Key {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, question).as_ref());
        key
    }

    pub(super) fn get(&self, key: &Key) -> Option<Response> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, answer) = answers.get(key)?;
        (at.elapsed() < self.ttl).then(|| answer.clone())
    }

    /// Keeps an answer; when there is no room, without those that are too old, and then the oldest.
    pub(super) fn put(&self, key: Key, answer: Response) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST {
            answers.retain(|_, (at, _)| at.elapsed() < self.ttl);
        }
        if answers.len() >= MOST
            && let Some(oldest) = answers.iter().min_by_key(|(_, (at, _))| *at).map(|(key, _)| *key)
        {
            answers.remove(&oldest);
        }
        answers.insert(key, (Instant::now(), answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(model: &str) -> Response {
        Response {
            model: model.to_owned(),
            ..Response::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_forgotten() {
        let cache = Cache::new(Duration::from_secs(60));
        let (one, other) = (Cache::key(b"one"), Cache::key(b"other"));
        cache.put(one, answer("m"));
        assert_eq!(cache.get(&one), Some(answer("m")));
        assert_eq!(cache.get(&other), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(cache.get(&one), None);
    }

    #[tokio::test(start_paused = true)]
    async fn there_is_a_limit_and_the_oldest_goes() {
        let cache = Cache::new(Duration::from_secs(3600));
        for index in 0..=MOST {
            cache.put(Cache::key(&index.to_be_bytes()), answer(""));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let size = cache.answers.lock().map(|answers| answers.len());
        assert!(matches!(size, Ok(MOST)));
        assert_eq!(cache.get(&Cache::key(&0_usize.to_be_bytes())), None);
        assert!(cache.get(&Cache::key(&1_usize.to_be_bytes())).is_some());
    }
}
