//! Cache of registry responses. No I/O; time is an argument.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Failure, Schema};

/// Maximum cached schemas and failures.
const MAX_KNOWN: usize = 1000;
/// Maximum bytes of cached entries.
const MAX_BYTES: usize = 32 * 1024 * 1024;
/// Overhead of an entry beyond its schema or error text, bytes.
const ENTRY_OVERHEAD: usize = 256;

/// Cache key of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Id(u32),
    /// The latest schema of a subject.
    Subject(String),
}

/// A cache that evicts the least recently used entry.
#[derive(Debug, Default)]
pub(super) struct Cache {
    answers: HashMap<Key, CacheEntry>,
    bytes: usize,
    /// Use counter for eviction.
    clock: u64,
}

#[derive(Debug)]
struct CacheEntry {
    answer: Result<Arc<Schema>, Failure>,
    /// Expiry; `None` for none.
    until: Option<Instant>,
    bytes: usize,
    used: u64,
}

impl Cache {
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Result<Arc<Schema>, Failure>> {
        let until = self.answers.get(key)?.until;
        if until.is_some_and(|until| until <= now) {
            self.remove(key);
            return None;
        }
        self.clock += 1;
        let held = self.answers.get_mut(key)?;
        held.used = self.clock;
        Some(held.answer.clone())
    }

    /// `keep`: time to live; [`Duration::MAX`] for none.
    pub(super) fn insert(
        &mut self,
        key: Key,
        answer: Result<Arc<Schema>, Failure>,
        keep: Duration,
        now: Instant,
    ) {
        self.remove(&key);
        let size = match &answer {
            Ok(schema) => schema.codec.weight(),
            Err(failure) => failure.text.len(),
        };
        let bytes = size + ENTRY_OVERHEAD;
        while self.answers.len() >= MAX_KNOWN || (self.bytes + bytes > MAX_BYTES && !self.answers.is_empty())
        {
            let oldest = self.answers.iter().min_by_key(|(_, held)| held.used);
            match oldest.map(|(key, _)| key.clone()) {
                Some(oldest) => self.remove(&oldest),
                None => break,
            }
        }
        self.bytes += bytes;
        self.clock += 1;
        let held = CacheEntry {
            answer,
            until: now.checked_add(keep).filter(|_| keep != Duration::MAX),
            bytes,
            used: self.clock,
        };
        self.answers.insert(key, held);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(held) = self.answers.remove(key) {
            self.bytes -= held.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{avro::Codec, registry::Kind};

    const KEEP: Duration = Duration::from_secs(60);

    fn schema(id: u32, text: &str) -> Result<Arc<Schema>, Failure> {
        let codec = Codec::parse(text).unwrap();
        Ok(Arc::new(Schema { id, codec }))
    }

    fn found(known: &mut Cache, key: &Key, now: Instant) -> Option<u32> {
        known.get(key, now).and_then(Result::ok).map(|schema| schema.id)
    }

    #[test]
    fn answers_expire() {
        let (mut known, now) = (Cache::default(), Instant::now());
        let subject = Key::Subject("orders-value".to_owned());
        known.insert(subject.clone(), schema(7, "\"int\""), KEEP, now);
        known.insert(Key::Id(7), schema(7, "\"int\""), Duration::MAX, now);
        let before = now + KEEP - Duration::from_millis(1);
        assert_eq!(found(&mut known, &subject, before), Some(7));
        assert_eq!(found(&mut known, &subject, now + KEEP), None);
        assert_eq!(found(&mut known, &Key::Id(7), now + KEEP * 10_000), Some(7));
        let failure = Failure::new(Kind::Unavailable, "down".to_owned());
        known.insert(Key::Id(8), Err(failure), KEEP, now);
        assert!(known.get(&Key::Id(8), now).unwrap().unwrap_err().may_pass());
        known.insert(Key::Id(8), schema(8, "\"int\""), KEEP, now);
        assert_eq!(found(&mut known, &Key::Id(8), now), Some(8));
    }

    #[test]
    fn evicts_least_recently_used() {
        let (mut known, now) = (Cache::default(), Instant::now());
        let most = u32::try_from(MAX_KNOWN).unwrap();
        for id in 0..most {
            known.insert(Key::Id(id), schema(id, "\"int\""), KEEP, now);
        }
        assert_eq!(found(&mut known, &Key::Id(0), now), Some(0));
        known.insert(Key::Id(most), schema(most, "\"int\""), KEEP, now);
        assert_eq!(known.answers.len(), MAX_KNOWN);
        assert_eq!(found(&mut known, &Key::Id(0), now), Some(0), "it was used");
        assert_eq!(found(&mut known, &Key::Id(1), now), None);
    }

    #[test]
    fn evicts_by_schema_size() {
        let (mut known, now) = (Cache::default(), Instant::now());
        let large = format!(
            "{{\"type\":\"string\",\"doc\":\"{}\"}}",
            "x".repeat(MAX_BYTES / 4)
        );
        for id in 0..10 {
            known.insert(Key::Id(id), schema(id, &large), KEEP, now);
            assert!(known.bytes <= MAX_BYTES);
        }
        assert_eq!(known.answers.len(), 3);
        assert_eq!(found(&mut known, &Key::Id(9), now), Some(9));
    }
}
