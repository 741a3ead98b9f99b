//! The state of actors, in the one store that is theirs.

use std::sync::Arc;

use outrigger_component::Pairs;
use outrigger_component::state::{Concurrency, Consistency, Delete, Feature, Item, Operation, Set, Value};

use super::{ActorError, Actors, check};
use crate::blocks::state::{SEPARATOR, Store};

/// A change of an actor's state.
#[derive(Clone, Debug)]
pub struct StateOperation {
    /// Key within the actor's state.
    pub key: String,
    /// What happens to it.
    pub step: StateStep,
    /// Version that is expected.
    pub etag: Option<String>,
    /// For the store.
    pub metadata: Pairs,
}

/// What happens to a key.
#[derive(Clone, Debug)]
pub enum StateStep {
    /// It gets a value.
    Upsert(Value),
    /// It is removed.
    Delete,
    /// What the contract does not know.
    Unknown(String),
}

impl Actors {
    /// A value, or `None` when absent.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn state(&self, kind: &str, id: &str, key: &str) -> Result<Option<Item>, ActorError> {
        check(kind, id)?;
        let hosted = self.known().await?;
        let lane = hosted.get(kind).map_or(0, |kind| kind.lane(id));
        // Calls that run may need their state until they end.
        let claim = match hosted.get(kind) {
            Some(kind) if kind.is_active(id) => self.gate.enter_within(lane),
            _ => self.gate.enter(lane).await,
        };
        let store = self.store()?;
        let partition = self.partition(kind, id);
        let stored = format!("{partition}{SEPARATOR}{key}");
        let metadata = Pairs::from([("partitionKey".to_owned(), partition)]);
        let found = store.get_whole(stored, Consistency::Unspecified, metadata);
        tokio::select! {
            found = found => found.map_err(|cause| ActorError::StateGet(cause.to_string())),
            () = claim.cancelled() => Err(ActorError::StateGet(ActorError::Disseminating.to_string())),
        }
    }

    /// All changes or none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn change_state(
        &self,
        kind: &str,
        id: &str,
        operations: Vec<StateOperation>,
    ) -> Result<(), ActorError> {
        check(kind, id)?;
        let hosted = self.known().await?;
        let active = hosted.get(kind).filter(|kind| kind.is_active(id));
        let claim = match active {
            Some(kind) => self.gate.enter_within(kind.lane(id)),
            None => return Err(ActorError::NotActive),
        };
        let store = self.store()?;
        let partition = self.partition(kind, id);
        let operations = operations
            .into_iter()
            .map(|operation| self.operation(operation, &partition))
            .collect::<Result<Vec<_>, _>>()
            .map_err(ActorError::StateSave)?;
        let metadata = Pairs::from([("partitionKey".to_owned(), partition)]);
        let saved = store.transact_whole(operations, metadata);
        tokio::select! {
            saved = saved => saved.map_err(|cause| ActorError::StateSave(cause.to_string())),
            () = claim.cancelled() => Err(ActorError::StateSave(ActorError::Disseminating.to_string())),
        }
    }

    fn partition(&self, kind: &str, id: &str) -> String {
        [&self.with.app_id, kind, id].join(SEPARATOR)
    }

    fn operation(&self, operation: StateOperation, partition: &str) -> Result<Operation, String> {
        let StateOperation {
            key,
            step,
            etag,
            mut metadata,
        } = operation;
        if let StateStep::Unknown(name) = step {
            return Err(format!("operation type {name} not supported"));
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
        let (concurrency, consistency) = (Concurrency::Unspecified, Consistency::Unspecified);
        Ok(match step {
            StateStep::Upsert(value) => Operation::Set(Set {
                key,
                value,
                etag,
                concurrency,
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

    fn store(&self) -> Result<Arc<Store>, ActorError> {
        let name = match self.store.get() {
            Some(name) => name,
            None => {
                let name = self.with.components.actor_store().ok_or(ActorError::NoStore)?;
                self.store.get_or_init(|| name)
            }
        };
        let store = self.with.state.store(name).map_err(|_| ActorError::NoStore)?;
        let features = store.features();
        if [Feature::Etag, Feature::Transactional]
            .iter()
            .all(|needed| features.contains(needed))
        {
            return Ok(store);
        }
        Err(ActorError::StateSave(format!(
            "actors: state store does not exist or incorrectly configured: {name} has no ETags or no transactions, \
             which actors need"
        )))
    }
}
