//! Keys and values, and the revisions that etcd gives them.

use super::{COUNTERS, JOBS};

/// A value, and when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) key: Vec<u8>,
    /// Revision of the store when the key was made.
    pub(crate) created: i64,
    /// Revision of the store when the value was written.
    pub(crate) modified: i64,
    /// How often the value was written, from 1.
    pub(crate) version: i64,
    pub(crate) value: Vec<u8>,
}

/// Keys from the first on, below the last; without one all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    pub(crate) below: Option<Vec<u8>>,
}

impl Range {
    /// Keys that begin so.
    pub(crate) fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let mut below = from.clone();
        // The next key that does not begin so: none, if all bytes are the largest.
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

    /// Keys of a folder from one name on, and before another.
    pub(crate) fn between(folder: &str, from: &str, below: &str) -> Self {
        Self {
            from: [folder, from].concat().into(),
            below: Some([folder, below].concat().into()),
        }
    }

    /// Whether a key is in it.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.below.as_ref().is_none_or(|below| key < below.as_slice())
    }

    /// Its key, where it can have no other.
    pub(crate) fn only(&self) -> Option<&[u8]> {
        let below = self.below.as_ref()?;
        (below.strip_prefix(self.from.as_slice()) == Some(&[0])).then_some(&self.from)
    }

    /// One key.
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

/// The job whose key it is; names are text.
pub(crate) fn job_name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(JOBS.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_other_keys_begin() {
        assert_eq!(Range::prefix("ab").below.as_deref(), Some(b"ac".as_slice()));
        assert_eq!(
            Range::prefix([b'a', 0xff]).below.as_deref(),
            Some(b"b".as_slice())
        );
        assert_eq!(Range::prefix([0xff, 0xff]).below, None);
        assert_eq!(Range::prefix("").below, None);
    }

    #[test]
    fn ranges_know_their_keys() {
        let one = Range::one("a");
        assert!(one.has(b"a") && !one.has(b"a\0") && !one.has(b"b"));
        assert_eq!(one.only(), Some(b"a".as_slice()));
        let all = Range::prefix("a");
        assert!(all.has(b"a") && all.has(b"ab") && !all.has(b"b"));
        assert_eq!(all.only(), None);
        assert!(Range::prefix("").has(b"any"));
    }
}
