use std::sync::Arc;

use async_trait::async_trait;
use outrigger_component::{Result, state::Sweep};
use rusqlite::params;

use super::pool::{Pool, failure};

/// Which rows to sweep, coordinated between sidecars on the file.
pub(super) struct Expired {
    pub(super) pool: Arc<Pool>,
    pub(super) table: String,
    pub(super) metadata_table: String,
    /// The row with the time of the last sweep.
    pub(super) key: String,
}

#[async_trait]
impl Sweep for Expired {
    async fn once(&self, least: i64) -> Result<Option<u64>> {
        let claim = format!(
            "INSERT INTO {table} (key, value) VALUES (?2, CURRENT_TIMESTAMP)
             ON CONFLICT (key) DO UPDATE SET value = CURRENT_TIMESTAMP
             WHERE (unixepoch(CURRENT_TIMESTAMP) - unixepoch(value)) * 1000 > ?1",
            table = self.metadata_table
        );
        let delete = format!(
            "DELETE FROM {} WHERE expiration_time IS NOT NULL AND expiration_time < CURRENT_TIMESTAMP",
            self.table
        );
        let key = self.key.clone();
        let deleted = self.pool.write(move |connection| {
            if connection.execute(&claim, params![least, key]).map_err(failure)? == 0 {
                return Ok(None);
            }
            connection.execute(&delete, []).map(Some).map_err(failure)
        });
        Ok(deleted.await?.map(|rows| rows as u64))
    }
}
