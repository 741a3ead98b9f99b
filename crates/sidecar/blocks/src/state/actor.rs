//! The store as that of actors: whole keys, and values as they are.

use outrigger_component::Pairs;
use outrigger_component::offload::INLINE;
use outrigger_component::state::{
    Bounds, Consistency, Feature, Get, Item, KeyPage, KeysLike, Operation as Step, Transaction, Value,
};

use super::{Store, prepare};
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
        mut operations: Vec<Step>,
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
        prepare_json(&mut operations).await?;
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

/// Does the work on JSON that grows with it, where there is much: else the store does it.
async fn prepare_json(operations: &mut [Step]) -> Result<(), Cause> {
    let json = operations.iter_mut().filter_map(|operation| match operation {
        Step::Set(set) => Some(&mut set.value).filter(|value| matches!(value, Value::Json(_))),
        Step::Delete(_) => None,
    });
    let json: Vec<&mut Value> = json.collect();
    let size: usize = json.iter().map(|value| value.size()).sum();
    match size {
        ..=INLINE => Ok(()),
        _ => prepare(None, json, size).await,
    }
}
