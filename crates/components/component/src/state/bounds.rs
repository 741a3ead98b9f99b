use std::sync::atomic::{AtomicUsize, Ordering};

use super::{BulkItem, Item, QueryItem};
use crate::{Error, Kind, Result};

/// Limits of a bulk get or a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum concurrent calls; 0 for the store's choice.
    pub parallelism: usize,
    /// Maximum total size of all values in bytes; a key requested twice counts twice.
    pub bytes: usize,
}

impl Default for Bounds {
    /// The store's concurrency and no size limit.
    fn default() -> Self {
        Self {
            parallelism: 0,
            bytes: usize::MAX,
        }
    }
}

impl Bounds {
    /// Starts counting one bulk get.
    pub fn tally(self) -> Tally {
        self.tally_of("of the bulk get", "request fewer keys at once")
    }

    /// Starts counting one query.
    pub fn query_tally(self) -> Tally {
        self.tally_of("that match the query", "request pages with a smaller page.limit")
    }

    fn tally_of(self, what: &'static str, remedy: &'static str) -> Tally {
        Tally {
            limit: self.bytes,
            left: AtomicUsize::new(self.bytes),
            what,
            remedy,
        }
    }
}

/// Counts the bytes of a bulk get or a query; shared by concurrent reads.
#[derive(Debug)]
pub struct Tally {
    limit: usize,
    left: AtomicUsize,
    what: &'static str,
    remedy: &'static str,
}

impl Tally {
    /// Counts a match of a query, with a fixed cost for each.
    ///
    /// # Errors
    /// [`Kind::TooLarge`]: the query fails, and the caller stops reading.
    pub fn matched(&self, item: &QueryItem) -> Result<()> {
        self.count(size_of::<QueryItem>() + item.key.len() + item.data.len())
    }

    /// Counts the value and returns the answer for `key`.
    ///
    /// # Errors
    /// [`Kind::TooLarge`]: the whole call fails, and the caller stops reading.
    pub fn answer(&self, key: impl Into<String>, item: Result<Option<Item>>) -> Result<BulkItem> {
        if let Ok(Some(item)) = &item {
            self.count(item.data.len())?;
        }
        Ok(BulkItem {
            key: key.into(),
            item,
        })
    }

    /// Counts a value of `bytes`.
    ///
    /// # Errors
    /// [`Kind::TooLarge`], as above.
    pub fn count(&self, bytes: usize) -> Result<()> {
        let left = |left: usize| left.checked_sub(bytes);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(
                Kind::TooLarge,
                format!(
                    "the values {} exceed the limit of {} bytes: {}",
                    self.what, self.limit, self.remedy
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn only_values_count_toward_bound() {
        let tally = Bounds {
            bytes: 5,
            ..Bounds::default()
        }
        .tally();
        let value = |data: &'static str| {
            Ok(Some(Item {
                data: Bytes::from_static(data.as_bytes()),
                ..Item::default()
            }))
        };
        for item in [value("12"), Ok(None), Err(Error::closed()), value("345")] {
            assert_eq!(tally.answer("k", item).unwrap().key, "k");
        }
        let error = tally.answer("k", value("6")).unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        assert_eq!(
            error.to_string(),
            "the values of the bulk get exceed the limit of 5 bytes: request fewer keys at once"
        );
    }
}
