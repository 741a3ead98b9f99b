//! Actor state, in the actor state store.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use outrigger_blocks::state::{SEPARATOR, Store, is_small};
use outrigger_component::state::{
    Concurrency, Consistency, Delete, Feature, Item, KeyPage, KeysLike, Operation, Set, Value,
};
use outrigger_component::{Kind, Pairs};

use super::{ActorError, Actors, check, check_for_app};

/// Values read per request to a store.
const READ_BATCH: usize = 1000;

/// A change of one key of an actor's state.
#[derive(Clone, Debug)]
pub struct StateOperation {
    /// Key within the actor's state.
    pub key: String,
    /// The operation.
    pub step: StateStep,
    /// Expected version.
    pub etag: Option<String>,
    /// Without a version: write only if the key is absent.
    pub only_new: bool,
    /// For the store.
    pub metadata: Pairs,
}

/// The operation on a key.
#[derive(Clone, Debug)]
pub enum StateStep {
    /// Set a value.
    Upsert(Value),
    /// It is removed.
    Delete,
    /// An unknown operation type.
    Unknown(String),
    /// A malformed operation; the text says why.
    Malformed(String),
}

impl Actors {
    /// As [`Actors::state`], for an app.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn read_state(&self, kind: &str, id: &str, key: &str) -> Result<Option<Item>, ActorError> {
        check_for_app(kind, id)?;
        self.state(kind, id, key).await
    }

    /// Reads a value; `None` if absent.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn state(&self, kind: &str, id: &str, key: &str) -> Result<Option<Item>, ActorError> {
        check(kind, id)?;
        let hosted = self.known(kind).await?;
        self.check_store()?;
        // Running calls may need their state until they end.
        let guard = match hosted.with_actors(kind) {
            Some(kind) if kind.is_active(id) => kind.admission.admit_nested(kind.shard_of(id)),
            _ => self.admit_call(kind, id).await?,
        };
        let store = self.store(ActorError::StateGet)?;
        let partition = self.partition(kind, id);
        let stored = format!("{partition}{SEPARATOR}{key}");
        let metadata = Pairs::from([("partitionKey".to_owned(), partition)]);
        let found = store.get_whole(stored, Consistency::Unspecified, metadata);
        tokio::select! {
            biased;
            () = guard.cancelled() => Err(ActorError::StateGet(ActorError::Disseminating.to_string())),
            found = found => found.map_err(|cause| ActorError::StateGet(cause.to_string())),
        }
    }

    /// Changes an actor's state in one transaction, for an app.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn change_state(
        &self,
        kind: &str,
        id: &str,
        operations: Vec<StateOperation>,
    ) -> Result<(), ActorError> {
        check_for_app(kind, id)?;
        check_size(&self.partition(kind, id), operations.len())?;
        self.change_own_state(kind, id, operations).await
    }

    /// As [`Actors::change_state`] for internal actors, without a limit on operations.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn change_own_state(
        &self,
        kind: &str,
        id: &str,
        operations: Vec<StateOperation>,
    ) -> Result<(), ActorError> {
        self.change(kind, id, operations, None).await.map(drop)
    }

    /// As [`Actors::change_own_state`]; returns the new ETag of `key`, which must be among the written keys.
    /// If the store does not return ETags, the key is read.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn change_state_etag(
        &self,
        kind: &str,
        id: &str,
        operations: Vec<StateOperation>,
        key: &str,
    ) -> Result<Option<String>, ActorError> {
        if let Some(etag) = self.change(kind, id, operations, Some(key)).await? {
            return Ok(Some(etag));
        }
        let stored = self.state(kind, id, key).await?;
        Ok(stored.and_then(|stored| stored.etag))
    }

    async fn change(
        &self,
        kind: &str,
        id: &str,
        operations: Vec<StateOperation>,
        etag_of: Option<&str>,
    ) -> Result<Option<String>, ActorError> {
        check(kind, id)?;
        let hosted = self.known(kind).await?;
        self.check_store()?;
        let active = hosted.with_actors(kind).filter(|kind| kind.is_active(id));
        let active = active.ok_or(ActorError::NotActive)?;
        let guard = active.admission.admit_nested(active.shard_of(id));
        // Writes of the app during deactivation complete before another host has the actor. A cancelled turn
        // cannot write.
        let is_told = active.is_in_last(id);
        let store = self.store(ActorError::StateSave)?;
        let partition = self.partition(kind, id);
        let operations = operations
            .into_iter()
            .map(|operation| self.operation(operation, &partition))
            .collect::<Result<Vec<_>, _>>()
            .map_err(ActorError::StateSave)?;
        let etag_of = etag_of.map(|key| format!("{partition}{SEPARATOR}{key}"));
        let metadata = Pairs::from([("partitionKey".to_owned(), partition)]);
        let saved = store.transact_whole(operations, metadata, etag_of.as_deref());
        tokio::select! {
            // Checked first: another host may have the actor by then, even if the store is fast.
            biased;
            () = guard.cancelled_or(|| !is_told && active.is_evicted(id)) => {
                Err(ActorError::StateSave(ActorError::Disseminating.to_string()))
            }
            saved = saved => saved.map_err(|cause| match cause.kind() {
                Some(Kind::EtagMismatch) => ActorError::StateChanged(cause.to_string()),
                _ => ActorError::StateSave(cause.to_string()),
            }),
        }
    }

    /// Reads several values at once; absent keys are omitted.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn states(
        &self,
        kind: &str,
        id: &str,
        keys: Vec<String>,
    ) -> Result<HashMap<String, Bytes>, ActorError> {
        check(kind, id)?;
        let hosted = self.known(kind).await?;
        self.check_store()?;
        let guard = match hosted.with_actors(kind) {
            Some(kind) if kind.is_active(id) => kind.admission.admit_nested(kind.shard_of(id)),
            _ => self.admit_call(kind, id).await?,
        };
        let store = self.store(ActorError::StateGet)?;
        let partition = self.partition(kind, id);
        let metadata = Pairs::from([("partitionKey".to_owned(), partition.clone())]);
        let mut values = HashMap::with_capacity(keys.len());
        for keys in keys.chunks(READ_BATCH) {
            let stored = keys.iter().map(|key| format!("{partition}{SEPARATOR}{key}"));
            let found = store.get_all_whole(stored.collect(), metadata.clone());
            let found = tokio::select! {
                biased;
                () = guard.cancelled() => {
                    return Err(ActorError::StateGet(ActorError::Disseminating.to_string()));
                }
                found = found => found.map_err(|cause| ActorError::StateGet(cause.to_string()))?,
            };
            for (key, item) in keys.iter().zip(found) {
                if let Some(item) = item {
                    values.insert(key.clone(), item.data);
                }
            }
        }
        Ok(values)
    }

    /// Maximum operations of one state transaction.
    ///
    /// # Errors
    /// [`ActorError`] without a state store of actors.
    pub async fn max_operations(&self) -> Result<usize, ActorError> {
        Ok(self
            .store(ActorError::StateSave)?
            .max_operations()
            .await
            .unwrap_or(usize::MAX)
            .max(2))
    }

    /// Removes values of an actor, active here or not, in batches of the store's maximum size.
    ///
    /// # Errors
    /// [`ActorError`]; some values may have been removed.
    pub async fn remove_state(&self, kind: &str, id: &str, keys: Vec<String>) -> Result<(), ActorError> {
        check(kind, id)?;
        self.known(kind).await?;
        let guard = self.admit_call(kind, id).await?;
        let store = self.store(ActorError::StateSave)?;
        let partition = self.partition(kind, id);
        let metadata = Pairs::from([("partitionKey".to_owned(), partition.clone())]);
        let at_once = self.max_operations().await?;
        for keys in keys.chunks(at_once.min(keys.len().max(1))) {
            let delete = |key: &String| StateOperation {
                key: key.clone(),
                step: StateStep::Delete,
                etag: None,
                only_new: false,
                metadata: Pairs::new(),
            };
            let operations = keys.iter().map(|key| self.operation(delete(key), &partition));
            let operations = operations.collect::<Result<Vec<_>, _>>();
            let operations = operations.map_err(ActorError::StateSave)?;
            let saved = store.transact_whole(operations, metadata.clone(), None);
            tokio::select! {
                biased;
                () = guard.cancelled() => {
                    return Err(ActorError::StateSave(ActorError::Disseminating.to_string()));
                }
                saved = saved => saved.map_err(|cause| ActorError::StateSave(cause.to_string()))?,
            };
        }
        Ok(())
    }

    /// The stored keys that end in `key`, of a type's actors whose ids start with `prefix`.
    ///
    /// # Errors
    /// [`ActorError`], also if the store cannot list keys.
    pub async fn actor_ids_with(
        &self,
        kind: &str,
        prefix: &str,
        key: &str,
        token: Option<String>,
        page_size: Option<u32>,
    ) -> Result<KeyPage, ActorError> {
        let store = self.store(ActorError::StateGet)?;
        if !store.features().contains(&Feature::KeysLike) {
            return Err(ActorError::StateGet(format!(
                "state store {} does not support listing keys",
                store.name()
            )));
        }
        let escaped = |text: &str| {
            let special = |c: char| matches!(c, '%' | '_' | '\\');
            text.chars().fold(String::new(), |mut out, c| {
                if special(c) {
                    out.push('\\');
                }
                out.push(c);
                out
            })
        };
        let ids = format!("{}%", escaped(prefix));
        let parts = [escaped(&self.with.app_id), escaped(kind), ids, escaped(key)];
        let request = KeysLike {
            pattern: parts.join(SEPARATOR),
            page_size,
            token,
        };
        let found = store.keys_like(&request).await;
        found.map_err(|cause| ActorError::StateGet(cause.to_string()))
    }

    fn partition(&self, kind: &str, id: &str) -> String {
        [&self.with.app_id, kind, id].join(SEPARATOR)
    }

    fn operation(&self, operation: StateOperation, partition: &str) -> Result<Operation, String> {
        let StateOperation {
            key,
            step,
            etag,
            only_new,
            mut metadata,
        } = operation;
        match step {
            StateStep::Unknown(name) => return Err(format!("operation type {name} not supported")),
            StateStep::Malformed(text) => return Err(text),
            StateStep::Upsert(_) | StateStep::Delete => {}
        }
        if key.is_empty() {
            return Err("missing key".to_owned());
        }
        if matches!(step, StateStep::Upsert(_))
            && metadata.contains_key("ttlInSeconds")
            && !self.with.state_ttl
        {
            let text = r#"ttlInSeconds is not supported without the "ActorStateTTL" feature enabled"#;
            return Err(text.to_owned());
        }
        metadata.insert("partitionKey".to_owned(), partition.to_owned());
        let key = format!("{partition}{SEPARATOR}{key}");
        let consistency = Consistency::Unspecified;
        let concurrency = match only_new {
            true => Concurrency::FirstWrite,
            false => Concurrency::Unspecified,
        };
        Ok(match step {
            StateStep::Upsert(value) => Operation::Set(Set {
                key,
                value,
                etag,
                concurrency,
                only_new,
                consistency,
                metadata,
                content_type: None,
            }),
            _ => Operation::Delete(Delete {
                key,
                etag,
                concurrency,
                consistency,
                metadata,
            }),
        })
    }

    fn check_store(&self) -> Result<(), ActorError> {
        match self.with.components.actor_store() {
            Some(_) => Ok(()),
            None => Err(ActorError::NoStore),
        }
    }

    /// The actor state store. `unfit` builds the error if the store is unsuitable.
    pub(super) fn store(&self, unfit: fn(String) -> ActorError) -> Result<Arc<Store>, ActorError> {
        let name = self.with.components.actor_store().ok_or(ActorError::NoStore)?;
        let store = self.with.state.store(&name).map_err(|_| ActorError::NoStore)?;
        let features = store.features();
        if [Feature::Etag, Feature::Transactional]
            .iter()
            .all(|needed| features.contains(needed))
        {
            return Ok(store);
        }
        Err(unfit(format!(
            "actors: state store does not exist or incorrectly configured: {name} has no ETags or no transactions, \
             which actors need"
        )))
    }
}

/// # Errors
/// [`ActorError::Illegal`] if the names of the actor, repeated in key and metadata of each operation, would
/// take too much memory.
fn check_size(partition: &str, operations: usize) -> Result<(), ActorError> {
    if is_small(2 * partition.len(), operations) {
        return Ok(());
    }
    Err(ActorError::Illegal(format!(
        "the transaction has {operations} operations, too many for an actor whose app id, type and id have {} bytes: send \
         them in several transactions",
        partition.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_twice_per_operation() {
        let partition = "x".repeat(512);
        assert!(check_size(&partition, 64 << 10).is_ok());
        let refused = check_size(&partition, (64 << 10) + 1).unwrap_err();
        assert!(matches!(refused, ActorError::Illegal(_)), "{refused}");
    }
}
