//! `configuration.sqlite`: values in a table that any tool may write, e.g. the `sqlite3` command. Dapr has no
//! such store. Columns: `key`, `value`, `version`, `metadata` (a JSON object of texts, or NULL).

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    ConfigurationStore, Error, Kind, Metadata, Pairs, Result,
    configuration::{Item, Items, Request, Subscription, Subscriptions, changes},
};
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::{
    migration::{Record, migrate},
    pool::{Pool, failure},
    settings::{Settings, both, identifier},
};

/// Interval of checking for writes; the check needs no disk access.
const POLL: Duration = Duration::from_millis(500);

pub(super) struct SqliteConfiguration {
    values: Arc<Values>,
    poll: Duration,
    subscriptions: Subscriptions,
}

struct Values {
    pool: Pool,
    table: String,
}

/// Items, and the data version they were read at.
struct Snapshot {
    version: i64,
    items: Items,
}

pub(super) async fn open(metadata: &Metadata) -> Result<SqliteConfiguration> {
    let poll = metadata.span(&["pollInterval"], POLL, Duration::from_millis(10))?;
    let names = both(
        identifier(metadata, "tableName", "configuration"),
        identifier(metadata, "metadataTableName", "metadata"),
    );
    let (settings, (table, bookkeeping)) = both(Settings::read(metadata), names)?;
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            key TEXT NOT NULL PRIMARY KEY,
            value TEXT NOT NULL,
            version TEXT NOT NULL DEFAULT '',
            metadata TEXT
        ) WITHOUT ROWID"
    );
    let record = Record {
        bookkeeping,
        common: "migrations-configuration",
        table: table.clone(),
    };
    let pool = Pool::open(settings, 1, metadata.component(), move |connection| {
        migrate(connection, &record, &[create])
    })
    .await?;
    Ok(SqliteConfiguration {
        values: Arc::new(Values { pool, table }),
        poll,
        subscriptions: Subscriptions::default(),
    })
}

fn select(connection: &Connection, sql: &str, keys: &HashSet<String>) -> Result<Items> {
    let mut statement = connection.prepare_cached(sql).map_err(failure)?;
    let mut rows = statement.query([]).map_err(failure)?;
    let mut items = Items::new();
    while let Some(row) = rows.next().map_err(failure)? {
        let key: String = row.get(0).map_err(failure)?;
        if !keys.is_empty() && !keys.contains(&key) {
            continue;
        }
        let metadata: Option<String> = row.get(3).map_err(failure)?;
        let metadata = match metadata.filter(|text| !text.is_empty()) {
            None => Pairs::new(),
            Some(text) => outrigger_go_json::from_slice(text.as_bytes()).map_err(|error| {
                let what = format!("SQLite: the metadata of the key {key} is not a JSON object of strings");
                Error::new(Kind::Internal, what).because(error)
            })?,
        };
        let item = Item {
            value: row.get(1).map_err(failure)?,
            version: row.get(2).map_err(failure)?,
            metadata,
        };
        items.insert(key, item);
    }
    Ok(items)
}

impl Values {
    async fn read(&self, keys: &HashSet<String>) -> Result<Snapshot> {
        let nothing = self.read_after(keys, None).await?;
        nothing.ok_or_else(|| Error::new(Kind::Internal, "SQLite: no answer"))
    }

    /// The items of `keys`; `None` if unchanged since `version`.
    async fn read_after(&self, keys: &HashSet<String>, version: Option<i64>) -> Result<Option<Snapshot>> {
        let sql = format!("SELECT key, value, version, metadata FROM {}", self.table);
        let keys = keys.clone();
        let work = move |connection: &Connection| {
            // Read first, so that a concurrent write is reported twice rather than lost. The number is only
            // valid on one connection; all reads use the same one.
            let current = connection
                .query_row("PRAGMA data_version", [], |row| row.get(0))
                .map_err(failure)?;
            if version == Some(current) {
                return Ok(None);
            }
            let items = select(connection, &sql, &keys)?;
            Ok(Some(Snapshot {
                version: current,
                items,
            }))
        };
        self.pool.read(work).await
    }

    /// Reports changes relative to `known`.
    async fn watch(
        &self,
        keys: HashSet<String>,
        mut known: Snapshot,
        poll: Duration,
        updates: mpsc::Sender<Items>,
    ) {
        loop {
            tokio::time::sleep(poll).await;
            let current = match self.read_after(&keys, Some(known.version)).await {
                Ok(None) => continue,
                Ok(Some(current)) => current,
                Err(error) if error.kind() == Kind::Closed => return,
                Err(error) => {
                    tracing::warn!(target: "dapr.contrib", "Error reading configuration: {error}");
                    continue;
                }
            };
            let changed = changes(&known.items, &current.items);
            if !changed.is_empty() && updates.send(changed).await.is_err() {
                return;
            }
            known = current;
        }
    }
}

#[async_trait]
impl ConfigurationStore for SqliteConfiguration {
    async fn get(&self, request: &Request) -> Result<Items> {
        let snapshot = self.values.read(&request.keys.iter().cloned().collect()).await?;
        Ok(snapshot.items)
    }

    async fn subscribe(&self, request: &Request) -> Result<Subscription> {
        self.subscriptions.check_open()?;
        let keys: HashSet<String> = request.keys.iter().cloned().collect();
        let known = self.values.read(&keys).await?;
        let (values, poll) = (self.values.clone(), self.poll);
        self.subscriptions
            .open(|updates| async move { values.watch(keys, known, poll, updates).await })
    }

    async fn unsubscribe(&self, id: &str) -> Result<()> {
        self.subscriptions.end(id).await
    }

    async fn ping(&self) -> Result<()> {
        self.values.read(&HashSet::from([String::new()])).await.map(drop)
    }

    async fn close(&self) {
        self.subscriptions.close().await;
        self.values.pool.close().await;
    }
}
