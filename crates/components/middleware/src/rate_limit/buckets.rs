//! Token buckets per client, with bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum separate buckets; further clients share one.
pub(super) const MAX_BUCKETS: usize = 65_536;
/// Id of the shared bucket.
const SHARED: u64 = 0;
/// Interval of removing full buckets, which are the same as none.
const SWEEP: Duration = Duration::from_secs(10);
/// The interval while the table is full.
const SWEEP_WHEN_FULL: Duration = Duration::from_secs(1);

/// Buckets by client and path, identified by a keyed hash that attackers cannot predict.
pub(super) struct Buckets {
    rate: f64,
    hasher: RandomState,
    kept: Mutex<BucketTable>,
}

struct BucketTable {
    buckets: HashMap<u64, Bucket>,
    swept: Instant,
}

/// Fills at the configured rate; a request takes one token.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Buckets {
    pub(super) fn new(rate: f64) -> Self {
        let kept = BucketTable {
            buckets: HashMap::new(),
            swept: Instant::now(),
        };
        Self {
            rate,
            hasher: RandomState::new(),
            kept: Mutex::new(kept),
        }
    }

    fn burst(&self) -> f64 {
        self.rate.floor().max(1.0)
    }

    /// Whether a request may pass, and how many more could pass now.
    pub(super) fn take(&self, client: Option<IpAddr>, path: &str, now: Instant) -> (bool, u64) {
        let mut key = self.hasher.hash_one((client, path));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = kept.buckets.len() >= MAX_BUCKETS && !kept.buckets.contains_key(&key);
        let pause = if is_full { SWEEP_WHEN_FULL } else { SWEEP };
        if now.saturating_duration_since(kept.swept) >= pause {
            kept.swept = now;
            kept.buckets
                .retain(|_, bucket| self.filled(bucket, now) < self.burst());
            let used = kept.buckets.len();
            kept.buckets.shrink_to(2 * used);
        }
        if is_full && kept.buckets.len() >= MAX_BUCKETS {
            key = SHARED;
        }
        let bucket = kept.buckets.entry(key).or_insert_with(|| Bucket {
            tokens: self.burst(),
            at: now,
        });
        bucket.tokens = self.filled(bucket, now);
        bucket.at = now;
        let passes = bucket.tokens >= 1.0;
        if passes {
            bucket.tokens -= 1.0;
        }
        let left = bucket.tokens as u64;
        (passes, left)
    }

    fn filled(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.rate).min(self.burst())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    fn count(limit: &Buckets) -> usize {
        limit.kept.lock().unwrap().buckets.len()
    }

    #[test]
    fn bucket_per_client_and_path() {
        let limit = Buckets::new(2.0);
        let now = Instant::now();
        let (a, b) = (client(1), client(2));
        assert_eq!(limit.take(a, "/x", now), (true, 1));
        assert_eq!(limit.take(a, "/x", now), (true, 0));
        assert_eq!(limit.take(a, "/x", now), (false, 0));
        assert!(limit.take(a, "/y", now).0);
        assert!(limit.take(b, "/x", now).0);
        assert!(limit.take(None, "/x", now).0);
        let later = now + Duration::from_millis(500);
        assert_eq!(limit.take(a, "/x", later), (true, 0));
        assert!(!limit.take(a, "/x", later).0);
        let much_later = now + Duration::from_secs(3600);
        assert_eq!(
            limit.take(a, "/x", much_later),
            (true, 1),
            "never more than a burst"
        );
    }

    #[test]
    fn low_rates_allow_one_request() {
        let limit = Buckets::new(0.5);
        let now = Instant::now();
        assert!(limit.take(None, "/", now).0);
        assert!(!limit.take(None, "/", now + Duration::from_secs(1)).0);
        assert!(limit.take(None, "/", now + Duration::from_secs(2)).0);
    }

    #[test]
    fn bounds_number_of_buckets() {
        let limit = Buckets::new(1.0);
        let now = Instant::now();
        let clients = u32::try_from(MAX_BUCKETS).unwrap();
        for index in 0..clients {
            limit.take(client(index), "/", now);
        }
        assert!(limit.take(client(clients), "/", now).0);
        assert!(!limit.take(client(clients + 1), "/", now).0, "they share");
        assert_eq!(count(&limit), MAX_BUCKETS + 1);
        assert!(
            limit
                .take(client(clients + 2), "/", now + Duration::from_secs(1))
                .0
        );
        assert!(count(&limit) <= 2);
    }

    #[test]
    fn sweeps_unused_buckets() {
        let limit = Buckets::new(100.0);
        let now = Instant::now();
        for index in 0..10_000 {
            limit.take(client(index), "/a path of any length", now);
        }
        assert_eq!(count(&limit), 10_000);
        limit.take(client(0), "/", now + SWEEP);
        assert_eq!(count(&limit), 1);
        assert!(limit.kept.lock().unwrap().buckets.capacity() < 10_000);
    }
}
