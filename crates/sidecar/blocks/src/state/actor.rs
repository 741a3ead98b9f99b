//! State store access for actors: whole keys, values without encryption.

use outrigger_component::Pairs;
use outrigger_component::state::{
    Bounds, Consistency, Feature, Get, Item, KeyPage, KeysLike, Operation as Step, Transaction, Value,
};
use outrigger_offload::INLINE;

use super::{Store, prepare};
use crate::outbound::Cause;

impl Store {
    /// The optional features that the component supports.
    pub fn features(&self) -> &[Feature] {
        self.component.features()
    }

    /// Reads a value by its whole key, without decryption.
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

    /// Reads values by their whole keys, in that order, without decryption.
    ///
    /// # Errors
    /// [`Cause`], also if a single value cannot be read.
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
        // Responses are in the order of requests.
        let items = items.into_iter().map(|item| item.item.map_err(Cause::from));
        items.collect()
    }

    /// The most operations in a transaction; `None` means no limit.
    pub async fn max_operations(&self) -> Option<usize> {
        self.component.max_operations().await
    }

    /// The stored keys that match a pattern.
    ///
    /// # Errors
    /// [`Cause`].
    pub async fn keys_like(&self, request: &KeysLike) -> Result<KeyPage, Cause> {
        let attempt = || self.component.keys_like(request);
        self.outbound.run(&self.operations.query, attempt).await
    }

    /// Executes all operations or none, by whole keys and without encryption. Returns the new ETag of
    /// `etag_of`, a key that the transaction writes, if the store reports it.
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

/// Normalises large JSON off the serving thread; the store handles small JSON.
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
