//! What the state store says of instances, without their actors: it can be asked when no worker is connected.

use std::collections::HashMap;

use outrigger_blocks::state::SEPARATOR;
use outrigger_component::state::KeyPage;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_wire::durabletask::backend::v1::OrchestrationMetadata;
use outrigger_workflow::names::METADATA;
use outrigger_workflow::{Counts, Instance};

use crate::actors::ActorError;
use crate::workflow::Workflows;
use crate::workflow::engine::broken;

/// Ids of instances that one answer has, where the client does not say how many.
const PAGE: u32 = 1024;
/// Ids of instances that one answer has at most.
const MAX_PAGE: u32 = 16 * 1024;

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

    /// Some of the ids of instances, from where `token` left off.
    ///
    /// # Errors
    /// [`ActorError`]; a store that cannot list keys says so.
    pub async fn list(&self, token: Option<String>, size: Option<u32>) -> Result<KeyPage, ActorError> {
        self.list_beginning("", token, size).await
    }

    /// Some of the ids of instances that begin with `prefix`, as [`Workflows::list`] does.
    pub(crate) async fn list_beginning(
        &self,
        prefix: &str,
        token: Option<String>,
        size: Option<u32>,
    ) -> Result<KeyPage, ActorError> {
        let size = Some(size.unwrap_or(PAGE).clamp(1, MAX_PAGE));
        let page = self
            .with
            .actors
            .actor_ids_with(&self.types.workflow, prefix, METADATA, token, size);
        let mut page = page.await?;
        // An id may have the separator in it. Patterns of some stores take capitals for small letters.
        let before = [&*self.with.app_id, &self.types.workflow, ""].join(SEPARATOR);
        let after = ["", METADATA].join(SEPARATOR);
        let id = |key: &String| Some(key.strip_prefix(&before)?.strip_suffix(&after)?.to_owned());
        let ids = page.keys.iter().filter_map(id);
        page.keys = ids.filter(|id| id.starts_with(prefix)).collect();
        Ok(page)
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
            let Some(metadata) = self.with.actors.state(&self.types.workflow, id, METADATA).await? else {
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
        let states = self.with.actors.states(&self.types.workflow, id, keys);
        let mut values: HashMap<String, _> = states.await?;
        Instance::read(id, counts, |key| values.remove(key)).map_err(unreadable)
    }
}
