//! What the state store says of instances, without their actors: it can be asked when no worker is connected.

use std::collections::HashMap;

use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::backend::v1::OrchestrationMetadata;
use outrigger_workflow::names::METADATA;
use outrigger_workflow::{Counts, Instance};

use crate::actors::ActorError;
use crate::workflow::error::broken;
use crate::workflow::service::Workflows;

/// How often an instance that is stored anew meanwhile is read.
const READS: usize = 10;

impl Workflows {
    /// What is known of an instance; `None` where there is none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn get(&self, id: &str) -> Result<Option<OrchestrationMetadata>, ActorError> {
        let instance = self.load(id).await?;
        Ok(instance.map(|instance| instance.metadata()))
    }

    /// The history of an instance; `None` where there is none.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn history(&self, id: &str) -> Result<Option<Vec<HistoryEvent>>, ActorError> {
        let instance = self.load(id).await?;
        Ok(instance.map(|instance| instance.history()))
    }

    /// An instance as it is stored; `None` where there is none.
    pub(crate) async fn load(&self, id: &str) -> Result<Option<Instance>, ActorError> {
        let stored = self.load_stored(id).await?;
        Ok(stored.filter(|instance| !instance.is_left_over()))
    }

    /// As [`Workflows::load`]; what is left of one that was never stored whole is found too.
    pub(crate) async fn load_stored(&self, id: &str) -> Result<Option<Instance>, ActorError> {
        let mut unreadable: Option<(Option<String>, ActorError)> = None;
        for _ in 0..READS {
            let Some(metadata) = self
                .actors
                .state(&self.engine.types.workflow, id, METADATA)
                .await?
            else {
                return Ok(None);
            };
            if metadata.data.is_empty() {
                return Ok(None);
            }
            if let Some((_, error)) = unreadable.take_if(|(etag, _)| *etag == metadata.etag) {
                return Err(error);
            }
            match self.assemble(id, &metadata.data).await {
                Ok(instance) => return Ok(Some(instance)),
                // It may have been stored anew between the two reads.
                Err(error) => unreadable = Some((metadata.etag, error)),
            }
        }
        match unreadable {
            Some((_, error)) => Err(error),
            None => Ok(None),
        }
    }

    /// The instance that its metadata tells of.
    async fn assemble(&self, id: &str, metadata: &[u8]) -> Result<Instance, ActorError> {
        let unreadable = |error| ActorError::Internal(broken(&error));
        let counts = Counts::read(id, metadata).map_err(unreadable)?;
        let keys: Vec<String> = counts.keys().collect();
        let states = self.actors.states(&self.engine.types.workflow, id, keys);
        let mut values: HashMap<String, _> = states.await?;
        Instance::read(id, counts, |key| values.remove(key)).map_err(unreadable)
    }
}
