//! Reads instances from the state store without their actors, so that it works without a worker.

use std::collections::HashMap;

use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_workflow::names::METADATA;
use outrigger_workflow::{Counts, Instance};

use crate::actors::ActorError;
use crate::workflow::error::broken;
use crate::workflow::service::Workflows;

/// Attempts to read an instance that changes during the read.
const READ_ATTEMPTS: usize = 10;

impl Workflows {
    /// The metadata of an instance; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn get(&self, id: &str) -> Result<Option<WorkflowMetadata>, ActorError> {
        let instance = self.load(id).await?;
        Ok(instance.map(|instance| instance.metadata()))
    }

    /// The history of an instance; `None` if it does not exist.
    ///
    /// # Errors
    /// [`ActorError`].
    pub async fn history(&self, id: &str) -> Result<Option<Vec<HistoryEvent>>, ActorError> {
        let instance = self.load(id).await?;
        Ok(instance.map(|instance| instance.history()))
    }

    /// A stored instance; `None` if it does not exist.
    pub(crate) async fn load(&self, id: &str) -> Result<Option<Instance>, ActorError> {
        let stored = self.load_stored(id).await?;
        Ok(stored.filter(|instance| !instance.is_left_over()))
    }

    /// As [`Workflows::load`], but also finds the remains of one that was never fully stored.
    pub(crate) async fn load_stored(&self, id: &str) -> Result<Option<Instance>, ActorError> {
        let mut unreadable: Option<(Option<String>, ActorError)> = None;
        for _ in 0..READ_ATTEMPTS {
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
                // It may have changed between the two reads.
                Err(error) => unreadable = Some((metadata.etag, error)),
            }
        }
        match unreadable {
            Some((_, error)) => Err(error),
            None => Ok(None),
        }
    }

    /// Reads the instance of these metadata.
    async fn assemble(&self, id: &str, metadata: &[u8]) -> Result<Instance, ActorError> {
        let unreadable = |error| ActorError::Internal(broken(&error));
        let counts = Counts::read(id, metadata).map_err(unreadable)?;
        let keys: Vec<String> = counts.keys().collect();
        let states = self.actors.states(&self.engine.types.workflow, id, keys);
        let mut values: HashMap<String, _> = states.await?;
        Instance::read(id, counts, |key| values.remove(key)).map_err(unreadable)
    }
}
