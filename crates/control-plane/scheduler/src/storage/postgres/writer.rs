//! The writer task. Queued writes share a transaction, and their callers are answered once that is committed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use deadpool_postgres::Transaction;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::below;
use super::plan::{KeyWrite, Plan, Written};
use super::session::{CALL_TIMEOUT, Sessions, timed_out};
use super::watch::CHANNEL;
use crate::fault;
use crate::storage::StorageError;
use crate::storage::shared::backend::{Condition, Write};

/// Capacity of the write queue.
const WAITING: usize = 1024;
/// Maximum number of calls per transaction.
const BATCH: usize = 256;

struct WriteRequest {
    conditions: Vec<Condition>,
    writes: Vec<Write>,
    reply: oneshot::Sender<Result<bool, StorageError>>,
}

/// A handle to the task.
pub(super) struct Writer {
    requests: mpsc::Sender<WriteRequest>,
    _task: AbortOnDropHandle<()>,
}

impl Writer {
    /// Starts the task; it ends when the writer is dropped, which callers borrow while they wait.
    pub(super) fn start(sessions: Arc<Sessions>) -> Self {
        let (send, mut queue) = mpsc::channel(WAITING);
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            while queue.recv_many(&mut asked, BATCH).await > 0 {
                let outcome = timeout(CALL_TIMEOUT, write(&sessions, &asked)).await;
                let mut outcomes = match outcome.unwrap_or_else(|_| Err(timed_out())) {
                    Ok(outcomes) => outcomes,
                    // A call that the server refuses must not fail the others of its batch.
                    Err(error) if asked.len() > 1 && !error.is_passing() => {
                        let mut each = Vec::with_capacity(asked.len());
                        for one in &asked {
                            let outcome =
                                timeout(CALL_TIMEOUT, write(&sessions, std::slice::from_ref(one))).await;
                            let outcome = outcome.unwrap_or_else(|_| Err(timed_out()));
                            each.push(outcome.and_then(|mut one| one.pop().unwrap_or(Ok(false))));
                        }
                        each
                    }
                    Err(error) => asked.iter().map(|_| Err(error.clone())).collect(),
                };
                for (asked, outcome) in asked.drain(..).zip(outcomes.drain(..)) {
                    let _ = asked.reply.send(outcome);
                }
            }
        });
        Self {
            requests: send,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Commits all writes or none; `false` if a condition does not hold.
    pub(super) async fn commit(
        &self,
        conditions: Vec<Condition>,
        writes: Vec<Write>,
    ) -> Result<bool, StorageError> {
        let (reply, answer) = oneshot::channel();
        let asked = WriteRequest {
            conditions,
            writes,
            reply,
        };
        self.requests
            .send(asked)
            .await
            .map_err(|_| StorageError::Closed)?;
        answer.await.unwrap_or(Err(StorageError::Closed))
    }
}

/// Commits all calls in one transaction and returns their results.
async fn write(
    sessions: &Sessions,
    asked: &[WriteRequest],
) -> Result<Vec<Result<bool, StorageError>>, StorageError> {
    let mut session = sessions.get().await?;
    let transaction = session.client_mut().transaction().await?;
    fault::point("begun");
    let revision = next_revision(&transaction).await?;
    let known = known(&transaction, asked).await?;
    let leases = leases(&transaction, asked).await?;
    fault::point("conditions read");
    let mut plan = Plan::new(known, leases);
    let outcomes = asked
        .iter()
        .map(|asked| {
            let added = plan.add(revision, &asked.conditions, &asked.writes);
            added.ok_or_else(|| StorageError::Failed("the lease has expired".to_owned()))
        })
        .collect();
    if plan.is_empty() {
        transaction.rollback().await?;
    } else {
        carry_out(&transaction, revision, plan).await?;
        transaction.commit().await.map_err(unanswered)?;
        fault::point("committed");
    }
    session.keep();
    Ok(outcomes)
}

/// A commit without confirmation may have succeeded, whatever the error is.
fn unanswered(error: tokio_postgres::Error) -> StorageError {
    match StorageError::from(error) {
        StorageError::Unavailable(why) => StorageError::Unanswered(why),
        other => other,
    }
}

/// Increments the revision; other writers wait until the transaction ends.
pub(super) async fn next_revision(transaction: &Transaction<'_>) -> Result<i64, StorageError> {
    let sql = "UPDATE scheduler_meta SET value = value + 1 WHERE name = 'revision' RETURNING value";
    let statement = transaction.prepare_cached(sql).await?;
    let revision = transaction.query_one(&statement, &[]).await?.try_get(0)?;
    fault::point("revision counted");
    Ok(revision)
}

