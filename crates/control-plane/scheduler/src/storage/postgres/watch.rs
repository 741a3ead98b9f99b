//! Watches a range of keys: polls when the server notifies of a change, and periodically.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use super::pair;
use super::session::{CALL_TIMEOUT, Sessions, timed_out};
use crate::storage::StorageError;
use crate::storage::pair::Range;
use crate::storage::shared::backend::{Event, Watch};

const LOG: &str = "dapr.scheduler.storage";
/// The server's notification channel.
pub(super) const CHANNEL: &str = "scheduler_changed";
/// Polling interval without notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Pause before a reconnect or a retry.
const PAUSE: Duration = Duration::from_millis(300);
/// Interval of pings on the listening connection.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Sorts after all keys.
const LAST_KEY: &[u8] = &[0xff; 8];
/// Changes per poll.
const PAGE: i64 = 1000;

/// Counts notifications. The listening task ends when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Notified {
    count: watch::Receiver<u64>,
    _listening: Arc<AbortOnDropHandle<()>>,
}

/// Listens on a separate connection until all receivers are dropped.
pub(super) fn listen(sessions: Arc<Sessions>) -> Notified {
    let (counter, count) = watch::channel(0);
    let listening = tokio::spawn(async move {
        loop {
            if let Err(error) = listen_once(&sessions, &counter).await {
                tracing::debug!(
                    target: LOG,
                    "polling for changes every {POLL_INTERVAL:?} until notifications work again: {error}"
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    });
    Notified {
        count,
        _listening: Arc::new(AbortOnDropHandle::new(listening)),
    }
}

async fn listen_once(sessions: &Sessions, counter: &watch::Sender<u64>) -> Result<(), StorageError> {
    let connecting = timeout(CALL_TIMEOUT, sessions.config.connect(sessions.tls.clone())).await;
    let (client, mut connection) = connecting.map_err(|_| timed_out())??;
    let notified = counter.clone();
    let mut moving = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => notified.send_modify(|count| *count += 1),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            }
        }
    }));
    let asked = timeout(CALL_TIMEOUT, client.batch_execute(&format!("LISTEN {CHANNEL}"))).await;
    asked.map_err(|_| timed_out())??;
    // For notifications before the connection.
    counter.send_modify(|count| *count += 1);
    loop {
        tokio::select! {
            _ = &mut moving => return Err(StorageError::Unavailable("the connection ended".to_owned())),
            () = tokio::time::sleep(PING_EVERY) => {
                let pinged = timeout(CALL_TIMEOUT, client.batch_execute("")).await;
                pinged.map_err(|_| timed_out())??;
            }
        }
    }
}

/// The error for a replaced server: the last received revision has no meaning for it.
fn replaced() -> StorageError {
    StorageError::Failed(
        "another PostgreSQL server has replaced the previous one and may lack its last changes".to_owned(),
    )
}

pub(super) struct PostgresWatch {
    sessions: Arc<Sessions>,
    notified: Notified,
    range: Range,
    /// Revision and key of the last received change.
    last: (i64, Vec<u8>),
    /// History of that revision.
    history: u64,
}

impl PostgresWatch {
    pub(super) fn new(sessions: Arc<Sessions>, notified: Notified, range: Range, after: i64) -> Self {
        Self {
            history: sessions.history(),
            sessions,
            notified,
            last: (after, LAST_KEY.to_vec()),
            range,
        }
    }

    async fn poll(&mut self) -> Result<Vec<Event>, StorageError> {
        let session = self.sessions.get().await?;
        if self.sessions.history() != self.history {
            return Err(replaced());
        }
        // A single statement, so a single snapshot. Deleted keys have no value.
        let sql = "SELECT new.*, forgotten.value, revision.value
                   FROM scheduler_meta AS forgotten CROSS JOIN scheduler_meta AS revision LEFT JOIN (
                       (SELECT key, value, created, modified, version FROM scheduler_pairs
                        WHERE (modified, key) > ($1, $2) AND key >= $3 AND ($4::bytea IS NULL OR key < $4)
                        ORDER BY modified, key LIMIT $5)
                       UNION ALL
                       (SELECT key, NULL, 0, revision, 0 FROM scheduler_gone
                        WHERE (revision, key) > ($1, $2) AND key >= $3 AND ($4::bytea IS NULL OR key < $4)
                        ORDER BY revision, key LIMIT $5)
                       ORDER BY modified, key LIMIT $5
                   ) AS new ON true
                   WHERE forgotten.name = 'forgotten' AND revision.name = 'revision' ORDER BY modified, key";
        let statement = session.client().prepare_cached(sql).await?;
        let (revision, key) = &self.last;
        let rows = session
            .client()
            .query(
                &statement,
                &[revision, key, &self.range.from, &self.range.below, &PAGE],
            )
            .await?;
        session.keep();
        let first = rows
            .first()
            .ok_or_else(|| StorageError::Failed("rows of scheduler_meta are missing".to_owned()))?;
        let (forgotten, now): (i64, i64) = (first.try_get(5)?, first.try_get(6)?);
        if now < self.last.0 {
            // The new server will reuse revisions that were received before.
            return Err(StorageError::Failed(format!(
                "PostgreSQL's revision went back from {} to {now}: the server was replaced, or a backup was restored",
                self.last.0
            )));
        }
        // A page may end within a revision, whose other tombstones are removed with it.
        if (forgotten, LAST_KEY) > (self.last.0, self.last.1.as_slice()) {
            return Err(StorageError::Failed(format!(
                "deletions up to revision {forgotten} are no longer recorded"
            )));
        }
        // Unless the page is full, all changes up to this revision have been received.
        let mut last = (now, LAST_KEY.to_vec());
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            // Without changes there is a single row with the revisions.
            let Some(key) = row.try_get::<_, Option<Vec<u8>>>(0)? else {
                break;
            };
            let revision = row.try_get(3)?;
            if i64::try_from(events.len()) == Ok(PAGE - 1) {
                last = (revision, key.clone());
            }
            events.push(match row.try_get::<_, Option<Vec<u8>>>(1)? {
                Some(_) => Event::Put(pair(row)?),
                None => Event::Deleted { key, revision },
            });
        }
        self.last = last;
        Ok(events)
    }
}

#[async_trait]
impl Watch for PostgresWatch {
    async fn next(&mut self) -> Result<Vec<Event>, StorageError> {
        loop {
            self.notified.count.mark_unchanged();
            match timeout(CALL_TIMEOUT, self.poll())
                .await
                .unwrap_or_else(|_| Err(timed_out()))
            {
                Ok(events) if !events.is_empty() => return Ok(events),
                Ok(_) => {
                    // Polls either way.
                    let _ = timeout(POLL_INTERVAL, self.notified.count.changed()).await;
                }
                Err(error) if error.is_passing() => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests;
