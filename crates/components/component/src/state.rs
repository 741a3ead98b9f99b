//! State stores: keys, values, ETags, TTLs, transactions.

mod bounds;
mod bulk;
mod options;
mod query;
mod sweep;
mod value;

use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::{
    bounds::{Bounds, Tally},
    bulk::{BulkError, BulkItem, each_delete, each_get, each_set},
    options::{Concurrency, Consistency, TTL, TTL_EXPIRES, ttl_seconds},
    query::{Filter, Order, Query, QueryItem, QueryPage, SEPARATOR, Sort},
    sweep::{Sweep, sweep},
    value::Value,
};
use crate::{Error, Pairs, Result};

/// Optional features of a state store, as listed by the metadata API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Conditional writes and deletions by ETag.
    Etag,
    /// [`StateStore::transact`].
    Transactional,
    /// `ttlInSeconds`.
    Ttl,
    /// [`StateStore::query`].
    Query,
    /// [`StateStore::delete_with_prefix`].
    DeleteWithPrefix,
    /// [`StateStore::keys_like`].
    KeysLike,
    /// The request metadata `partitionKey`.
    PartitionKey,
}

impl Feature {
    /// The name on the wire, e.g. `TRANSACTIONAL`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etag => "ETAG",
            Self::Transactional => "TRANSACTIONAL",
            Self::Ttl => "TTL",
            Self::Query => "QUERY_API",
            Self::DeleteWithPrefix => "DELETE_WITH_PREFIX",
            Self::KeysLike => "KEYS_LIKE",
            Self::PartitionKey => "PARTITION_KEY",
        }
    }

    /// The feature of that name.
    pub fn named(name: &str) -> Option<Self> {
        [
            Self::Etag,
            Self::Transactional,
            Self::Ttl,
            Self::Query,
            Self::DeleteWithPrefix,
            Self::KeysLike,
            Self::PartitionKey,
        ]
        .into_iter()
        .find(|feature| feature.name() == name)
    }
}

/// A read request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Get {
    /// The stored key.
    pub key: String,
    /// Whether an eventually consistent value is acceptable.
    pub consistency: Consistency,
    /// Request metadata.
    pub metadata: Pairs,
}

impl Get {
    /// A request for `key` with default options.
    pub fn key(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            ..Self::default()
        }
    }
}

/// A stored value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The bytes, as stored.
    pub data: Bytes,
    /// Opaque; `None` if the store has no ETags.
    pub etag: Option<String>,
    /// E.g. `ttlExpireTime`.
    pub metadata: Pairs,
    /// Media type of the value, if the store knows it.
    pub content_type: Option<String>,
}

/// A write request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    /// The stored key.
    pub key: String,
    /// The new value.
    pub value: Value,
    /// Writes only over this version. Empty counts as absent.
    pub etag: Option<String>,
    /// Handling of concurrent writes.
    pub concurrency: Concurrency,
    /// With [`Concurrency::FirstWrite`] and no ETag: set by the sidecar, not by the app. Pluggable stores do
    /// not receive it, because they may refuse a first write without an ETag.
    pub only_new: bool,
    /// When the write counts as done.
    pub consistency: Consistency,
    /// E.g. `ttlInSeconds`, `contentType`.
    pub metadata: Pairs,
    /// The item's own content type.
    pub content_type: Option<String>,
}

impl Set {
    /// The ETag, unless empty.
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.is_empty())
    }

    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) without a key.
    pub fn check(&self) -> Result<()> {
        if self.key.is_empty() {
            return Err(Error::invalid_request("missing key in set operation"));
        }
        Ok(())
    }

    /// Checks the key and the TTL.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest).
    pub fn checked_ttl(&self) -> Result<Option<i32>> {
        self.check()?;
        ttl_seconds(&self.metadata)
    }
}

/// A deletion request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delete {
    /// The stored key.
    pub key: String,
    /// Deletes only this version. Empty counts as absent.
    pub etag: Option<String>,
    /// Handling of concurrent writes.
    pub concurrency: Concurrency,
    /// When the deletion counts as done.
    pub consistency: Consistency,
    /// Request metadata.
    pub metadata: Pairs,
}

impl Delete {
    /// The ETag, unless empty.
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| !etag.is_empty())
    }

    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) without a key.
    pub fn check(&self) -> Result<()> {
        if self.key.is_empty() {
            return Err(Error::invalid_request("missing key in delete operation"));
        }
        Ok(())
    }
}

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Writes a value.
    Set(Set),
    /// Deletes a key.
    Delete(Delete),
}

