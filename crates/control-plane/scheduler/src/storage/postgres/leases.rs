//! Leases of schedulers by the server's clock, and periodic cleanup.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::session::Sessions;
use super::watch::CHANNEL;
use super::writer::next_revision;
use crate::fault;
use crate::storage::StorageError;

const LOG: &str = "dapr.scheduler.storage";
/// Interval of checks for expired leases.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Interval of removals of old tombstones.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Number of revisions whose tombstones are kept. A watch that is further behind reads everything again.
const MAX_TOMBSTONES: i64 = 100_000;

/// How much faster than the local clock the server's may run between two checks. Less than the margin at
/// which a scheduler drops its jobs before its lease expires.
const TOLERANCE: Duration = Duration::from_secs(1);

/// The last reading of the server's clock, and the local time just before it.
#[derive(Default)]
pub(super) struct ServerClock(Mutex<Option<(Instant, SystemTime)>>);

impl ServerClock {
    /// Records a reading and returns how far the server's clock was set ahead since the last one. `asked` is
    /// the local time before the reading.
    fn record(&self, asked: Instant, shown: SystemTime) -> Option<Duration> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, then) = last.replace((asked, shown))?;
        let passed = shown.duration_since(then).ok()?;
        passed
            .checked_sub(before.elapsed())
            .filter(|ahead| *ahead > TOLERANCE)
    }
}

/// Selects the leases to end.
#[derive(Clone, Copy)]
pub(super) enum Ending {
    /// This lease.
    Lease(i64),
    /// The leases that have expired at this server time.
    By(SystemTime),
}

/// Deletes expired leases first, since no scheduler may have run to end them.
pub(super) async fn grant(
    sessions: &Sessions,
    clock: &ServerClock,
    lifetime: Duration,
) -> Result<i64, StorageError> {
    if let Some(ending) = expired(sessions, clock).await? {
        end(sessions, ending).await?;
    }
    let session = sessions.get().await?;
    let sql = "INSERT INTO scheduler_leases (lifetime, ends)
               VALUES ($1 * interval '1 second', clock_timestamp() + $1 * interval '1 second') RETURNING id";
    let row = session
        .client()
        .query_one(sql, &[&lifetime.as_secs_f64()])
        .await?;
    session.keep();
    Ok(row.try_get(0)?)
}

/// `false` if the lease has ended. An expired lease can be renewed until it is deleted, because its keys
/// still exist.
pub(super) async fn renew(sessions: &Sessions, lease: i64) -> Result<bool, StorageError> {
    let session = sessions.get().await?;
    let sql = "UPDATE scheduler_leases SET ends = clock_timestamp() + lifetime WHERE id = $1";
    let kept = session.client().execute(sql, &[&lease]).await?;
    session.keep();
    Ok(kept == 1)
}

/// Deletes leases and their keys.
pub(super) async fn end(sessions: &Sessions, ending: Ending) -> Result<(), StorageError> {
    let (only, by) = match ending {
        Ending::Lease(lease) => (Some(lease), None),
        Ending::By(moment) => (None, Some(moment)),
    };
    let mut session = sessions.get().await?;
    let transaction = session.client_mut().transaction().await?;
    let revision = next_revision(&transaction).await?;
    let sql = "DELETE FROM scheduler_leases
               WHERE id = $1::bigint OR ends <= $2::timestamptz RETURNING id";
    let rows = transaction.query(sql, &[&only, &by]).await?;
    fault::point("leases ended");
    let ids: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    if ids.is_empty() {
        transaction.rollback().await?;
    } else {
        let sql = "WITH gone AS (DELETE FROM scheduler_pairs WHERE lease = ANY($1) RETURNING key)
                   INSERT INTO scheduler_gone SELECT $2, key FROM gone";
        transaction.execute(sql, &[&ids, &revision]).await?;
        fault::point("keys of leases deleted");
        transaction.batch_execute(&format!("NOTIFY {CHANNEL}")).await?;
        fault::point("before it is committed");
        transaction.commit().await?;
        fault::point("committed");
    }
    session.keep();
    Ok(())
}

/// Ends expired leases and removes old tombstones, periodically. All schedulers run it; the first one to act
/// wins.
pub(super) async fn sweep(sessions: Arc<Sessions>, clock: Arc<ServerClock>) {
    let mut forgot = Instant::now();
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let swept = async {
            if let Some(ending) = expired(&sessions, &clock).await? {
                end(&sessions, ending).await?;
            }
            if forgot.elapsed() >= PRUNE_INTERVAL {
                forgot = Instant::now();
                prune(&sessions).await?;
            }
            Ok::<_, StorageError>(())
        };
        if let Err(error) = swept.await {
            tracing::debug!(target: LOG, "cannot look for expired leases: {error}");
        }
    }
}

/// The expired leases, if any. The server's clock may be set at any time; that changes a lease by at most the
/// time since the last check.
async fn expired(sessions: &Sessions, clock: &ServerClock) -> Result<Option<Ending>, StorageError> {
    let session = sessions.get().await?;
    // A lease that ends later than if renewed just now shows that the server's clock was set back, so its end
    // is capped. Its scheduler uses a local clock and has not renewed it later.
    let sql = "WITH bounded AS (
                   UPDATE scheduler_leases SET ends = clock_timestamp() + lifetime
                   WHERE ends > clock_timestamp() + lifetime
               ), looked AS MATERIALIZED (SELECT clock_timestamp() AS at)
               SELECT at, EXISTS (SELECT FROM scheduler_leases WHERE ends <= at) FROM looked";
    let statement = session.client().prepare_cached(sql).await?;
    let asked = Instant::now();
    let row = session.client().query_one(&statement, &[]).await?;
    let (shown, any): (SystemTime, bool) = (row.try_get(0)?, row.try_get(1)?);
    let ahead = clock.record(asked, shown);
    if let Some(ahead) = ahead {
        // Extends all leases: otherwise all live schedulers would lose their shards at once, and a
        // partitioned one, which uses its local clock, would not notice.
        let sql = "UPDATE scheduler_leases SET ends = clock_timestamp() + lifetime";
        session.client().execute(sql, &[]).await?;
        tracing::warn!(
            target: LOG,
            "PostgreSQL's clock was set {} s ahead: extending the leases of all schedulers",
            ahead.as_secs()
        );
    }
    session.keep();
    Ok((any && ahead.is_none()).then_some(Ending::By(shown)))
}

async fn prune(sessions: &Sessions) -> Result<(), StorageError> {
    let mut session = sessions.get().await?;
    let transaction = session.client_mut().transaction().await?;
    let sql = "UPDATE scheduler_meta m SET value = greatest(m.value, r.value - $1) FROM scheduler_meta r
               WHERE m.name = 'forgotten' AND r.name = 'revision' RETURNING m.value";
    let upto: i64 = transaction.query_one(sql, &[&MAX_TOMBSTONES]).await?.try_get(0)?;
    transaction
        .execute("DELETE FROM scheduler_gone WHERE revision <= $1", &[&upto])
        .await?;
    transaction.commit().await?;
    session.keep();
    Ok(())
}

#[cfg(test)]
mod tests;
