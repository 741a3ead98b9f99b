//! Until when schedulers count as alive, by the server's clock; and what goes with time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::session::Sessions;
use super::watch::CHANNEL;
use super::writer::next_revision;
use crate::fault;
use crate::storage::StorageError;

const LOG: &str = "dapr.scheduler.storage";
/// Between two looks for leases that have ended.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Between two times that deletions are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(60);
/// Revisions whose deletions are kept: who follows and was away for longer reads all anew.
const KEPT: i64 = 100_000;

/// Those that have ended go first: while no scheduler ran, nobody ended them.
pub(super) async fn grant(sessions: &Sessions, lifetime: Duration) -> Result<i64, StorageError> {
    if any_ended(sessions).await? {
        end(sessions, None).await?;
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

/// `false`: it has ended.
pub(super) async fn keep(sessions: &Sessions, lease: i64) -> Result<bool, StorageError> {
    let session = sessions.get().await?;
    let sql = "UPDATE scheduler_leases SET ends = clock_timestamp() + lifetime
               WHERE id = $1 AND ends > clock_timestamp()";
    let kept = session.client().execute(sql, &[&lease]).await?;
    session.keep();
    Ok(kept == 1)
}

/// Ends this lease, or all whose time has come, and deletes their keys.
pub(super) async fn end(sessions: &Sessions, only: Option<i64>) -> Result<(), StorageError> {
    let mut session = sessions.get().await?;
    let transaction = session.client_mut().transaction().await?;
    let revision = next_revision(&transaction).await?;
    let sql = "DELETE FROM scheduler_leases
               WHERE CASE WHEN $1::bigint IS NULL THEN ends <= clock_timestamp() ELSE id = $1 END RETURNING id";
    let rows = transaction.query(sql, &[&only]).await?;
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

/// Ends leases when their time has come, and forgets old deletions. Each scheduler does; the first one does it.
pub(super) async fn sweep(sessions: Arc<Sessions>) {
    let mut forgot = Instant::now();
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let swept = async {
            if any_ended(&sessions).await? {
                end(&sessions, None).await?;
            }
            if forgot.elapsed() >= FORGET_EVERY {
                forgot = Instant::now();
                forget(&sessions).await?;
            }
            Ok::<_, StorageError>(())
        };
        if let Err(error) = swept.await {
            tracing::debug!(target: LOG, "Leases that have ended could not be looked for: {error}");
        }
    }
}

/// Whether there are leases that have ended; those that would go on for longer than they may are shortened.
async fn any_ended(sessions: &Sessions) -> Result<bool, StorageError> {
    let session = sessions.get().await?;
    // None ends later than if it had been kept just now: where one does, the server's clock was set back meanwhile. Its
    // scheduler goes by a clock of its own, and has not kept it later than that.
    let sql = "WITH bounded AS (
                   UPDATE scheduler_leases SET ends = clock_timestamp() + lifetime
                   WHERE ends > clock_timestamp() + lifetime
               ) SELECT EXISTS (SELECT FROM scheduler_leases WHERE ends <= clock_timestamp())";
    let statement = session.client().prepare_cached(sql).await?;
    let row = session.client().query_one(&statement, &[]).await?;
    session.keep();
    Ok(row.try_get(0)?)
}

async fn forget(sessions: &Sessions) -> Result<(), StorageError> {
    let mut session = sessions.get().await?;
    let transaction = session.client_mut().transaction().await?;
    let sql = "UPDATE scheduler_meta m SET value = greatest(m.value, r.value - $1) FROM scheduler_meta r
               WHERE m.name = 'forgotten' AND r.name = 'revision' RETURNING m.value";
    let upto: i64 = transaction.query_one(sql, &[&KEPT]).await?.try_get(0)?;
    transaction
        .execute("DELETE FROM scheduler_gone WHERE revision <= $1", &[&upto])
        .await?;
    transaction.commit().await?;
    session.keep();
    Ok(())
}