impl Operation {
    /// The affected key.
    pub fn key(&self) -> &str {
        match self {
            Self::Set(set) => &set.key,
            Self::Delete(delete) => &delete.key,
        }
    }
}

/// Operations that take effect together or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The operations, applied in this order.
    pub operations: Vec<Operation>,
    /// Metadata of the transaction, e.g. `contentType`, `partitionKey`.
    pub metadata: Pairs,
}

/// A request for keys by pattern.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeysLike {
    /// SQL `LIKE`: `%`, `_`, and a backslash before a literal one.
    pub pattern: String,
    /// Page size; `None` for all keys.
    pub page_size: Option<u32>,
    /// The continuation token of the previous page.
    pub token: Option<String>,
}

impl KeysLike {
    /// Where the previous page ended; `None` for the first page.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::error::Kind) for an invalid token.
    pub fn position<T>(&self) -> Result<Option<T>>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        let token = self.token.as_deref().filter(|token| !token.is_empty());
        let position = token.map(|token| {
            token.parse().map_err(|error| {
                Error::invalid_request(format!("invalid continuation token {token:?}")).because(error)
            })
        });
        position.transpose()
    }
}

/// A page of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// Keys as they are stored, in the store's order.
    pub keys: Vec<String>,
    /// Set if there may be more keys.
    pub token: Option<String>,
}

/// A store of values by key.
///
/// Requests are borrowed so that callers can retry them. Methods may be called concurrently. Dropping a
/// future abandons the call but never leaves a partial write.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Supported features; may depend on properties and on the server.
    fn features(&self) -> &[Feature];

    /// The value, or `None` if absent or expired.
    async fn get(&self, request: &Get) -> Result<Option<Item>>;

    /// Writes a value.
    async fn set(&self, request: &Set) -> Result<()>;

    /// Deletes a value. A missing key is a success unless an ETag was given.
    async fn delete(&self, request: &Delete) -> Result<()>;

    /// Reads several values; answers are in request order. Fails with
    /// [`Kind::TooLarge`](crate::Kind::TooLarge) as soon as they exceed the bounds: see [`Bounds::tally`].
    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        each_get(self, requests, bounds).await
    }

    /// Writes several values independently. The error lists the failures.
    async fn bulk_set(&self, requests: &[Set], parallelism: usize) -> Result<(), BulkError> {
        each_set(self, requests, parallelism).await
    }

    /// Deletes several values independently. The error lists the failures.
    async fn bulk_delete(&self, requests: &[Delete], parallelism: usize) -> Result<(), BulkError> {
        each_delete(self, requests, parallelism).await
    }

    /// Runs all operations or none. Needs [`Feature::Transactional`].
    async fn transact(&self, _transaction: &Transaction) -> Result<()> {
        Err(Error::unsupported(
            "the state store does not support transactions",
        ))
    }

    /// Like [`StateStore::transact`]; returns the new ETag of `key`, one of the written keys. If the store
    /// returns `None`, the caller must read the ETag, which may belong to a later write.
    async fn transact_etag(&self, transaction: &Transaction, _key: &str) -> Result<Option<String>> {
        self.transact(transaction).await.map(|()| None)
    }

    /// Maximum operations per transaction; `None` for no limit.
    async fn max_operations(&self) -> Option<usize> {
        None
    }

    /// Set if a transaction is atomic only for keys in one place of the store. The text says why and names an
    /// alternative.
    fn splits_transactions(&self) -> Option<&'static str> {
        None
    }

    /// Whether [`StateStore::query`] is supported.
    fn can_query(&self) -> bool {
        self.features().contains(&Feature::Query)
    }

    /// Matching values; [`Kind::TooLarge`](crate::Kind::TooLarge) if they exceed the bounds.
    async fn query(&self, _query: &Query, _metadata: &Pairs, _bounds: Bounds) -> Result<QueryPage> {
        Err(Error::unsupported("state store does not support querying"))
    }

    /// Matching keys. Needs [`Feature::KeysLike`].
    async fn keys_like(&self, _request: &KeysLike) -> Result<KeyPage> {
        Err(Error::unsupported("the state store cannot list keys"))
    }

    /// Deletes the keys made of `prefix`, `||` and a rest without `||`; returns their number. Needs
    /// [`Feature::DeleteWithPrefix`].
    async fn delete_with_prefix(&self, _prefix: &str) -> Result<u64> {
        Err(Error::unsupported("the state store cannot delete by prefix"))
    }

    /// Checks that the store responds.
    async fn ping(&self) -> Result<()>;

    /// Stops the store's tasks after calls in flight. Later calls fail.
    async fn close(&self);
}
