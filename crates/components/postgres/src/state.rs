//! `state.postgresql` in its two versions.

mod call;
mod transaction;

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures::TryStreamExt;
use outrigger_component::{
    Error, Kind, Metadata, Pairs, Result, StateStore,
    state::{
        Bounds, BulkItem, Concurrency, Delete, Feature, Get, Item, KeyPage, KeysLike, Query, QueryItem,
        QueryPage, Set, TTL_EXPIRES, Transaction, sweep,
    },
};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};
use tokio_util::task::AbortOnDropHandle;

use self::call::{Call, Change};
use super::{
    layout::{Generation, Layout},
    migration::{Record, migrate},
    pool::{Parameter, Pool, failure},
    query::Select,
    session::OwnedSession,
    settings::{Settings, check_table, cleanup_interval, table},
    sweep::Expired,
};

/// Default of the first generation.
const DEFAULT_TABLE: &str = "state";

const V1_FEATURES: &[Feature] = &[
    Feature::Etag,
    Feature::Transactional,
    Feature::Ttl,
    Feature::KeysLike,
    Feature::Query,
];
const V2_FEATURES: &[Feature] = V1_FEATURES.split_at(4).0;

pub(super) struct PostgresState {
    pool: Arc<Pool>,
    layout: Layout,
    generation: Generation,
    sweeper: Mutex<Option<AbortOnDropHandle<()>>>,
}

pub(super) async fn open(metadata: &Metadata, generation: Generation) -> Result<PostgresState> {
    let settings = Settings::read(metadata)?;
    let bookkeeping = table(metadata, "metadataTableName", "dapr_metadata")?;
    let prefix = metadata.filled(&["tablePrefix"]).unwrap_or_default();
    // Name suffixes of the table's rows in the bookkeeping table. Dapr's first generation has no rows per
    // table.
    let (name, suffix, common) = match generation {
        Generation::V1 => {
            let name = table(metadata, "tableName", DEFAULT_TABLE)?;
            let suffix = format!(":{name}");
            (name, suffix, Some("migrations"))
        }
        Generation::V2 => {
            check_table(metadata, "tablePrefix", prefix)?;
            (format!("{prefix}state"), format!("-state-v2-{prefix}"), None)
        }
    };
    let every = cleanup_interval(metadata)?;
    let layout = Layout::new(generation, &name);
    let pool = Arc::new(Pool::open(metadata, &settings).await?);
    let record = Record {
        bookkeeping,
        key: format!("migrations{suffix}"),
        common,
    };
    pool.bound(migrate(&pool, &record, &name, &layout.steps)).await?;
    let sweeper = every.map(|every| {
        let expired = Expired {
            pool: pool.clone(),
            delete: layout.sweep.clone(),
            bookkeeping: record.bookkeeping,
            key: match (generation, name.as_str()) {
                (Generation::V1, DEFAULT_TABLE) => "last-cleanup".to_owned(),
                _ => format!("last-cleanup{suffix}"),
            },
        };
        sweep(expired, every)
    });
    Ok(PostgresState {
        pool,
        layout,
        generation,
        sweeper: Mutex::new(sweeper),
    })
}

impl PostgresState {
    /// Runs one call. `repeatable` means idempotent.
    async fn run(&self, call: &Call<'_>, repeatable: bool) -> Result<()> {
        if repeatable {
            let run = |session: Arc<OwnedSession>| async move { call.run(&self.pool, &*session).await };
            return self.pool.repeated(run).await.map(drop);
        }
        self.once(call).await.map(drop)
    }

    /// Runs one call; returns the row's new ETag if known.
    async fn once(&self, call: &Call<'_>) -> Result<Option<String>> {
        let once = async {
            let session = self.pool.session().await?;
            let result = call.run(&self.pool, &session).await;
            session.settle();
            result
        };
        self.pool.bound(once).await
    }

    fn item(&self, row: &Row) -> Result<(String, Item)> {
        let binary: bool = row.get(2);
        let data = match self.generation {
            Generation::V2 => Bytes::from(row.get::<_, Vec<u8>>(1)),
            Generation::V1 if binary => {
                let text: &str = row.get(1);
                let broken =
                    |cause: String| Error::new(Kind::Internal, "failed to decode binary data").because(cause);
                let text: String = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
                let bytes = BASE64_STANDARD
                    .decode(text)
                    .map_err(|error| broken(error.to_string()))?;
                Bytes::from(bytes)
            }
            Generation::V1 => Bytes::from(row.get::<_, String>(1)),
        };
        let expires: Option<String> = row.get(4);
        let item = Item {
            data,
            etag: row.get(3),
            metadata: expires.map_or_else(Pairs::new, |time| Pairs::from([(TTL_EXPIRES.to_owned(), time)])),
            content_type: None,
        };
        Ok((row.get(0), item))
    }

