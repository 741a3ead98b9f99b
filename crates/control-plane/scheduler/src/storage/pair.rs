//! Keys and values with etcd's revisions.

use super::{COUNTERS, JOBS};

/// A value and its revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    /// Revision at which the key was created.
    pub(crate) created: i64,
    /// Revision at which the value was last written.
    pub(crate) modified: i64,
    /// Number of writes since the key was created, from 1.
    pub(crate) version: i64,
    pub(crate) value: Vec<u8>,
}

/// Keys from `from` on and before `below`; without `below`, all that follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    pub(crate) below: Option<Vec<u8>>,
}

impl Range {
    /// The keys with this prefix.
    pub(crate) fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let mut below = from.clone();
        // The end is the prefix with its last byte incremented; all 0xff means no end.
        while let Some(last) = below.pop() {
            if last < u8::MAX {
                below.push(last + 1);
                return Self {
                    from,
                    below: Some(below),
                };
            }
        }
        Self { from, below: None }
    }

    /// The keys of a folder from one name on and before another.
    pub(crate) fn between(folder: &str, from: &str, below: &str) -> Self {
        Self {
            from: [folder, from].concat().into(),
            below: Some([folder, below].concat().into()),
        }
    }

    /// Whether the range contains the key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.below.as_ref().is_none_or(|below| key < below.as_slice())
    }

    /// The key, if the range can contain only one.
    pub(crate) fn only(&self) -> Option<&[u8]> {
        let below = self.below.as_ref()?;
        (below.strip_prefix(self.from.as_slice()) == Some(&[0])).then_some(&self.from)
    }

    /// A single key.
    pub(crate) fn one(key: impl Into<Vec<u8>>) -> Self {
        let from = key.into();
        let mut below = from.clone();
        below.push(0);
        Self {
            from,
            below: Some(below),
        }
    }
}

pub(crate) fn job_key(name: &str) -> Vec<u8> {
    [JOBS, name].concat().into_bytes()
}

/// The key of a job's counter.
pub(crate) fn counter_key(name: &str) -> Vec<u8> {
    [COUNTERS, name].concat().into_bytes()
}

/// The name of the job with this key, if the key is one of a job.
pub(crate) fn job_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(JOBS.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_prefix_ranges() {
        assert_eq!(Range::prefix("ab").below.as_deref(), Some(b"ac".as_slice()));
        assert_eq!(
            Range::prefix([b'a', 0xff]).below.as_deref(),
            Some(b"b".as_slice())
        );
        assert_eq!(Range::prefix([0xff, 0xff]).below, None);
        assert_eq!(Range::prefix("").below, None);
    }

    #[test]
    fn range_contains_its_keys() {
        let one = Range::one("a");
        assert!(one.has(b"a") && !one.has(b"a\0") && !one.has(b"b"));
        assert_eq!(one.only(), Some(b"a".as_slice()));
        let all = Range::prefix("a");
        assert!(all.has(b"a") && all.has(b"ab") && !all.has(b"b"));
        assert_eq!(all.only(), None);
        assert!(Range::prefix("").has(b"any"));
    }
}
