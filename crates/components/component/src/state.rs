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

/// What a store can do beyond get, set and delete. The names are shown in the metadata API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Writes and deletions that depend on an ETag.
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

/// Which value is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Get {
    /// The stored key.
    pub key: String,
    /// Whether an eventually consistent value will do.
    pub consistency: Consistency,
    /// Request metadata.
    pub metadata: Pairs,
}

impl Get {
    /// Wants `key`, nothing special.
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
    /// Opaque; `None` in stores without ETags.
    pub etag: Option<String>,
    /// E.g. `ttlExpireTime`.
    pub metadata: Pairs,
    /// Media type of the value, where the store knows it.
    pub content_type: Option<String>,
}

/// A value to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    /// The stored key.
    pub key: String,
    /// What is stored under the key.
    pub value: Value,
    /// Write only over this version. Empty is as good as none.
    pub etag: Option<String>,
    /// What happens when somebody else wrote.
    pub concurrency: Concurrency,
    /// With [`Concurrency::FirstWrite`] and no ETag: the sidecar asks for it, not the app. Pluggable stores are not asked, for
    /// they may refuse a first write without an ETag.
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

    /// The check that most stores make: a key, and a TTL that is one.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest).
    pub fn checked_ttl(&self) -> Result<Option<i32>> {
        self.check()?;
        ttl_seconds(&self.metadata)
    }
}

/// A key to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delete {
    /// The stored key.
    pub key: String,
    /// Remove only this version. Empty is as good as none.
    pub etag: Option<String>,
    /// What happens when somebody else wrote.
    pub concurrency: Concurrency,
    /// When the removal counts as done.
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

/// A step of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Write.
    Set(Set),
    /// Remove.
    Delete(Delete),
}

impl Operation {
    /// The key it is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Set(set) => &set.key,
            Self::Delete(delete) => &delete.key,
        }
    }
}

/// All or nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The operations, in the order in which they take effect.
    pub operations: Vec<Operation>,
    /// Metadata of the whole, e.g. `contentType`, `partitionKey`.
    pub metadata: Pairs,
}

/// Which keys are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeysLike {
    /// SQL `LIKE`: `%`, `_`, and a backslash before a literal one.
    pub pattern: String,
    /// At most so many; `None` = all.
    pub page_size: Option<u32>,
    /// The continuation token of the previous page.
    pub token: Option<String>,
}

impl KeysLike {
    /// Where the previous page ended; `None` for the first one.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::error::Kind) for a token that no page had.
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

/// Some keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// Keys as they are stored, in the store's order.
    pub keys: Vec<String>,
    /// Present when there may be more.
    pub token: Option<String>,
}

/// A store of values by key.
///
/// Requests are borrowed, so that a caller can repeat them. All methods may be called at once from many tasks;
/// dropping a future abandons the call but never leaves half of it in the store.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// What it can do; may depend on its properties and on the server.
    fn features(&self) -> &[Feature];

    /// The value, or `None` when absent or expired.
    async fn get(&self, request: &Get) -> Result<Option<Item>>;

    /// Writes a value.
    async fn set(&self, request: &Set) -> Result<()>;

    /// Removes a value; absence is success, unless an ETag was given.
    async fn delete(&self, request: &Delete) -> Result<()>;

    /// Several values, one answer per request in their order. [`Kind::TooLarge`](crate::Kind::TooLarge) as soon as they are
    /// larger than the bounds: see [`Bounds::tally`].
    async fn bulk_get(&self, requests: &[Get], bounds: Bounds) -> Result<Vec<BulkItem>> {
        each_get(self, requests, bounds).await
    }

    /// Several writes, each for itself. The error says which failed.
    async fn bulk_set(&self, requests: &[Set], parallelism: usize) -> Result<(), BulkError> {
        each_set(self, requests, parallelism).await
    }

    /// Several removals, each for itself. The error says which failed.
    async fn bulk_delete(&self, requests: &[Delete], parallelism: usize) -> Result<(), BulkError> {
        each_delete(self, requests, parallelism).await
    }

    /// All operations or none. [`Feature::Transactional`].
    async fn transact(&self, _transaction: &Transaction) -> Result<()> {
        Err(Error::unsupported("the state store has no transactions"))
    }

    /// As [`StateStore::transact`], and the ETag that `key` has after it: one of the keys that are written. `None` where the
    /// store cannot tell; then it has to be read, and may be of a later write.
    async fn transact_etag(&self, transaction: &Transaction, _key: &str) -> Result<Option<String>> {
        self.transact(transaction).await.map(|()| None)
    }

    /// The most operations a transaction may have; `None` = no limit.
    async fn max_operations(&self) -> Option<usize> {
        None
    }

    /// Whether a transaction may be stored in part: it is whole only for keys of one place of the store. Why, and what else
    /// to use.
    fn splits_transactions(&self) -> Option<&'static str> {
        None
    }

    /// Whether it is worth asking [`StateStore::query`].
    fn can_query(&self) -> bool {
        self.features().contains(&Feature::Query)
    }

    /// Values that match; [`Kind::TooLarge`](crate::Kind::TooLarge) where they are more than the bounds let be.
    async fn query(&self, _query: &Query, _metadata: &Pairs, _bounds: Bounds) -> Result<QueryPage> {
        Err(Error::unsupported("state store does not support querying"))
    }

    /// Keys that match. [`Feature::KeysLike`].
    async fn keys_like(&self, _request: &KeysLike) -> Result<KeyPage> {
        Err(Error::unsupported("the state store cannot list keys"))
    }

    /// Removes the keys made of `prefix`, `||` and a rest without `||`; how many.
    /// [`Feature::DeleteWithPrefix`].
    async fn delete_with_prefix(&self, _prefix: &str) -> Result<u64> {
        Err(Error::unsupported("the state store cannot delete by prefix"))
    }

    /// Whether the store answers.
    async fn ping(&self) -> Result<()>;

    /// Ends what the store runs; calls in flight are answered first. Calls that come later fail.
    async fn close(&self);
}
