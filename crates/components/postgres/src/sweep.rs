use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{Result, state::Sweep};
use tokio_postgres::types::Type;

use super::pool::{Pool, failure};

/// Which rows to sweep.
pub(super) struct Expired {
    pub(super) pool: Arc<Pool>,
    pub(super) delete: String,
    pub(super) bookkeeping: String,
    /// The row with the time of the last sweep.
    pub(super) key: String,
}

#[async_trait]
impl Sweep for Expired {
    async fn once(&self, least: i64) -> Result<Option<u64>> {
        let claim = format!(
            "INSERT INTO {table} AS m (key, value) VALUES ($1::text, now()::text)
             ON CONFLICT (key) DO UPDATE SET value = now()::text
             WHERE (EXTRACT('epoch' FROM now() - m.value::timestamp with time zone) * 1000)::int8 > $2::int8
             RETURNING 1",
            table = self.bookkeeping
        );
        let claimed = self
            .pool
            .read(&claim, &[(&self.key, Type::TEXT), (&least, Type::INT8)])
            .await?;
        if claimed.is_empty() {
            return Ok(None);
        }
        // Without the usual timeout, because many rows take long.
        let session = self.pool.session().await?;
        let deleted = session.client()?.execute_typed(&self.delete, &[]).await;
        session.settle();
        deleted.map(Some).map_err(failure)
    }
}
