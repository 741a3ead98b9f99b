use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use outrigger_component::{
    Error, Kind, Metadata, Pairs, Result, StateStore, Unit,
    state::{
        Bounds, BulkItem, Concurrency, Delete, Feature, Get, Item, KeyPage, KeysLike, Operation, Set,
        TTL_EXPIRES, Transaction, Value, sweep,
    },
};
use outrigger_go_json::Html;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params, types::ValueRef};
use tokio_util::task::AbortOnDropHandle;

use super::{
    migration::{Record, migrate},
    pool::{Pool, failure},
    settings::{Settings, both, identifier},
    sweep::Expired,
};

const FEATURES: &[Feature] = &[
    Feature::Etag,
    Feature::Transactional,
    Feature::Ttl,
    Feature::KeysLike,
];

const DEFAULT_TABLE: &str = "state";

/// Reader threads.
const READERS: usize = 2;

pub(super) struct SqliteState {
    pool: Arc<Pool>,
    sql: Arc<Sql>,
    sweeper: Mutex<Option<AbortOnDropHandle<()>>>,
}

/// The statements with the table name filled in.
struct Sql {
    get: String,
    upsert: String,
    first_write: String,
    update: String,
    delete: String,
    delete_version: String,
    keys: String,
}

const ALIVE: &str = "(expiration_time IS NULL OR expiration_time > CURRENT_TIMESTAMP)";

impl Sql {
    fn new(table: &str) -> Self {
        // ?4 is the TTL in seconds or NULL.
        let insert = format!(
            "INSERT INTO {table} (key, value, is_binary, etag, expiration_time, update_time)
             VALUES (?1, ?2, ?3, ?5, DATETIME(CURRENT_TIMESTAMP, ?4 || ' seconds'), CURRENT_TIMESTAMP)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, is_binary = excluded.is_binary,
                 etag = excluded.etag, expiration_time = excluded.expiration_time,
                 update_time = excluded.update_time"
        );
        Self {
            get: format!(
                "SELECT value, is_binary, etag, strftime('%Y-%m-%dT%H:%M:%SZ', expiration_time)
                 FROM {table} WHERE key = ?1 AND {ALIVE}"
            ),
            // An expired row that was not deleted yet does not count.
            first_write: format!("{insert} WHERE NOT {ALIVE}"),
            upsert: insert,
            update: format!(
                "UPDATE {table} SET value = ?2, is_binary = ?3, etag = ?5, update_time = CURRENT_TIMESTAMP,
                     expiration_time = DATETIME(CURRENT_TIMESTAMP, ?4 || ' seconds')
                 WHERE key = ?1 AND etag = ?6 AND {ALIVE}"
            ),
            delete: format!("DELETE FROM {table} WHERE key = ?1"),
            delete_version: format!("DELETE FROM {table} WHERE key = ?1 AND etag = ?2"),
            keys: format!(
                "SELECT key, rowid FROM {table}
                 WHERE key LIKE ?1 ESCAPE '\\' AND {ALIVE} AND rowid > ?2 ORDER BY rowid LIMIT ?3"
            ),
        }
    }
}

/// The table of step 1; later migration steps follow.
fn steps(table: &str) -> Vec<String> {
    vec![format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            key TEXT NOT NULL PRIMARY KEY,
            value TEXT NOT NULL,
            is_binary BOOLEAN NOT NULL,
            etag TEXT NOT NULL,
            expiration_time TIMESTAMP DEFAULT NULL,
            update_time TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
        )"
    )]
}

pub(super) async fn open(metadata: &Metadata) -> Result<SqliteState> {
    let every = metadata.duration(&["cleanupInterval", "cleanupIntervalInSeconds"], Unit::Seconds)?;
    let names = both(
        identifier(metadata, "tableName", DEFAULT_TABLE),
        identifier(metadata, "metadataTableName", "metadata"),
    );
    let (settings, (table, metadata_table)) = both(Settings::read(metadata), names)?;
    let steps = steps(&table);
    let record = Record {
        bookkeeping: metadata_table.clone(),
        common: "migrations",
        table: table.clone(),
    };
    let pool = Pool::open(settings, READERS, metadata.component(), move |connection| {
        migrate(connection, &record, &steps)
    })
    .await?;
    let pool = Arc::new(pool);
    let sql = Arc::new(Sql::new(&table));
    let sweeper = every.and_then(|every| every.positive()).map(|every| {
        let expired = Expired {
            pool: pool.clone(),
            // Dapr's row, if its table may be meant.
            key: match table.as_str() {
                DEFAULT_TABLE => "last-cleanup".to_owned(),
                other => format!("last-cleanup:{other}"),
            },
            table,
            metadata_table,
        };
        sweep(expired, every)
    });
    Ok(SqliteState {
        pool,
        sql,
        sweeper: Mutex::new(sweeper),
    })
}

