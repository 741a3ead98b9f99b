use std::{sync::Arc, time::Duration};

use outrigger_component::Result;
use tokio_util::task::AbortOnDropHandle;

use super::pool::{Pool, failure};

/// Tables and how often they are swept.
pub(super) struct Sweep {
    pub(super) table: String,
    pub(super) metadata_table: String,
    pub(super) every: Duration,
}

impl Sweep {
    /// Deletes expired rows every so often, until the handle is dropped.
    pub(super) fn start(self, pool: Arc<Pool>) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                tokio::time::sleep(self.every).await;
                match self.once(&pool).await {
                    Ok(Some(rows)) => tracing::info!(target: "dapr.contrib", "Removed {rows} expired rows"),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::error!(target: "dapr.contrib", "Error removing expired data: {error}")
                    }
                }
            }
        }))
    }

    /// One sidecar of those on the file does it per interval; `None` when it was another's turn.
    async fn once(&self, pool: &Pool) -> Result<Option<usize>> {
        let claim = format!(
            "INSERT INTO {table} (key, value) VALUES ('last-cleanup', CURRENT_TIMESTAMP)
             ON CONFLICT (key) DO UPDATE SET value = CURRENT_TIMESTAMP
             WHERE (unixepoch(CURRENT_TIMESTAMP) - unixepoch(value)) * 1000 > ?1",
            table = self.metadata_table
        );
        let delete = format!(
            "DELETE FROM {} WHERE expiration_time IS NOT NULL AND expiration_time < CURRENT_TIMESTAMP",
            self.table
        );
        // A little less than the interval: timers and clocks are not exact.
        let least = i64::try_from(self.every.as_millis())
            .unwrap_or(i64::MAX)
            .saturating_sub(100);
        pool.write(move |connection| {
            if connection.execute(&claim, [least]).map_err(failure)? == 0 {
                return Ok(None);
            }
            connection.execute(&delete, []).map(Some).map_err(failure)
        })
        .await
    }
}