    /// The values of `keys`, within the bounds.
    async fn items(
        &self,
        session: &OwnedSession,
        keys: &[&str],
        bounds: Bounds,
    ) -> Result<HashMap<String, Result<Item>>> {
        let parameters: [Parameter<'_>; 1] = [(&keys, Type::TEXT_ARRAY)];
        let rows = self
            .pool
            .stream(session, &self.layout.bulk_get, &parameters)
            .await?;
        let mut rows = pin!(rows);
        let (tally, mut found) = (bounds.tally(), HashMap::new());
        while let Some(row) = rows.try_next().await.map_err(failure)? {
            let item = self.item(&row).map(|(_, item)| item);
            if let Ok(item) = &item {
                tally.count(item.data.len())?;
            }
            found.insert(row.get(0), item);
        }
        Ok(found)
    }
}

/// The matches of a query, within the bounds. Queries vary too much to cache prepared statements.
async fn matching(
    session: &OwnedSession,
    sql: &str,
    parameters: &[Parameter<'_>],
    bounds: Bounds,
) -> Result<Vec<QueryItem>> {
    let rows = session.client()?.query_typed_raw(sql, parameters.to_vec()).await;
    let mut rows = pin!(rows.map_err(failure)?);
    let (tally, mut items) = (bounds.query_tally(), Vec::new());
    while let Some(row) = rows.try_next().await.map_err(failure)? {
        let item = QueryItem {
            key: row.get(0),
            data: Bytes::from(row.get::<_, String>(1)),
            etag: row.get(2),
            error: None,
        };
        tally.matched(&item)?;
        items.push(item);
    }
    Ok(items)
}

fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid_request("missing key in get operation"));
    }
    Ok(())
}

#[async_trait]
impl StateStore for PostgresState {
    fn features(&self) -> &[Feature] {
        match self.generation {
            Generation::V1 => V1_FEATURES,
            Generation::V2 => V2_FEATURES,
        }
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        check_key(&request.key)?;
        let rows = self
            .pool
            .read(&self.layout.get, &[(&request.key, Type::TEXT)])
            .await?;
        rows.first()
            .map(|row| self.item(row).map(|(_, item)| item))
            .transpose()
    }

    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        let keys: Vec<&str> = requests.iter().map(|request| request.key.as_str()).collect();
        let keys = &keys;
        let found = match keys.is_empty() {
            true => HashMap::new(),
            false => {
                self.pool
                    .repeated(|session| async move { self.items(&session, keys, bounds).await })
                    .await?
            }
        };
        // A key requested several times counts each time; its copies share their bytes.
        let tally = bounds.tally();
        let answers = requests.iter().map(|request| {
            let item = check_key(&request.key).and_then(|()| match found.get(&request.key) {
                Some(Ok(item)) => Ok(Some(item.clone())),
                Some(Err(error)) => Err(Error::new(error.kind(), error.to_string())),
                None => Ok(None),
            });
            tally.answer(request.key.as_str(), item)
        });
        answers.collect()
    }

    async fn set(&self, request: &Set) -> Result<()> {
        let call = Change::set(request, self.generation)?.call(&self.layout, self.generation);
        let last_write = request.etag().is_none() && request.concurrency != Concurrency::FirstWrite;
        self.run(&call, last_write).await
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        let call = Change::delete(request, self.generation)?.call(&self.layout, self.generation);
        self.run(&call, request.etag().is_none()).await
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.change(transaction, None).await.map(drop)
    }

    async fn transact_etag(&self, transaction: &Transaction, key: &str) -> Result<Option<String>> {
        self.change(transaction, Some(key)).await
    }

    async fn query(&self, query: &Query, _metadata: &Pairs, bounds: Bounds) -> Result<QueryPage> {
        if self.generation == Generation::V2 {
            return Err(Error::unsupported("state store does not support querying"));
        }
        let select = Select::build(query, &self.layout.table)?;
        let parameters: Vec<Parameter<'_>> = select
            .parameters
            .iter()
            .map(|(value, kind)| (value.as_ref() as &(dyn ToSql + Sync), kind.clone()))
            .collect();
        let (sql, parameters) = (select.sql.as_str(), parameters.as_slice());
        let matching =
            |session: Arc<OwnedSession>| async move { matching(&session, sql, parameters, bounds).await };
        let items = self.pool.repeated(matching).await?;
        // The last page has a token too; the page after it is empty.
        let token = match query.limit {
            0 => String::new(),
            _ => (select.offset + i64::try_from(items.len()).unwrap_or(0)).to_string(),
        };
        Ok(QueryPage {
            items,
            token,
            metadata: Pairs::new(),
        })
    }

    async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage> {
        if request.pattern.is_empty() {
            return Err(Error::invalid_request("keys like pattern cannot be empty"));
        }
        let after: i64 = request.position()?.unwrap_or(i64::MIN);
        let size = request.page_size.filter(|size| *size > 0).map(i64::from);
        // One extra row shows whether there is another page.
        let limit = size.map(|size| size + 1);
        let parameters: [Parameter<'_>; 3] = [
            (&request.pattern, Type::TEXT),
            (&after, Type::INT8),
            (&limit, Type::INT8),
        ];
        let mut rows = self.pool.read(&self.layout.keys, &parameters).await?;
        let size = size
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(usize::MAX);
        let more = rows.len() > size;
        rows.truncate(size);
        let token = rows
            .last()
            .filter(|_| more)
            .map(|row| row.get::<_, i64>(1).to_string());
        let keys = rows.iter().map(|row| row.get(0)).collect();
        Ok(KeyPage { keys, token })
    }

    async fn ping(&self) -> Result<()> {
        self.pool.ping().await
    }

    async fn close(&self) {
        drop(self.sweeper.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.pool.close();
    }
}
