//! Instances in the actor state store.

use std::time::Duration;

use outrigger_component::Pairs;
use outrigger_component::state::Value;
use outrigger_wire::durabletask::HistoryEvent;
use outrigger_workflow::names::{METADATA, history_key};
use outrigger_workflow::signing::{HistoryError, TrustedChains};
use outrigger_workflow::{Change, Counts, Instance};
use tokio::time::sleep;
use tonic::Status;

use crate::actors::{ActorError, StateOperation, StateStep};
use crate::workflow::engine::Engine;
use crate::workflow::error::{broken, is_broken, retry_later, state_changed, unusable};
use crate::workflow::protocol::decode;

/// Attempts to read an instance that changes during the read, and the pause between them.
const READ_ATTEMPTS: usize = 5;
const READ_PAUSE: Duration = Duration::from_millis(15);

/// An instance in memory.
pub(crate) struct Loaded {
    pub(crate) instance: Instance,
    /// ETag of its stored metadata; `None` before the first save.
    etag: Option<String>,
    /// Not stored yet.
    is_new: bool,
    /// Signers of results that were verified.
    pub(crate) trusted: TrustedChains,
}

impl Loaded {
    /// A new instance.
    pub(crate) fn new(id: &str) -> Self {
        Self {
            instance: Instance::new(id),
            etag: None,
            is_new: true,
            trusted: TrustedChains::default(),
        }
    }

    /// Whether it is the version found in the store.
    pub(crate) fn is(&self, found: &Found) -> bool {
        self.etag.is_some() && self.etag == found.etag
    }

    /// An instance created from another one's history.
    pub(crate) fn made(instance: Instance) -> Self {
        Self {
            instance,
            etag: None,
            is_new: true,
            trusted: TrustedChains::default(),
        }
    }
}

/// The metadata of an instance, without its history.
pub(crate) struct Found {
    pub(crate) counts: Counts,
    etag: Option<String>,
}

