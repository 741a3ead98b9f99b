//! The state of instances in the actors' state store.

use outrigger_component::Pairs;
use outrigger_component::state::Value;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_workflow::names::{METADATA, history_key};
use outrigger_workflow::{Change, Counts, Instance};
use tonic::Status;

use super::engine::{Engine, again, decode, plain};
use crate::actors::{ActorError, StateOperation, StateStep};

/// An instance that is in memory.
pub(super) struct Loaded {
    pub(super) instance: Instance,
    /// Of its metadata as they are stored; `None` before the first save.
    etag: Option<String>,
}

impl Loaded {
    /// An instance that is not stored yet.
    pub(super) fn new(id: &str) -> Self {
        Self {
            instance: Instance::new(id),
            etag: None,
        }
    }

    /// Whether it is what was found in the store.
    pub(super) fn is(&self, found: &Found) -> bool {
        self.etag.is_some() && self.etag == found.etag
    }

    /// An instance that was made elsewhere.
    pub(super) fn made(instance: Instance) -> Self {
        Self { instance, etag: None }
    }
}

/// What the metadata of an instance say, without its history.
pub(super) struct Found {
    pub(super) counts: Counts,
    etag: Option<String>,
}

impl Engine {
    /// Reads what there is of an instance, but not its history: one key. `None` if there is none.
    pub(super) async fn find(&self, id: &str) -> Result<Option<Found>, Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let metadata = actors.state(&self.types.workflow, id, METADATA).await;
        let metadata = metadata.map_err(|error| failed(&error))?;
        let Some(metadata) = metadata.filter(|metadata| !metadata.data.is_empty()) else {
            return Ok(None);
        };
        Ok(Some(Found {
            counts: Counts::read(id, &metadata.data).map_err(plain)?,
            etag: metadata.etag,
        }))
    }

    /// Reads an instance that was found.
    pub(super) async fn read(&self, id: &str, found: Found) -> Result<Loaded, Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let keys = found.counts.keys().collect();
        let values = actors.states(&self.types.workflow, id, keys).await;
        let mut values = values.map_err(|error| failed(&error))?;
        let instance = Instance::read(id, found.counts, |key| values.remove(key)).map_err(plain)?;
        Ok(Loaded {
            instance,
            etag: found.etag,
        })
    }

    /// Reads an instance; `None` if there is none.
    pub(super) async fn load(&self, id: &str) -> Result<Option<Loaded>, Status> {
        match self.find(id).await? {
            Some(found) => self.read(id, found).await.map(Some),
            None => Ok(None),
        }
    }

    /// The last event of an instance that was found; `None` where it has none.
    pub(super) async fn last_event(&self, id: &str, found: &Found) -> Result<Option<HistoryEvent>, Status> {
        let Some(last) = found.counts.history.checked_sub(1) else {
            return Ok(None);
        };
        let actors = self.actors().map_err(|error| failed(&error))?;
        let entry = actors.state(&self.types.workflow, id, &history_key(last)).await;
        let entry = entry.map_err(|error| failed(&error))?;
        entry
            .map(|entry| decode("the last event of the workflow", entry.data))
            .transpose()
    }

    /// Stores a change. Who fails has to read the instance anew.
    pub(super) async fn save(&self, loaded: &mut Loaded, change: Change) -> Result<(), Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let (kind, id) = (&self.types.workflow, loaded.instance.id.as_str());
        let most = actors.max_operations().await.map_err(|error| failed(&error))?;
        for change in change.split(most) {
            let upserts = change.upserts.into_iter().map(|(key, value)| StateOperation {
                etag: (key == METADATA).then(|| loaded.etag.clone()).flatten(),
                key,
                step: StateStep::Upsert(Value::Bytes(value)),
                metadata: Pairs::new(),
            });
            let deletes = change.deletes.into_iter().map(deleted);
            // Nothing is deleted before what takes its place is there, where a store works in order.
            let operations = upserts.chain(deletes).collect();
            // Most stores tell the ETag with the transaction. That is cheaper than to read it, and it is never the one of a
            // host that has taken the instance over meanwhile.
            let etag = actors.change_state_etag(kind, id, operations, METADATA).await;
            loaded.etag = etag.map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    /// Removes everything that is stored of an instance.
    pub(super) async fn remove(&self, loaded: &Loaded) -> Result<(), Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let most = actors.max_operations().await.map_err(|error| failed(&error))?;
        for change in loaded.instance.removal().split(most) {
            let operations = change.deletes.into_iter().map(deleted).collect();
            let removed = actors.change_state(&self.types.workflow, &loaded.instance.id, operations);
            removed.await.map_err(|error| failed(&error))?;
        }
        Ok(())
    }
}

/// A store that cannot be asked because actors are spread anew is one to be asked again at once.
fn failed(error: &ActorError) -> Status {
    let text = error.to_string();
    if error.is_about_place() || text.ends_with(&ActorError::Disseminating.to_string()) {
        return Status::unavailable(text);
    }
    again(text)
}

fn deleted(key: String) -> StateOperation {
    StateOperation {
        key,
        step: StateStep::Delete,
        etag: None,
        metadata: Pairs::new(),
    }
}
