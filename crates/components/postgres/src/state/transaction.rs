//! Transactions in few round trips: one statement if the operations are independent, otherwise all statements
//! pipelined.

use std::{
    collections::HashSet,
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use outrigger_component::{Result, state::Transaction};
use tokio_postgres::types::Type;

use super::{
    super::{
        layout::{Generation, Shape},
        pool::failure,
    },
    PostgresState,
    call::{Call, Change, Owned, Stored, Write, boxed},
};

/// Maximum bytes of values in one statement: the server rejects messages of a gibibyte.
const MAX_STATEMENT: usize = 64 * 1024 * 1024;

impl PostgresState {
    /// Applies all changes or none. Returns the new ETag of `etag_of`, if the statement can.
    pub(super) async fn change(
        &self,
        transaction: &Transaction,
        etag_of: Option<&str>,
    ) -> Result<Option<String>> {
        let operations = transaction.operations.iter();
        let mut changes = operations
            .map(|operation| Change::of(operation, self.generation))
            .collect::<Result<Vec<_>>>()?;
        let (call, has_etag) = match changes.len() {
            0 => return Ok(None),
            1 => {
                let change = changes.remove(0);
                let has_etag = etag_of == Some(change.key.as_str());
                (change.call(&self.layout, self.generation), has_etag)
            }
            // A caller that requests an ETag excludes other writers of these keys, so lock order does not
            // matter.
            _ if are_independent(&changes) && (etag_of.is_some() || are_in_order(&changes)) => {
                self.whole(changes, etag_of)
            }
            _ => return self.one_by_one(changes, etag_of).await,
        };
        let etag = self.once(&call).await?;
        Ok(etag.filter(|_| has_etag))
    }

    /// One statement, and whether its answer is about `etag_of`. The changes are independent.
    fn whole(&self, changes: Vec<Change>, etag_of: Option<&str>) -> (Call<'_>, bool) {
        let mut rows = Rows::default();
        let mut removed = Vec::new();
        let mut guard = None;
        for change in changes {
            match change {
                Change { etag: Some(_), .. } => guard = Some(change),
                Change {
                    key,
                    write: Some(write),
                    ..
                } => rows.push(key, write),
                Change { key, .. } => removed.push(key),
            }
        }
        let shape = Shape {
            writes: !rows.keys.is_empty(),
            removals: !removed.is_empty(),
            guard: guard.is_some(),
        };
        let (mut parameters, has_etag) = match guard {
            Some(guard) => {
                let has_etag = etag_of == Some(guard.key.as_str());
                (guard.call(&self.layout, self.generation).parameters, has_etag)
            }
            None => (Vec::new(), etag_of.is_some()),
        };
        if shape.writes {
            parameters.extend(rows.parameters(self.generation));
        }
        if shape.removals {
            parameters.push(boxed(removed, Type::TEXT_ARRAY));
        }
        if shape.writes && !shape.guard {
            parameters.push(boxed(etag_of.unwrap_or_default().to_owned(), Type::TEXT));
        }
        let call = Call {
            sql: self.layout.whole(shape),
            parameters,
            guarded: shape.guard,
        };
        (call, has_etag)
    }

    /// One statement per change in order, pipelined.
    async fn one_by_one(&self, changes: Vec<Change>, etag_of: Option<&str>) -> Result<Option<String>> {
        let last = changes
            .iter()
            .rposition(|change| etag_of == Some(change.key.as_str()));
        let calls: Vec<Call<'_>> = changes
            .into_iter()
            .map(|change| change.call(&self.layout, self.generation))
            .collect();
        let all = async {
            let mut session = self.pool.session().await?;
            // Dropped on an error, the transaction rolls back before the next statement. Statements follow
            // after the answer to BEGIN; without a transaction, each would take effect separately.
            let result = async {
                let transaction = session.client_mut()?.transaction().await.map_err(failure)?;
                // Preparing a statement only at its turn would send it after later ones.
                for call in &calls {
                    self.pool.prepared(&transaction, call.sql).await?;
                }
                let sent = calls
                    .iter()
                    .map(|call| Box::pin(call.run(&self.pool, &transaction)));
                let etags = start_in_order(sent.collect()).await;
                // The first failure causes the later ones.
                let etags = etags.into_iter().collect::<Result<Vec<_>>>()?;
                transaction.commit().await.map_err(failure)?;
                Ok(last.and_then(|last| etags.into_iter().nth(last)).flatten())
            }
            .await;
            session.settle();
            result
        };
        self.pool.bound(all).await
    }
}

/// Whether all changes can take effect at once: keys are unique, and at most one write has a condition.
fn are_independent(changes: &[Change]) -> bool {
    let mut keys = HashSet::with_capacity(changes.len());
    let mut guards = 0;
    let mut size = 0usize;
    changes.iter().all(|change| {
        guards += usize::from(change.etag.is_some());
        let fits = match &change.write {
            None => change.etag.is_none(),
            Some(write) => {
                size = size.saturating_add(write.value.size());
                !write.first || change.etag.is_some()
            }
        };
        fits && keys.insert(change.key.as_str()) && guards <= 1 && size <= MAX_STATEMENT
    })
}

/// Whether one statement locks rows in the order of the changes: transactions that lock the same rows in
/// different orders may deadlock.
fn are_in_order(changes: &[Change]) -> bool {
    changes.is_sorted_by_key(|change| (change.etag.is_none(), change.write.is_none()))
}

/// Rows to write, column by column.
#[derive(Default)]
struct Rows {
    keys: Vec<String>,
    texts: Vec<String>,
    bytes: Vec<Vec<u8>>,
    ttls: Vec<Option<i32>>,
    binary: Vec<bool>,
}

impl Rows {
    fn push(&mut self, key: String, write: Write) {
        self.keys.push(key);
        match write.value {
            Stored::Text(text) => self.texts.push(text),
            Stored::Bytes(bytes) => self.bytes.push(bytes),
        }
        self.ttls.push(write.ttl);
        self.binary.push(write.binary);
    }

    fn parameters(self, generation: Generation) -> Vec<(Owned, Type)> {
        let keys = boxed(self.keys, Type::TEXT_ARRAY);
        let ttls = boxed(self.ttls, Type::INT4_ARRAY);
        match generation {
            Generation::V1 => vec![
                keys,
                boxed(self.texts, Type::TEXT_ARRAY),
                ttls,
                boxed(self.binary, Type::BOOL_ARRAY),
            ],
            Generation::V2 => vec![keys, boxed(self.bytes, Type::BYTEA_ARRAY), ttls],
        }
    }
}

/// Starts `futures` in order before waiting for any of them; results are in the same order.
async fn start_in_order<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut begun: Vec<Option<F::Output>> = Vec::with_capacity(futures.len());
    poll_fn(|context| {
        for future in &mut futures {
            begun.push(match future.as_mut().poll(context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            });
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(futures.len());
    for (future, output) in futures.into_iter().zip(begun) {
        outputs.push(match output {
            Some(output) => output,
            None => future.await,
        });
    }
    outputs
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use tokio::sync::watch;

    use super::*;

    #[tokio::test]
    async fn pipelines_statements_in_order() {
        let sent = Mutex::new(Vec::new());
        let (answers, _) = watch::channel(false);
        let futures = (0..100).map(|number| {
            let mut answered = answers.subscribe();
            let (sent, answers) = (&sent, &answers);
            Box::pin(async move {
                let count = {
                    let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
                    sent.push(number);
                    sent.len()
                };
                if count == 100 {
                    answers.send_replace(true);
                } else {
                    answered.wait_for(|answered| *answered).await.unwrap();
                }
                number
            })
        });
        let expected: Vec<_> = (0..100).collect();
        assert_eq!(start_in_order(futures.collect()).await, expected);
        assert_eq!(*sent.lock().unwrap(), expected);
    }

    #[test]
    fn ordered_operations_are_separate_statements() {
        let write = |key: &str, etag: Option<&str>, first| Change {
            key: key.to_owned(),
            write: Some(Write {
                value: Stored::Text("1".to_owned()),
                binary: false,
                ttl: None,
                first,
            }),
            etag: etag.map(str::to_owned),
        };
        let removal = |key: &str, etag: Option<&str>| Change {
            key: key.to_owned(),
            write: None,
            etag: etag.map(str::to_owned),
        };
        for (changes, expected) in [
            (vec![write("a", None, false), removal("b", None)], true),
            (vec![write("a", None, false), write("b", Some("1"), false)], true),
            (vec![write("a", None, false), removal("a", None)], false),
            (
                vec![write("a", Some("1"), false), write("b", Some("1"), false)],
                false,
            ),
            (vec![write("a", None, true), write("b", None, false)], false),
            (vec![write("a", None, false), removal("b", Some("1"))], false),
        ] {
            assert_eq!(are_independent(&changes), expected);
        }
        for (changes, expected) in [
            (
                vec![
                    write("a", Some("1"), false),
                    write("b", None, false),
                    removal("c", None),
                ],
                true,
            ),
            (vec![write("a", None, false), write("b", Some("1"), false)], false),
            (vec![removal("a", None), write("b", None, false)], false),
        ] {
            assert_eq!(are_in_order(&changes), expected);
        }
    }
}
