//! `state.etcd` in Dapr's two layouts: v1 stores the bytes of a value, v2 a message with write time and time
//! to live.
//!
//! The ETag of a value is its modification revision. Each time to live has its own lease.

mod link;
mod messages;

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Pairs, Result, Setup, StateStore,
    catalog::Version,
    state::{Concurrency, Delete, Feature, Get, Item, Operation, Set, TTL_EXPIRES, Transaction, Value},
};
use outrigger_go_json::Html;
use prost::Message;
use prost_types::Duration;

use self::{
    link::Link,
    messages::{
        Compare, DeleteRangeRequest, Expected, LeaseGrantRequest, LeaseGrantResponse, PutRequest,
        RangeRequest, RangeResponse, Request, RequestOp, Stored, Target, TxnRequest, TxnResponse,
    },
};

const LOG: &str = "dapr.contrib";
/// etcd's default limit of operations per transaction.
const DEFAULT_MAX_OPERATIONS: usize = 128;

/// Adds the component of this crate.
pub fn add(catalog: &mut Catalog) {
    for (layout, name) in [(Layout::V1, "v1"), (Layout::V2, "v2")] {
        let version = Version::Named {
            name,
            default: layout == Layout::V1,
        };
        catalog
            .state
            .add(Entry::new(&["etcd"], version, move |setup| async move {
                let store = Etcd::open(&setup, layout).await?;
                Ok(Arc::new(store) as Arc<dyn StateStore>)
            }));
    }
}

/// How values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    V1,
    V2,
}

struct Etcd {
    link: Link,
    layout: Layout,
    prefix: String,
    most_operations: usize,
    component: Arc<str>,
}