fn prepared<'a>(connection: &'a Connection, sql: &str) -> Result<CachedStatement<'a>> {
    connection.prepare_cached(sql).map_err(failure)
}

fn item(row: &Row<'_>) -> Result<Item> {
    let value = row.get_ref(0).map_err(failure)?;
    let bytes = match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        other => {
            let text = format!("SQLite: the column value holds a {}", other.data_type());
            return Err(Error::new(Kind::Internal, text));
        }
    };
    let data = if row.get(1).map_err(failure)? {
        let decoded = BASE64_STANDARD
            .decode(bytes)
            .map_err(|error| Error::new(Kind::Internal, "failed to decode binary data").because(error))?;
        Bytes::from(decoded)
    } else {
        Bytes::copy_from_slice(bytes)
    };
    let expires: Option<String> = row.get(3).map_err(failure)?;
    Ok(Item {
        data,
        etag: Some(row.get(2).map_err(failure)?),
        metadata: expires.map_or_else(Pairs::new, |time| Pairs::from([(TTL_EXPIRES.to_owned(), time)])),
        content_type: None,
    })
}

fn get(connection: &Connection, sql: &Sql, key: &str) -> Result<Option<Item>> {
    if key.is_empty() {
        return Err(Error::invalid_request("missing key in get operation"));
    }
    let mut statement = prepared(connection, &sql.get)?;
    let mut rows = statement.query([key]).map_err(failure)?;
    rows.next().map_err(failure)?.map(item).transpose()
}

/// A write with encoded value and parsed TTL, prepared without a connection.
struct Ready {
    key: String,
    value: String,
    binary: bool,
    ttl: Option<i32>,
    etag: Option<String>,
    first: bool,
}

impl Ready {
    fn of(set: &Set) -> Result<Self> {
        let ttl = set.checked_ttl()?.filter(|seconds| *seconds > 0);
        let (value, binary) = match &set.value {
            Value::Bytes(bytes) => (BASE64_STANDARD.encode(bytes), true),
            json @ (Value::Json(_) | Value::Canonical(_)) => {
                let text = json.stored(Html::Escape)?;
                (String::from_utf8_lossy(&text).into_owned(), false)
            }
        };
        Ok(Self {
            key: set.key.clone(),
            value,
            binary,
            ttl,
            etag: set.etag().map(str::to_owned),
            first: set.concurrency == Concurrency::FirstWrite,
        })
    }

    /// Writes the value; returns its new ETag.
    fn write(&self, connection: &Connection, sql: &Sql) -> Result<String> {
        let Self {
            key,
            value,
            binary,
            ttl,
            etag,
            first,
        } = self;
        let version = uuid::Uuid::new_v4().to_string();
        let rows = match etag {
            Some(etag) => {
                prepared(connection, &sql.update)?.execute(params![key, value, binary, ttl, version, etag])
            }
            None => {
                let statement = if *first { &sql.first_write } else { &sql.upsert };
                prepared(connection, statement)?.execute(params![key, value, binary, ttl, version])
            }
        };
        match rows.map_err(failure)? {
            0 => Err(Error::etag_mismatch()),
            _ => Ok(version),
        }
    }
}

fn delete(connection: &Connection, sql: &Sql, key: &str, etag: Option<&str>) -> Result<()> {
    let rows = match etag {
        None => prepared(connection, &sql.delete)?.execute([key]),
        Some(etag) => prepared(connection, &sql.delete_version)?.execute([key, etag]),
    };
    match rows.map_err(failure)? {
        0 if etag.is_some() => Err(Error::etag_mismatch()),
        _ => Ok(()),
    }
}

enum Step {
    Set(Ready),
    Delete { key: String, etag: Option<String> },
}

impl Step {
    fn of(operation: &Operation) -> Result<Self> {
        Ok(match operation {
            Operation::Set(set) => Self::Set(Ready::of(set)?),
            Operation::Delete(delete) => {
                delete.check()?;
                Self::Delete {
                    key: delete.key.clone(),
                    etag: delete.etag().map(str::to_owned),
                }
            }
        })
    }

