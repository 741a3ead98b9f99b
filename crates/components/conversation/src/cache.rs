//! A cache of answers, so that a repeated question costs nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use outrigger_component::conversation::{Choice, Response, ToolCall};
use tokio::time::Instant;

/// Maximum cached answers.
const MAX_ANSWERS: usize = 1024;
/// Maximum bytes of cached answers.
const MAX_BYTES: usize = 64 << 20;
/// Approximate size of an answer without its texts.
const OVERHEAD: usize = 512;

/// Cache key: a hash of the whole request.
pub(super) type Key = [u8; 32];

pub(super) struct Cache {
    ttl: Duration,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    by_key: HashMap<Key, Cached>,
    bytes: usize,
}

struct Cached {
    since: Instant,
    bytes: usize,
    answer: Response,
}

impl Answers {
    fn remove(&mut self, key: &Key) {
        if let Some(kept) = self.by_key.remove(key) {
            self.bytes -= kept.bytes;
        }
    }

    fn evict_expired(&mut self, ttl: Duration) {
        self.by_key.retain(|_, kept| kept.since.elapsed() < ttl);
        self.bytes = self.by_key.values().map(|kept| kept.bytes).sum();
    }

    fn oldest(&self) -> Option<Key> {
        let oldest = self.by_key.iter().min_by_key(|(_, kept)| kept.since);
        oldest.map(|(key, _)| *key)
    }
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
        let mut answers = self.locked();
        let kept = answers.by_key.get(key)?;
        if kept.since.elapsed() < self.ttl {
            return Some(kept.answer.clone());
        }
        answers.remove(key);
        None
    }

    /// Caches an answer. If the cache is full, evicts expired answers and then the oldest. An answer larger
    /// than the cache is not stored.
    pub(super) fn put(&self, key: Key, answer: Response) {
        let bytes = size(&answer);
        if bytes > MAX_BYTES {
            return;
        }
        let mut answers = self.locked();
        answers.remove(&key);
        let full =
            |answers: &Answers| answers.by_key.len() >= MAX_ANSWERS || answers.bytes + bytes > MAX_BYTES;
        if full(&answers) {
            answers.evict_expired(self.ttl);
        }
        while full(&answers)
            && let Some(oldest) = answers.oldest()
        {
            answers.remove(&oldest);
        }
        answers.bytes += bytes;
        let since = Instant::now();
        answers.by_key.insert(key, Cached { since, bytes, answer });
    }

    fn locked(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Approximate memory size of an answer.
fn size(answer: &Response) -> usize {
    let choice = |choice: &Choice| {
        let call = |call: &ToolCall| call.id.len() + call.name.len() + call.arguments.len() + OVERHEAD;
        choice.content.len() + choice.calls.iter().map(call).sum::<usize>() + OVERHEAD
    };
    answer.model.len() + answer.choices.iter().map(choice).sum::<usize>() + OVERHEAD
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
    async fn evicts_expired_answers() {
        let cache = Cache::new(Duration::from_secs(60));
        let (one, other) = (Cache::key(b"one"), Cache::key(b"other"));
        cache.put(one, answer("m"));
        assert_eq!(cache.get(&one), Some(answer("m")));
        assert_eq!(cache.get(&other), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(cache.get(&one), None);
    }

    #[tokio::test(start_paused = true)]
    async fn evicts_oldest_at_limit() {
        let cache = Cache::new(Duration::from_secs(3600));
        for index in 0..=MAX_ANSWERS {
            cache.put(Cache::key(&index.to_be_bytes()), answer(""));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let size = cache.answers.lock().map(|answers| answers.by_key.len());
        assert!(matches!(size, Ok(MAX_ANSWERS)));
        assert_eq!(cache.get(&Cache::key(&0_usize.to_be_bytes())), None);
        assert!(cache.get(&Cache::key(&1_usize.to_be_bytes())).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn evicts_at_byte_limit() {
        let cache = Cache::new(Duration::from_secs(3600));
        let large = "x".repeat(MAX_BYTES / 2);
        for name in [b"a", b"b", b"c"] {
            cache.put(Cache::key(name), answer(&large));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(cache.locked().bytes <= MAX_BYTES);
        assert!(
            cache.get(&Cache::key(b"b")).is_none(),
            "two and what is beside them are too many"
        );
        assert!(cache.get(&Cache::key(b"c")).is_some());
        cache.put(Cache::key(b"d"), answer(&"x".repeat(MAX_BYTES + 1)));
        assert!(cache.get(&Cache::key(b"d")).is_none());
        assert!(cache.get(&Cache::key(b"c")).is_some());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(cache.get(&Cache::key(b"c")).is_none());
        assert_eq!(
            cache.locked().bytes,
            0,
            "what is too old is dropped when it is asked for"
        );
    }
}
