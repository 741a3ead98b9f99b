//! Reads instances from the state store without their actors, so that it works without a worker.

use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_workflow::Instance;

use crate::actors::ActorError;
use crate::workflow::service::Workflows;

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
        let stored = self
            .engine
            .load_verified(id)
            .await
            .map_err(ActorError::Internal)?;
        let stored = stored.map(|loaded| loaded.instance);
        Ok(stored.filter(|instance| !instance.is_left_over()))
    }
}