    /// Runs the operation; returns the new ETag of a write.
    fn run(&self, connection: &Connection, sql: &Sql) -> Result<Option<String>> {
        match self {
            Self::Set(ready) => ready.write(connection, sql).map(Some),
            Self::Delete { key, etag } => delete(connection, sql, key, etag.as_deref()).map(|()| None),
        }
    }

    fn key(&self) -> &str {
        match self {
            Self::Set(ready) => &ready.key,
            Self::Delete { key, .. } => key,
        }
    }
}

#[async_trait]
impl StateStore for SqliteState {
    fn features(&self) -> &[Feature] {
        FEATURES
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        let (key, sql) = (request.key.clone(), self.sql.clone());
        self.pool
            .read(move |connection| get(connection, &sql, &key))
            .await
    }

    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        let keys: Vec<String> = requests.iter().map(|request| request.key.clone()).collect();
        let sql = self.sql.clone();
        // Dropped with the call, which stops the read for a caller that gave up.
        let waits = Arc::new(());
        let waited_for = Arc::downgrade(&waits);
        let answer = move |connection: &Connection| {
            let tally = bounds.tally();
            let answers = keys.into_iter().map(|key| {
                if waited_for.strong_count() == 0 {
                    return Err(Error::closed());
                }
                let item = get(connection, &sql, &key);
                tally.answer(key, item)
            });
            answers.collect()
        };
        let answers = self.pool.read(answer).await;
        drop(waits);
        answers
    }

    async fn set(&self, request: &Set) -> Result<()> {
        let (ready, sql) = (Ready::of(request)?, self.sql.clone());
        self.pool
            .write(move |connection| ready.write(connection, &sql).map(drop))
            .await
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        request.check()?;
        let (key, etag) = (request.key.clone(), request.etag().map(str::to_owned));
        let sql = self.sql.clone();
        self.pool
            .write(move |connection| delete(connection, &sql, &key, etag.as_deref()))
            .await
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.transact_etag(transaction, "").await.map(drop)
    }

    async fn transact_etag(&self, transaction: &Transaction, key: &str) -> Result<Option<String>> {
        let steps = transaction
            .operations
            .iter()
            .map(Step::of)
            .collect::<Result<Vec<_>>>()?;
        let (key, sql) = (key.to_owned(), self.sql.clone());
        let all = move |connection: &Connection| {
            let mut new_etag = None;
            for step in &steps {
                let etag = step.run(connection, &sql)?;
                if step.key() == key {
                    new_etag = etag;
                }
            }
            Ok(new_etag)
        };
        self.pool.write(all).await
    }

    async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage> {
        if request.pattern.is_empty() {
            return Err(Error::invalid_request("keys like pattern cannot be empty"));
        }
        let after: i64 = request.position()?.unwrap_or(i64::MIN);
        let size = request.page_size.filter(|size| *size > 0).map(i64::from);
        let (pattern, sql) = (request.pattern.clone(), self.sql.clone());
        let find = move |connection: &Connection| {
            // One extra row shows whether there is another page.
            let limit = size.map_or(-1, |size| size + 1);
            let mut statement = prepared(connection, &sql.keys)?;
            let rows = statement
                .query_map(params![pattern, after, limit], |row| {
                    Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
                })
                .map_err(failure)?;
            rows.collect::<rusqlite::Result<Vec<_>>>().map_err(failure)
        };
        let mut rows = self.pool.read(find).await?;
        let size = size
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(usize::MAX);
        let more = rows.len() > size;
        rows.truncate(size);
        let token = rows.last().filter(|_| more).map(|(_, id)| id.to_string());
        let keys = rows.into_iter().map(|(key, _)| key).collect();
        Ok(KeyPage { keys, token })
    }

    async fn ping(&self) -> Result<()> {
        let answer: Option<i64> = self
            .pool
            .read(|connection| {
                let one = connection.query_row("SELECT 1", [], |row| row.get(0)).optional();
                one.map_err(failure)
            })
            .await?;
        answer
            .map(|_| ())
            .ok_or_else(|| Error::new(Kind::Internal, "SQLite: no answer"))
    }

    async fn close(&self) {
        drop(self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.pool.close().await;
    }
}