impl Etcd {
    async fn open(setup: &Setup, layout: Layout) -> Result<Self> {
        let metadata = &setup.metadata;
        if layout == Layout::V1 {
            tracing::warn!(
                target: LOG,
                "component {}: state.etcd v1 is deprecated: use v2 for a new store; they cannot read each other's values",
                metadata.component()
            );
        }
        let store = Self {
            layout,
            prefix: metadata.filled(&["keyPrefixPath"]).unwrap_or_default().to_owned(),
            most_operations: metadata.number(&["maxTxnOps"])?.unwrap_or(DEFAULT_MAX_OPERATIONS),
            component: metadata.component().clone(),
            // Last, so that errors of the other properties are reported together with its own.
            link: Link::new(metadata)?,
        };
        // A metadata check ends here: it must not connect while an invalid value is left out.
        tokio::task::yield_now().await;
        // Like Dapr, start even if etcd is unreachable; calls fail until it responds.
        if let Err(error) = store.ping().await {
            tracing::warn!(target: LOG, "component {}: {error}", metadata.component());
        }
        Ok(store)
    }

    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}/{key}", self.prefix).into_bytes()
    }

    /// The stored bytes of a value.
    fn encoded(&self, value: &Value, ttl: Option<i64>) -> Result<Bytes> {
        let html = match self.layout {
            Layout::V1 => Html::Escape,
            Layout::V2 => Html::Keep,
        };
        let data: Cow<'_, Bytes> = value.stored(html)?;
        if self.layout == Layout::V1 {
            return Ok(data.into_owned());
        }
        let stored = Stored {
            data: data.into_owned(),
            ts: Some(SystemTime::now().into()),
            ttl: Some(Duration {
                seconds: ttl.unwrap_or(0),
                nanos: 0,
            }),
        };
        Ok(stored.encode_to_vec().into())
    }

    fn decoded(&self, value: Bytes) -> Result<(Bytes, Pairs)> {
        let mut metadata = Pairs::new();
        if self.layout == Layout::V1 {
            return Ok((value, metadata));
        }
        let stored = Stored::decode(value).map_err(|error| {
            let text = "the value is not in the layout of state.etcd v2: was it written by v1?";
            Error::new(Kind::Internal, text).because(error)
        })?;
        // Dapr reports the write time if there is no time to live.
        let ttl = stored.ttl.filter(|ttl| ttl.seconds > 0);
        if let (Some(written), Some(ttl)) = (stored.ts, ttl)
            && let Ok(expires) = Timestamp::new(written.seconds.saturating_add(ttl.seconds), 0)
        {
            metadata.insert(TTL_EXPIRES.to_owned(), expires.to_string());
        }
        Ok((stored.data, metadata))
    }

    /// A write, with a lease if it has a time to live.
    async fn put(&self, set: &Set) -> Result<RequestOp> {
        let ttl = set.checked_ttl()?.filter(|ttl| *ttl > 0).map(i64::from);
        let value = self.encoded(&set.value, ttl)?;
        let lease = match ttl {
            Some(ttl) => self.lease(ttl).await?,
            None => 0,
        };
        let key = self.key(&set.key);
        let put = PutRequest { key, value, lease };
        Ok(RequestOp {
            request: Some(Request::Put(put)),
        })
    }

    async fn lease(&self, ttl: i64) -> Result<i64> {
        let request = LeaseGrantRequest { ttl };
        let granted: LeaseGrantResponse = self.link.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        Ok(granted.id)
    }

    fn removal(&self, key: &str) -> RequestOp {
        RequestOp {
            request: Some(Request::DeleteRange(DeleteRangeRequest { key: self.key(key) })),
        }
    }

    /// The precondition of an operation.
    fn condition(&self, key: &str, etag: Option<&str>, concurrency: Concurrency) -> Result<Option<Compare>> {
        let key = self.key(key);
        match (etag, concurrency) {
            (Some(etag), _) => {
                let revision: i64 = etag.parse().map_err(|error| {
                    Error::new(Kind::InvalidEtag, format!("{etag:?} is not a valid ETag of etcd"))
                        .because(error)
                })?;
                // etcd compares an absent key as revision 0.
                if revision == 0 {
                    return Err(Error::etag_mismatch());
                }
                Ok(Some(Compare {
                    target: Target::Mod.into(),
                    key,
                    expected: Some(Expected::ModRevision(revision)),
                }))
            }
            (None, Concurrency::FirstWrite) => Ok(Some(Compare {
                target: Target::Version.into(),
                key,
                expected: Some(Expected::Version(0)),
            })),
            (None, _) => Ok(None),
        }
    }

    /// Runs all operations if all conditions hold; returns the new ETag.
    async fn commit(&self, compare: Vec<Compare>, success: Vec<RequestOp>) -> Result<Option<String>> {
        let request = TxnRequest { compare, success };
        let answer: TxnResponse = self.link.call("/etcdserverpb.KV/Txn", request).await?;
        if answer.succeeded {
            Ok(answer.header.map(|header| header.revision.to_string()))
        } else {
            Err(Error::new(Kind::EtagMismatch, "another client wrote in between"))
        }
    }

    async fn read(&self, request: &Get) -> Result<Option<Item>> {
        if request.key.is_empty() {
            return Err(Error::invalid_request("missing key in get operation"));
        }
        let range = RangeRequest {
            key: self.key(&request.key),
            limit: 1,
        };
        let found: RangeResponse = self.link.call("/etcdserverpb.KV/Range", range).await?;
        let Some(found) = found.kvs.into_iter().next() else {
            return Ok(None);
        };
        let (data, metadata) = self.decoded(found.value)?;
        Ok(Some(Item {
            data,
            etag: Some(found.mod_revision.to_string()),
            metadata,
            content_type: None,
        }))
    }

    async fn write(&self, set: &Set) -> Result<()> {
        set.check()?;
        let condition = self.condition(&set.key, set.etag(), set.concurrency)?;
        let put = self.put(set).await?;
        self.commit(condition.into_iter().collect(), vec![put])
            .await
            .map(drop)
    }

    async fn remove(&self, delete: &Delete) -> Result<()> {
        delete.check()?;
        let condition = match delete.etag() {
            Some(etag) => self.condition(&delete.key, Some(etag), delete.concurrency)?,
            None => None,
        };
        let removal = self.removal(&delete.key);
        self.commit(condition.into_iter().collect(), vec![removal])
            .await
            .map(drop)
    }

    async fn all(&self, transaction: &Transaction) -> Result<Option<String>> {
        // An etcd transaction may name a key only once: keep the last operation and the first condition.
        let mut steps: Vec<(Option<Compare>, RequestOp)> = Vec::new();
        let mut by_key: HashMap<&str, usize> = HashMap::new();
        for operation in &transaction.operations {
            let (condition, step) = match operation {
                Operation::Set(set) => {
                    set.check()?;
                    let condition = self.condition(&set.key, set.etag(), set.concurrency)?;
                    (condition, self.put(set).await?)
                }
                Operation::Delete(delete) => {
                    delete.check()?;
                    let condition = match delete.etag() {
                        Some(etag) => self.condition(&delete.key, Some(etag), delete.concurrency)?,
                        None => None,
                    };
                    (condition, self.removal(&delete.key))
                }
            };
            match by_key.get(operation.key()) {
                Some(index) => steps[*index].1 = step,
                None => {
                    by_key.insert(operation.key(), steps.len());
                    steps.push((condition, step));
                }
            }
        }
        if steps.is_empty() {
            return Ok(None);
        }
        let (compare, success): (Vec<_>, Vec<_>) = steps.into_iter().unzip();
        self.commit(compare.into_iter().flatten().collect(), success)
            .await
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.of(&self.component))
    }
}

#[async_trait]
impl StateStore for Etcd {
    fn features(&self) -> &[Feature] {
        &[Feature::Etag, Feature::Transactional, Feature::Ttl]
    }

    async fn get(&self, request: &Get) -> Result<Option<Item>> {
        self.named(self.read(request).await)
    }

    async fn set(&self, request: &Set) -> Result<()> {
        self.named(self.write(request).await)
    }

    async fn delete(&self, request: &Delete) -> Result<()> {
        self.named(self.remove(request).await)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<()> {
        self.named(self.all(transaction).await.map(drop))
    }

    async fn transact_etag(&self, transaction: &Transaction, key: &str) -> Result<Option<String>> {
        let etag = self.named(self.all(transaction).await)?;
        let mut of_key = transaction
            .operations
            .iter()
            .filter(|operation| operation.key() == key);
        let is_written = matches!(of_key.next_back(), Some(Operation::Set(_)));
        Ok(etag.filter(|_| is_written))
    }

    async fn max_operations(&self) -> Option<usize> {
        Some(self.most_operations)
    }

    async fn ping(&self) -> Result<()> {
        let range = RangeRequest {
            key: self.key("ping"),
            limit: 1,
        };
        let answer: Result<RangeResponse> = self.link.call("/etcdserverpb.KV/Range", range).await;
        self.named(answer.map(drop))
    }

    async fn close(&self) {
        self.link.close();
    }
}
