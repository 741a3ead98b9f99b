use std::{sync::Arc, time::Duration};

use outrigger_component::Result;
use tokio_postgres::types::Type;
use tokio_util::task::AbortOnDropHandle;

use super::pool::{Pool, failure};

/// Which rows are swept, and how often.
pub(super) struct Sweep {
    pub(super) delete: String,
    pub(super) bookkeeping: String,
    /// The row that says when it was done last.
    pub(super) key: String,
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

    /// One sidecar of all does it per interval; `None` when it was another's turn.
    async fn once(&self, pool: &Pool) -> Result<Option<u64>> {
        let claim = format!(
            "INSERT INTO {table} AS m (key, value) VALUES ($1::text, now()::text)
             ON CONFLICT (key) DO UPDATE SET value = now()::text
             WHERE (EXTRACT('epoch' FROM now() - m.value::timestamp with time zone) * 1000)::int8 > $2::int8
             RETURNING 1",
            table = self.bookkeeping
        );
        // A little less than the interval: timers and clocks are not exact.
        let least = i64::try_from(self.every.as_millis())
            .unwrap_or(i64::MAX)
            .saturating_sub(100);
        let claimed = pool
            .read(&claim, &[(&self.key, Type::TEXT), (&least, Type::INT8)])
            .await?;
        if claimed.is_empty() {
            return Ok(None);
        }
        // Without the usual bound: many rows take their time.
        let session = pool.session().await?;
        let deleted = session.client()?.execute_typed(&self.delete, &[]).await;
        session.settle();
        deleted.map(Some).map_err(failure)
    }
}