async fn known(
    transaction: &Transaction<'_>,
    asked: &[WriteRequest],
) -> Result<HashMap<Vec<u8>, Written>, StorageError> {
    let conditions = asked.iter().flat_map(|asked| &asked.conditions);
    let keys: HashSet<&[u8]> = conditions
        .map(|condition| match condition {
            Condition::Modified(key, _) | Condition::Created(key, _) => key.as_slice(),
        })
        .collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let keys: Vec<&[u8]> = keys.into_iter().collect();
    let sql = "SELECT key, created, modified FROM scheduler_pairs WHERE key = ANY($1)";
    let statement = transaction.prepare_cached(sql).await?;
    let mut known = HashMap::new();
    for row in transaction.query(&statement, &[&keys]).await? {
        let written = Written {
            created: row.try_get(1)?,
            modified: row.try_get(2)?,
        };
        known.insert(row.try_get(0)?, written);
    }
    Ok(known)
}

/// The live leases among those named. None of them ends while the transaction locks the revision.
async fn leases(transaction: &Transaction<'_>, asked: &[WriteRequest]) -> Result<HashSet<i64>, StorageError> {
    let writes = asked.iter().flat_map(|asked| &asked.writes);
    let named: Vec<i64> = writes
        .filter_map(|write| match write {
            Write::Put { lease, .. } => *lease,
            Write::Delete(_) => None,
        })
        .collect();
    if named.is_empty() {
        return Ok(HashSet::new());
    }
    let sql = "SELECT id FROM scheduler_leases WHERE id = ANY($1)";
    let rows = transaction.query(sql, &[&named]).await?;
    let ids: Result<HashSet<i64>, _> = rows.iter().map(|row| row.try_get(0)).collect();
    Ok(ids?)
}

async fn carry_out(transaction: &Transaction<'_>, revision: i64, plan: Plan) -> Result<(), StorageError> {
    let mut put = [PutBatch::default(), PutBatch::default()];
    let mut deleted: Vec<Vec<u8>> = Vec::new();
    for (key, last) in plan.keys {
        match last {
            KeyWrite::Delete => deleted.push(key),
            KeyWrite::Put { value, lease, anew } => {
                let puts = &mut put[usize::from(anew)];
                puts.keys.push(key);
                puts.values.push(value);
                puts.leases.push(lease);
            }
        }
    }
    let kept: Vec<&[u8]> = put
        .iter()
        .flat_map(|puts| &puts.keys)
        .map(Vec::as_slice)
        .collect();
    for range in plan.ranges {
        let below = below(&range, "$2");
        let sql = format!(
            "WITH gone AS (
                 DELETE FROM scheduler_pairs
                 WHERE key >= $1 AND {below} AND key <> ALL($3) RETURNING key)
             INSERT INTO scheduler_gone SELECT $4, key FROM gone"
        );
        let statement = transaction.prepare_cached(&sql).await?;
        transaction
            .execute(&statement, &[&range.from, &range.below, &kept, &revision])
            .await?;
        fault::point("range deleted");
    }
    if !deleted.is_empty() {
        let sql = "WITH gone AS (DELETE FROM scheduler_pairs WHERE key = ANY($1) RETURNING key)
                   INSERT INTO scheduler_gone SELECT $2, key FROM gone";
        let statement = transaction.prepare_cached(sql).await?;
        transaction.execute(&statement, &[&deleted, &revision]).await?;
        fault::point("keys deleted");
    }
    for (puts, on_conflict) in put.iter().zip([
        "modified = excluded.modified, version = p.version + 1",
        "created = excluded.created, modified = excluded.modified, version = 1",
    ]) {
        if puts.keys.is_empty() {
            continue;
        }
        let sql = format!(
            "INSERT INTO scheduler_pairs AS p (key, value, created, modified, version, lease)
             SELECT key, value, $4, $4, 1, lease FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
                 AS given (key, value, lease)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, lease = excluded.lease, {on_conflict}"
        );
        let statement = transaction.prepare_cached(&sql).await?;
        transaction
            .execute(&statement, &[&puts.keys, &puts.values, &puts.leases, &revision])
            .await?;
        fault::point("keys written");
    }
    transaction.batch_execute(&format!("NOTIFY {CHANNEL}")).await?;
    fault::point("before it is committed");
    Ok(())
}

#[derive(Default)]
struct PutBatch {
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    leases: Vec<Option<i64>>,
}
