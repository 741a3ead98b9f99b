use std::fmt;

use futures::{StreamExt, TryStreamExt, stream};

use super::{Bounds, Delete, Get, Item, Set, StateStore};
use crate::{Error, Result};

/// Concurrent calls if the request sets no limit.
const MAX_CONCURRENT_CALLS: usize = 64;

/// The answer to one key of a bulk get.
#[derive(Debug)]
pub struct BulkItem {
    /// The stored key.
    pub key: String,
    /// The value, `None` if absent, or the read error.
    pub item: Result<Option<Item>>,
}

/// Some operations of a bulk request failed; the others succeeded.
#[derive(Debug)]
pub struct BulkError {
    /// Index into the request and error, sorted.
    pub failures: Vec<(usize, Error)>,
}

impl BulkError {
    /// All `count` operations failed with the same `error`.
    pub fn all(count: usize, error: Error) -> Self {
        let (kind, text) = (error.kind(), error.to_string());
        let mut failures: Vec<_> = (1..count)
            .map(|index| (index, Error::new(kind, text.clone())))
            .collect();
        failures.insert(0, (0, error));
        Self { failures }
    }
}

/// One line per failure; a shared error is printed once.
impl fmt::Display for BulkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<_> = self.failures.iter().map(|(_, error)| error.to_string()).collect();
        lines.dedup();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for BulkError {}

/// One [`StateStore::get`] per request; answers are in request order. Once the bounds are exceeded, no call
/// starts and running ones are cancelled.
pub async fn each_get<S: StateStore + ?Sized>(
    store: &S,
    requests: &[Get],
    bounds: Bounds,
) -> Result<Vec<BulkItem>> {
    let tally = &bounds.tally();
    let calls = requests.iter().enumerate().map(|(index, request)| async move {
        let answer = tally.answer(request.key.as_str(), store.get(request).await)?;
        Ok::<_, Error>((index, answer))
    });
    // Collected first: a lazy iterator of borrowing futures is not `Send` for all lifetimes.
    let calls: Vec<_> = calls.collect();
    // In any order, so that an oversized value ends the call at once.
    let answers = stream::iter(calls).buffer_unordered(limit(bounds.parallelism));
    let mut answers: Vec<_> = answers.try_collect().await?;
    answers.sort_unstable_by_key(|(index, _)| *index);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// One [`StateStore::set`] per request.
pub async fn each_set<S: StateStore + ?Sized>(
    store: &S,
    requests: &[Set],
    parallelism: usize,
) -> Result<(), BulkError> {
    let calls: Vec<_> = requests.iter().map(|request| store.set(request)).collect();
    failures(stream::iter(calls).buffered(limit(parallelism)).collect().await)
}

/// One [`StateStore::delete`] per request.
pub async fn each_delete<S: StateStore + ?Sized>(
    store: &S,
    requests: &[Delete],
    parallelism: usize,
) -> Result<(), BulkError> {
    let calls: Vec<_> = requests.iter().map(|request| store.delete(request)).collect();
    failures(stream::iter(calls).buffered(limit(parallelism)).collect().await)
}

fn limit(parallelism: usize) -> usize {
    if parallelism == 0 {
        MAX_CONCURRENT_CALLS
    } else {
        parallelism.min(MAX_CONCURRENT_CALLS)
    }
}

fn failures(results: Vec<Result<()>>) -> Result<(), BulkError> {
    let failures: Vec<_> = results
        .into_iter()
        .enumerate()
        .filter_map(|(index, result)| result.err().map(|error| (index, error)))
        .collect();
    if failures.is_empty() {
        Ok(())
    } else {
        Err(BulkError { failures })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use bytes::Bytes;

    use super::*;
    use crate::Kind;
    use crate::state::Feature;

    /// Returns ten bytes for `large` and never answers for other keys. Counts the calls.
    #[derive(Default)]
    struct Silent(AtomicUsize);

    #[async_trait]
    impl StateStore for Silent {
        fn features(&self) -> &[Feature] {
            &[]
        }

        async fn get(&self, request: &Get) -> Result<Option<Item>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            if request.key != "large" {
                std::future::pending::<()>().await;
            }
            Ok(Some(Item {
                data: Bytes::from_static(&[b'x'; 10]),
                ..Item::default()
            }))
        }

        async fn set(&self, _request: &Set) -> Result<()> {
            Ok(())
        }

        async fn delete(&self, _request: &Delete) -> Result<()> {
            Ok(())
        }

        async fn ping(&self) -> Result<()> {
            Ok(())
        }

        async fn close(&self) {}
    }

    #[tokio::test]
    async fn oversized_value_cancels_bulk_get() {
        let names = [&["other"; 3][..], &["large"; 1], &["other"; 100]].concat();
        let requests: Vec<_> = names.into_iter().map(Get::key).collect();
        let (store, bounds) = (
            Silent::default(),
            Bounds {
                parallelism: 4,
                bytes: 9,
            },
        );
        let error = each_get(&store, &requests, bounds).await.unwrap_err();
        assert_eq!(error.kind(), Kind::TooLarge);
        assert_eq!(store.0.load(Ordering::SeqCst), 4, "keys that were asked for");
    }

    #[test]
    fn bulk_error_has_line_per_failure() {
        let error = BulkError {
            failures: vec![(0, Error::etag_mismatch()), (2, Error::closed())],
        };
        assert_eq!(
            error.to_string(),
            "possible etag mismatch. error from state store\nthe component is closed"
        );
    }

    #[test]
    fn one_error_fails_all_operations() {
        let error = BulkError::all(3, Error::closed());
        let indexes: Vec<_> = error.failures.iter().map(|(index, _)| *index).collect();
        assert_eq!(indexes, [0, 1, 2]);
        assert_eq!(error.to_string(), "the component is closed");
    }
}
