//! Purging instances: one, or one with all its children.

use std::collections::HashSet;

use outrigger_runtime::scheduler::SchedulerError;
use outrigger_workflow::Instance;
use outrigger_workflow::error::NO_INSTANCE;
use outrigger_workflow::names::{METADATA, RUN_ACTIVITY};
use tonic::Status;

use super::Workflows;
use super::engine::methods;
use super::metrics::Operation;
use crate::actors::internal::PROTOBUF;
use crate::actors::{ActorError, ReminderError};

/// Instances that one call purges at most.
const MAX_PURGED: usize = 100_000;

/// How much was purged, and why not all.
pub struct Purged {
    /// Instances.
    pub count: usize,
    /// Why not all.
    pub error: Option<ActorError>,
}

impl Workflows {
    /// Purges an instance that has ended; `recursive`: its children first, `force`: without their actors, whether they
    /// have ended or not.
    pub async fn purge(&self, id: &str, recursive: bool, force: bool) -> Purged {
        let all = match recursive {
            true => self.family(id).await,
            false => Ok(vec![id.to_owned()]),
        };
        let all = match all {
            Ok(all) => all,
            Err(error) => {
                return Purged {
                    count: 0,
                    error: Some(error),
                };
            }
        };
        let mut count = 0;
        // Parents were found before their children.
        for id in all.iter().rev() {
            let purged = async {
                match force {
                    true => self.purge_stored(id).await,
                    false => {
                        let call = self.request(methods::PURGE, id, Vec::new(), PROTOBUF);
                        self.with.actors.invoke(&call).await.map(|_| ())
                    }
                }
            };
            if let Err(error) = self.counted(Operation::Purge, purged).await {
                return Purged {
                    count,
                    error: Some(error),
                };
            }
            count += 1;
        }
        Purged { count, error: None }
    }

    /// An instance and what it has created, all of which has to have ended.
    async fn family(&self, id: &str) -> Result<Vec<String>, ActorError> {
        let refused = |text: &str| ActorError::Internal(Status::failed_precondition(text));
        let mut found = vec![id.to_owned()];
        let mut known = HashSet::from([id.to_owned()]);
        let mut at = 0;
        while let Some(id) = found.get(at).cloned() {
            at += 1;
            let instance: Instance = match self.load(&id).await? {
                Some(instance) if instance.start_event().is_some() => instance,
                _ => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
            };
            if !instance.is_completed() {
                return Err(refused("orchestration has not yet completed"));
            }
            for child in instance.facts().children() {
                if known.insert(child.id.clone()) {
                    found.push(child.id.clone());
                }
            }
            if found.len() > MAX_PURGED {
                let text =
                    format!("'{id}' and its children are more than {MAX_PURGED}; purge the children first");
                return Err(refused(&text));
            }
        }
        Ok(found)
    }

    /// Removes what is stored of an instance, and its reminders.
    async fn purge_stored(&self, id: &str) -> Result<(), ActorError> {
        tracing::warn!(
            target: super::LOG,
            "workflow '{id}' is purged by force: if it still runs, what it does from now on is lost"
        );
        let Some(instance) = self.load(id).await? else {
            return Err(ActorError::Internal(Status::not_found(NO_INSTANCE)));
        };
        let actors = &self.with.actors;
        let mut keys = instance.removal().deletes;
        // What is left when this breaks off can be purged again.
        keys.sort_by_key(|key| key == METADATA);
        actors.remove_state(&self.types.workflow, id, keys).await?;
        let types = &self.types;
        let failed = |error: SchedulerError| ReminderError::Delete(error.to_string());
        for kind in [&types.workflow, &types.retentioner] {
            actors.delete_reminders(kind, id, false).await.map_err(failed)?;
        }
        // Not by the beginning of their ids: another instance's id may begin so.
        for activity in instance.activities() {
            let deleted = actors.delete_reminder(&types.activity, &activity, RUN_ACTIVITY);
            deleted.await.map_err(failed)?;
        }
        Ok(())
    }
}
