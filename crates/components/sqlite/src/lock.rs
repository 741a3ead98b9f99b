//! `lock.sqlite`: locks for all sidecars on one file. Dapr has no such store.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use outrigger_component::{LockStore, Metadata, Result, lock::Unlocked};
use rusqlite::{OptionalExtension, params};

use super::{
    migration::{Record, migrate},
    pool::{Pool, failure},
    settings::{Settings, both, identifier},
};

pub(super) struct SqliteLock {
    pool: Pool,
    take: String,
    owner: String,
    free: String,
}

pub(super) async fn open(metadata: &Metadata) -> Result<SqliteLock> {
    let names = both(
        identifier(metadata, "tableName", "lock"),
        identifier(metadata, "metadataTableName", "metadata"),
    );
    let (settings, (table, bookkeeping)) = both(Settings::read(metadata), names)?;
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            key TEXT NOT NULL PRIMARY KEY,
            owner TEXT NOT NULL,
            expires_at_ms INTEGER NOT NULL
        ) WITHOUT ROWID"
    );
    let record = Record {
        bookkeeping,
        common: "migrations-lock",
        table: table.clone(),
    };
    let pool = Pool::open(settings, 0, metadata.component(), move |connection| {
        migrate(connection, &record, &[create])
    })
    .await?;
    Ok(SqliteLock {
        pool,
        take: format!(
            "INSERT INTO {table} (key, owner, expires_at_ms) VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at_ms = excluded.expires_at_ms
             WHERE expires_at_ms <= ?4"
        ),
        owner: format!("SELECT owner FROM {table} WHERE key = ?1 AND expires_at_ms > ?2"),
        free: format!("DELETE FROM {table} WHERE key = ?1"),
    })
}

/// Milliseconds since 1970: sidecars of one machine share its clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

#[async_trait]
impl LockStore for SqliteLock {
    async fn try_lock(&self, resource: &str, owner: &str, expiry: Duration) -> Result<bool> {
        let (resource, owner, sql) = (resource.to_owned(), owner.to_owned(), self.take.clone());
        let lasts = i64::try_from(expiry.as_millis()).unwrap_or(i64::MAX);
        self.pool
            .write(move |connection| {
                // Read inside the transaction, because the write may have waited.
                let now = now();
                let values = params![resource, owner, now.saturating_add(lasts), now];
                let rows = connection
                    .prepare_cached(&sql)
                    .and_then(|mut sql| sql.execute(values));
                Ok(rows.map_err(failure)? == 1)
            })
            .await
    }

    async fn unlock(&self, resource: &str, owner: &str) -> Result<Unlocked> {
        let (resource, owner) = (resource.to_owned(), owner.to_owned());
        let (find, free) = (self.owner.clone(), self.free.clone());
        self.pool
            .write(move |connection| {
                let holder: Option<String> = connection
                    .query_row(&find, params![resource, now()], |row| row.get(0))
                    .optional()
                    .map_err(failure)?;
                match holder {
                    None => Ok(Unlocked::NoSuchLock),
                    Some(holder) if holder != owner => Ok(Unlocked::OthersLock),
                    Some(_) => {
                        connection.execute(&free, [&resource]).map_err(failure)?;
                        Ok(Unlocked::Success)
                    }
                }
            })
            .await
    }

    async fn ping(&self) -> Result<()> {
        self.pool
            .read(|connection| {
                connection
                    .query_row("SELECT 1", [], |row| row.get::<_, i64>(0))
                    .map(drop)
                    .map_err(failure)
            })
            .await
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
