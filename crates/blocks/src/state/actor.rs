//! The store as that of actors: whole keys, and values as they are.

use outrigger_component::Pairs;
use outrigger_component::state::{
    Bounds, Consistency, Feature, Get, Item, KeyPage, KeysLike, Operation as Step, Transaction,
};

use super::Store;
use crate::outbound::Cause;

impl Store {
    /// The optional features that the component supports.
    pub fn features(&self) -> &[Feature] {
        self.component.features()
    }

    /// A value by its whole key; nothing is decrypted.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn get_whole(
        &self,
        key: String,
        consistency: Consistency,
        metadata: Pairs,
    ) -> Result<Option<Item>, Cause> {
        let request = &Get {
            key,
            consistency,
            metadata,
        };
        let attempt = || self.component.get(request);
        self.outbound.run(&self.operations.get, attempt).await
    }

    /// Values by their whole keys, in the order of those; nothing is decrypted.
    ///
    /// # Errors
    /// [`Cause`], also where a single value cannot be read.
    pub async fn get_all_whole(
        &self,
        keys: Vec<String>,
        metadata: Pairs,
    ) -> Result<Vec<Option<Item>>, Cause> {
        let request = |key| Get {
            key,
            consistency: Consistency::Unspecified,
            metadata: metadata.clone(),
        };
        let requests = &keys.into_iter().map(request).collect::<Vec<_>>();
        let attempt = || self.component.bulk_get(requests, Bounds::default());
        let items = self.outbound.run(&self.operations.bulk_get, attempt).await?;
        // Answers stand in the order of requests.
        let items = items.into_iter().map(|item| item.item.map_err(Cause::from));
        items.collect()
    }

    /// The most steps that a transaction may have; `None` = no limit.
    pub async fn max_operations(&self) -> Option<usize> {
        self.component.max_operations().await
    }

    /// Keys that match, as they are stored.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage, Cause> {
        let attempt = || self.component.keys_like(request);
        self.outbound.run(&self.operations.query, attempt).await
    }

    /// All steps or none, by whole keys; nothing is encrypted. What comes back is the ETag that `etag_of` has afterwards,
    /// one of the keys that are written, where the store can tell.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn transact_whole(
        &self,
        operations: Vec<Step>,
        metadata: Pairs,
        etag_of: Option<&str>,
    ) -> Result<Option<String>, Cause> {
        if operations.is_empty() {
            return Ok(None);
        }
        if let Some(most) = self.component.max_operations().await
            && operations.len() > most
        {
            return Err(Cause::Own(
                "the transaction contains more operations than supported by the state store".to_owned(),
            ));
        }
        let transaction = &Transaction { operations, metadata };
        let attempt = || async {
            match etag_of {
                Some(key) => self.component.transact_etag(transaction, key).await,
                None => self.component.transact(transaction).await.map(|()| None),
            }
        };
        self.outbound.run(&self.operations.transaction, attempt).await
    }
}
