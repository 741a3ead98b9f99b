//! PostgreSQL as the store: the keys and values of the etcd store in tables, with one revision counter.
//! Concurrent writes of a scheduler share a transaction; transactions of all schedulers are serialized.

mod leases;
mod plan;
mod schema;
mod session;
mod watch;
mod writer;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_stream::StreamExt;
use tokio_util::task::AbortOnDropHandle;

use leases::Ending;
use session::{CALL_TIMEOUT, Sessions, timed_out};
use watch::{Notified, PostgresWatch};
use writer::Writer;

use super::StorageError;
use super::pair::{Pair, Range};
use super::shared::backend::{Backend, Condition, Scan, Watch, Write};

/// Pairs per chunk.
const CHUNK: usize = 1000;
/// Chunks read ahead.
const CHUNKS: usize = 2;

/// A shared store on PostgreSQL.
pub(crate) struct Postgres {
    sessions: Arc<Sessions>,
    writer: Writer,
    notified: Notified,
    clock: Arc<leases::ServerClock>,
    _sweeping: AbortOnDropHandle<()>,
}

/// Checks a connection string without connecting.
///
/// # Errors
/// The problem.
pub(crate) fn check(connection: &str) -> Result<(), String> {
    session::read(connection).map(drop)
}

/// The SQL condition for the upper end of a range. A nullable parameter would leave the end unbounded in a
/// generic plan, so the index could not use it.
fn below(range: &Range, parameter: &str) -> String {
    match range.below {
        Some(_) => format!("key < {parameter}"),
        None => format!("{parameter}::bytea IS NULL"),
    }
}

impl Postgres {
    /// Connects on first use, and reconnects after failures.
    ///
    /// # Errors
    /// If the connection string is not valid.
    pub(crate) fn new(connection: &str) -> Result<Self, String> {
        let sessions = Arc::new(Sessions::new(connection)?);
        let clock = Arc::<leases::ServerClock>::default();
        let sweeping = leases::sweep(Arc::clone(&sessions), Arc::clone(&clock));
        Ok(Self {
            writer: Writer::start(Arc::clone(&sessions)),
            notified: watch::listen(Arc::clone(&sessions)),
            clock,
            _sweeping: AbortOnDropHandle::new(tokio::spawn(sweeping)),
            sessions,
        })
    }
}

/// The columns of a pair, in the order of [`pair`].
const COLUMNS: &str = "key, value, created, modified, version";

fn pair(row: &Row) -> Result<Pair, tokio_postgres::Error> {
    Ok(Pair {
        key: row.try_get(0)?,
        value: row.try_get(1)?,
        created: row.try_get(2)?,
        modified: row.try_get(3)?,
        version: row.try_get(4)?,
    })
}

#[async_trait]
impl Backend for Postgres {
    async fn get(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Pair>>, StorageError> {
        let reading = async {
            let session = self.sessions.get().await?;
            let sql = format!("SELECT {COLUMNS} FROM scheduler_pairs WHERE key = ANY($1)");
            let statement = session.client().prepare_cached(&sql).await?;
            let rows = session.client().query(&statement, &[&keys]).await?;
            session.keep();
            let found: Vec<Pair> = rows.iter().map(pair).collect::<Result<_, _>>()?;
            Ok(found)
        };
        let found = timeout(CALL_TIMEOUT, reading)
            .await
            .unwrap_or_else(|_| Err(timed_out()))?;
        // A key may be requested twice: by a due job of this tenure, and of an earlier one.
        let by_key: std::collections::HashMap<&[u8], &Pair> =
            found.iter().map(|pair| (pair.key.as_slice(), pair)).collect();
        Ok(keys
            .iter()
            .map(|key| by_key.get(key.as_slice()).map(|&pair| pair.clone()))
            .collect())
    }

    async fn scan(&self, range: Range, _: Option<i64>) -> Result<Scan, StorageError> {
        let beginning = async {
            let session = self.sessions.get().await?;
            let revision = schema::revision(session.client()).await?;
            let below = below(&range, "$2");
            let sql =
                format!("SELECT {COLUMNS} FROM scheduler_pairs WHERE key >= $1 AND {below} ORDER BY key");
            let statement = session.client().prepare_cached(&sql).await?;
            let rows = session
                .client()
                .query_raw(&statement, [Some(&range.from), range.below.as_ref()])
                .await?;
            Ok((session, revision, rows))
        };
        let (session, revision, rows) = timeout(CALL_TIMEOUT, beginning)
            .await
            .unwrap_or_else(|_| Err(timed_out()))?;
        let (send, chunks) = mpsc::channel(CHUNKS);
        let reading = tokio::spawn(async move {
            let mut rows = pin!(rows);
            let mut chunk = Vec::with_capacity(CHUNK);
            loop {
                let row = match timeout(CALL_TIMEOUT, rows.next()).await {
                    Err(_) => Some(Err(timed_out())),
                    Ok(row) => row.map(|row| row.and_then(|row| pair(&row)).map_err(StorageError::from)),
                };
                let (full, ended) = match row {
                    Some(Ok(pair)) => {
                        chunk.push(pair);
                        (chunk.len() == CHUNK, false)
                    }
                    Some(Err(error)) => {
                        let _ = send.send(Err(error)).await;
                        return;
                    }
                    None => (true, true),
                };
                if full && send.send(Ok(std::mem::take(&mut chunk))).await.is_err() {
                    return;
                }
                if ended {
                    session.keep();
                    return;
                }
            }
        });
        Ok(Scan::new(revision, chunks, reading))
    }

    async fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool, StorageError> {
        let writing = self.writer.commit(conditions.to_vec(), writes.to_vec());
        timeout(CALL_TIMEOUT, writing)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }

    fn watch(&self, range: Range, after: i64) -> Box<dyn Watch> {
        Box::new(PostgresWatch::new(
            Arc::clone(&self.sessions),
            self.notified.clone(),
            range,
            after,
        ))
    }

    fn history(&self) -> u64 {
        self.sessions.history()
    }

    async fn grant(&self, lifetime: Duration) -> Result<i64, StorageError> {
        timeout(CALL_TIMEOUT, leases::grant(&self.sessions, &self.clock, lifetime))
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }

    async fn keep(&self, lease: i64) -> Result<bool, StorageError> {
        timeout(CALL_TIMEOUT, leases::renew(&self.sessions, lease))
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }

    async fn revoke(&self, lease: i64) -> Result<(), StorageError> {
        timeout(CALL_TIMEOUT, leases::end(&self.sessions, Ending::Lease(lease)))
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }
}