impl Engine {
    /// Reads the metadata of an instance, one key. `None` if there is none.
    pub(crate) async fn find(&self, id: &str) -> Result<Option<Found>, Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let metadata = actors.state(&self.types.workflow, id, METADATA).await;
        let metadata = metadata.map_err(|error| failed(&error))?;
        let Some(metadata) = metadata.filter(|metadata| !metadata.data.is_empty()) else {
            return Ok(None);
        };
        Ok(Some(Found {
            counts: Counts::read(id, &metadata.data).map_err(|error| broken(&error))?,
            etag: metadata.etag,
        }))
    }

    /// Reads the instance of these metadata.
    pub(crate) async fn read(&self, id: &str, found: Found) -> Result<Loaded, Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let keys = found.counts.keys().collect();
        let values = actors.states(&self.types.workflow, id, keys).await;
        let mut values = values.map_err(|error| failed(&error))?;
        let instance = Instance::read(id, found.counts, |key| values.remove(key));
        let instance = instance.map_err(|error| broken(&error))?;
        Ok(Loaded {
            instance,
            etag: found.etag,
            is_new: false,
            trusted: TrustedChains::default(),
        })
    }

    /// Reads an instance; `None` if there is none. It may change between its metadata and its entries: then
    /// both are read again.
    pub(crate) async fn load(&self, id: &str) -> Result<Option<Loaded>, Status> {
        self.load_whole(id, false).await
    }

    /// As [`Engine::load`], and fails if signatures do not vouch for the instance.
    pub(crate) async fn load_verified(&self, id: &str) -> Result<Option<Loaded>, Status> {
        self.load_whole(id, true).await
    }

    async fn load_whole(&self, id: &str, verified: bool) -> Result<Option<Loaded>, Status> {
        let mut torn: Option<(Option<String>, Status)> = None;
        for _ in 0..READ_ATTEMPTS {
            let Some(found) = self.find(id).await? else {
                return Ok(None);
            };
            if let Some((_, error)) = torn.take_if(|(etag, _)| *etag == found.etag) {
                return Err(error);
            }
            let etag = found.etag.clone();
            let mut read = self.read(id, found).await;
            if let Ok(loaded) = &mut read
                && verified
                && let Err(error) = self.verify(&loaded.instance, &mut loaded.trusted)
            {
                read = Err(unusable(error));
            }
            match read {
                Err(error) if is_broken(error.code()) => torn = Some((etag, error)),
                read => return read.map(Some),
            }
            sleep(READ_PAUSE).await;
        }
        torn.map_or(Ok(None), |(_, error)| Err(error))
    }

    /// The last event of the instance, if any.
    pub(crate) async fn last_event(&self, id: &str, found: &Found) -> Result<Option<HistoryEvent>, Status> {
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

    /// Stores a change. If that fails, the instance must be read again.
    pub(crate) async fn save(&self, loaded: &mut Loaded, mut change: Change) -> Result<(), Status> {
        if let Some(svid) = self.svid() {
            let signed = loaded.instance.sign(&mut change, &svid);
            signed.map_err(|error| retry_later(format!("failed to sign new history events: {error}")))?;
        }
        let actors = self.actors().map_err(|error| failed(&error))?;
        let (kind, id) = (&self.types.workflow, loaded.instance.id.as_str());
        let most = actors.max_operations().await.map_err(|error| failed(&error))?;
        for change in change.split(most) {
            let operations = loaded.operations(change);
            // Keys written before the metadata are not owned yet.
            let has_metadata = operations.iter().any(|operation| operation.key == METADATA);
            // Most stores return the ETag with the transaction. That is cheaper than reading it, and never
            // belongs to a host that has since taken over the instance.
            let etag = actors.change_state_etag(kind, id, operations, METADATA).await;
            loaded.etag = etag.map_err(|error| failed(&error))?;
            loaded.is_new &= !has_metadata;
        }
        Ok(())
    }

    /// Removes all stored keys of an instance. If that fails, the instance must be read again.
    pub(crate) async fn remove(&self, loaded: &mut Loaded) -> Result<(), Status> {
        let actors = self.actors().map_err(|error| failed(&error))?;
        let (kind, id) = (&self.types.workflow, loaded.instance.id.as_str());
        let most = actors.max_operations().await.map_err(|error| failed(&error))?;
        for change in loaded.instance.removal().split(most) {
            let stays = change.upserts.iter().any(|(key, _)| key == METADATA);
            let operations = loaded.operations(change);
            if stays {
                let etag = actors.change_state_etag(kind, id, operations, METADATA).await;
                loaded.etag = etag.map_err(|error| failed(&error))?;
            } else {
                let removed = actors.change_own_state(kind, id, operations).await;
                removed.map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    /// As [`Engine::load`], but also reads the remains of an interrupted removal.
    pub(crate) async fn load_rest(&self, id: &str) -> Result<Option<Loaded>, Status> {
        let error = match self.load(id).await {
            Err(error) if is_broken(error.code()) => error,
            Ok(Some(mut loaded)) => {
                // An instance that this sidecar's configuration does not fit may go, evidence may not.
                return match self.verify(&loaded.instance, &mut loaded.trusted) {
                    Err(error @ HistoryError::Tampered(_)) => Err(unusable(error)),
                    _ => Ok(Some(loaded)),
                };
            }
            loaded => return loaded,
        };
        let Some(found) = self.find(id).await? else {
            return Ok(None);
        };
        let actors = self.actors().map_err(|error| failed(&error))?;
        let keys = found.counts.keys().collect();
        let values = actors.states(&self.types.workflow, id, keys).await;
        let mut values = values.map_err(|error| failed(&error))?;
        let instance = Instance::salvage(id, found.counts, |key| values.remove(key));
        if !instance.is_completed() {
            return Err(error);
        }
        Ok(Some(Loaded {
            instance,
            etag: found.etag,
            is_new: false,
            trusted: TrustedChains::default(),
        }))
    }
}

/// A store access rejected during a dissemination is retried at once.
fn failed(error: &ActorError) -> Status {
    let text = error.to_string();
    if matches!(error, ActorError::StateChanged(_)) {
        return state_changed(text);
    }
    if error.is_about_place() || text.ends_with(&ActorError::Disseminating.to_string()) {
        return Status::unavailable(text);
    }
    retry_later(text)
}

impl Loaded {
    /// The operations of a change, guarded by the ETag against another host that has stored or removed the
    /// instance. New keys are written before old ones are deleted, if the store keeps the order.
    fn operations(&self, change: Change) -> Vec<StateOperation> {
        let operation = |key: String, step: StateStep| {
            let guards = key == METADATA;
            StateOperation {
                etag: self.etag.clone().filter(|_| guards),
                only_new: guards && self.is_new && matches!(step, StateStep::Upsert(_)),
                key,
                step,
                metadata: Pairs::new(),
            }
        };
        let upserts = change.upserts.into_iter();
        let upserts = upserts.map(|(key, value)| operation(key, StateStep::Upsert(Value::Bytes(value))));
        let deletes = change.deletes.into_iter();
        let deletes = deletes.map(|key| operation(key, StateStep::Delete));
        upserts.chain(deletes).collect()
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::backend::v1::CreateWorkflowInstanceRequest;
    use outrigger_wire::durabletask::history_event::EventType;
    use outrigger_wire::durabletask::{ExecutionStartedEvent, WorkflowInstance};
    use outrigger_workflow::Creation;

    use super::*;

    fn guards(operations: &[StateOperation]) -> Vec<(&str, bool, Option<&str>)> {
        let guarded = operations
            .iter()
            .filter(|operation| operation.key == METADATA || operation.only_new || operation.etag.is_some());
        guarded
            .map(|operation| {
                (
                    operation.key.as_str(),
                    operation.only_new,
                    operation.etag.as_deref(),
                )
            })
            .collect()
    }

    #[test]
    fn changes_are_guarded_by_etag() {
        let start = HistoryEvent {
            event_type: Some(EventType::ExecutionStarted(ExecutionStartedEvent {
                name: "order".to_owned(),
                workflow_instance: Some(WorkflowInstance {
                    instance_id: "a".to_owned(),
                    execution_id: None,
                }),
                ..ExecutionStartedEvent::default()
            })),
            ..HistoryEvent::default()
        };
        let mut loaded = Loaded::new("a");
        let request = CreateWorkflowInstanceRequest {
            start_event: Some(start.clone()),
            propagated_history: None,
        };
        assert!(
            matches!(loaded.instance.creation(&request, false), Ok(creation) if creation != Creation::Nothing)
        );
        let first = loaded.instance.start(start, None);
        let operations = loaded.operations(first);
        assert!(operations.len() > 1);
        // Another sidecar may create it concurrently.
        assert_eq!(guards(&operations), [(METADATA, true, None)]);
        loaded.is_new = false;
        loaded.etag = Some("7".to_owned());
        // This holds for each part of a removal too.
        for most in [2, usize::MAX] {
            for part in loaded.instance.removal().split(most) {
                let removal = loaded.operations(part);
                assert_eq!(guards(&removal), [(METADATA, false, Some("7"))]);
            }
        }
    }
}
