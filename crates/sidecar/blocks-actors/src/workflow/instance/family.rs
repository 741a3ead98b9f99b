//! Purges an instance with its children.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::time::Duration;

use http::HeaderMap;
use outrigger_runtime::scheduler::SchedulerError;
use outrigger_wire::durabletask::PurgeInstancesResponse;
use outrigger_workflow::error::NO_INSTANCE;
use outrigger_workflow::names::{METADATA, RUN_ACTIVITY, history_key, inbox_key};
use outrigger_workflow::{Counts, Instance};
use prost::Message as _;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::failures::InstanceFailures;
use crate::actors::{ActorCall, ActorError, ReminderCause, ReminderError};
use crate::workflow::engine::{Engine, request};
use crate::workflow::error::{is_broken, is_unknown};
use crate::workflow::metrics::Operation;
use crate::workflow::protocol::{FORCE, LOG, metadata, methods};

/// Maximum instances purged by one call.
const MAX_PURGED: usize = 100_000;

/// Maximum duration of one call. Parents are purged last, so that another call can purge the rest.
const MAX_PURGE_TIME: Duration = Duration::from_secs(300);

/// Keys probed at once if the number of entries is unknown.
const PROBE_BATCH: usize = 1000;

/// The instances to purge together.
#[derive(Default)]
struct PurgeSet {
    /// Ids of this app's instances, parents before children.
    local: Vec<String>,
    /// Children in other apps: app and id.
    elsewhere: Vec<(String, String)>,
}

/// The progress of one call.
pub(crate) struct Progress {
    began: Instant,
    /// Purged instances.
    pub(crate) count: usize,
    /// Apps without a workflow host: each is waited for once.
    absent: HashSet<String>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            count: 0,
            absent: HashSet::new(),
        }
    }

    /// Checks limits before the next step of purging `id`.
    fn check_limits(&self, id: &str) -> Result<(), ActorError> {
        if self.began.elapsed() < MAX_PURGE_TIME {
            return Ok(());
        }
        let text = format!(
            "purging '{id}' and its children exceeded {} s: {} instances are purged; repeat the call for the rest",
            MAX_PURGE_TIME.as_secs(),
            self.count
        );
        Err(ActorError::Internal(Status::deadline_exceeded(text)))
    }
}

impl Engine {
    /// Purges everything below an instance. Without `force`, all of it must have ended, and so must the
    /// instance.
    pub(crate) async fn purge_below(
        &self,
        id: &str,
        force: bool,
        failures: &InstanceFailures,
        progress: &mut Progress,
    ) -> Result<(), ActorError> {
        let family = self.purge_set(id, force, progress).await?;
        // Only the other apps know whether their children have ended. If one has not, nothing of this app is
        // purged.
        for (app, child) in &family.elsewhere {
            progress.check_limits(id)?;
            let purged = self
                .purge_elsewhere(app, child, force, &mut progress.absent)
                .await?;
            progress.count += purged;
        }
        // Children come after their parents, and after the instance itself.
        for member in family.local.iter().skip(1).rev() {
            progress.check_limits(id)?;
            match self.purge_one(member, force, failures).await {
                Ok(()) => progress.count += 1,
                // Its retention time expired in the meantime.
                Err(error) if is_unknown(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Purges an instance of this app without its children.
    pub(crate) async fn purge_one(
        &self,
        id: &str,
        force: bool,
        failures: &InstanceFailures,
    ) -> Result<(), ActorError> {
        let purged = async {
            match force {
                true => self.purge_stored(id, failures).await,
                false => {
                    let call = request(&self.types.workflow, id, methods::PURGE, Vec::new());
                    self.actors()?.invoke_plain(&call).await.map(|_| ())
                }
            }
        };
        self.metrics.counted(Operation::Purge, purged).await
    }

    /// Lets another app purge a child with everything below it; returns the number of instances. Without a host
    /// for the app's workflows the child stays. With force it also stays if the app refuses: its state is not
    /// this app's to remove.
    async fn purge_elsewhere(
        &self,
        app: &str,
        id: &str,
        force: bool,
        absent: &mut HashSet<String>,
    ) -> Result<usize, ActorError> {
        let stays = |why: &dyn Display| {
            tracing::warn!(
                target: LOG,
                "child workflow '{id}' of app '{app}' was not purged with its parent; purge it there: {why}"
            );
            Ok(0)
        };
        if absent.contains(app) {
            return stays(&"no sidecar hosts the app's workflows");
        }
        let purged = self.purge_tree_of(app, id, force);
        match self.metrics.counted(Operation::Purge, purged).await {
            Ok(count) => Ok(count),
            Err(error) if is_unknown(&error) => Ok(0),
            Err(error @ ActorError::NoAddress { .. }) => {
                absent.insert(app.to_owned());
                stays(&error)
            }
            Err(error) if force => stays(&error),
            Err(error) => Err(error),
        }
    }

    /// Purges an instance of another app, and everything below it.
    pub(crate) async fn purge_tree_of(&self, app: &str, id: &str, force: bool) -> Result<usize, ActorError> {
        let actors = self.actors()?;
        let kind = self.types_of(Some(app)).workflow;
        let marks = match force {
            true => metadata(FORCE, "true"),
            false => HeaderMap::new(),
        };
        let tree = ActorCall {
            metadata: marks,
            ..request(&kind, id, methods::PURGE_TREE, Vec::new())
        };
        match actors.invoke_plain(&tree).await {
            Ok(reply) => {
                let body = reply.body.collect_up_to(MAX_ANSWER).await.unwrap_or_default();
                let purged = PurgeInstancesResponse::decode(body).unwrap_or_default();
                Ok(usize::try_from(purged.deleted_instance_count).unwrap_or_default())
            }
            // A sidecar before the contract's v1.18 purges the child alone.
            Err(error) if !force && is_unimplemented(&error) => {
                let alone = request(&kind, id, methods::PURGE, Vec::new());
                actors.invoke_plain(&alone).await.map(|_| 1)
            }
            Err(error) => Err(error),
        }
    }

    /// The instance and its children; without `force` all must have ended. Missing children are skipped.
    async fn purge_set(&self, id: &str, force: bool, progress: &Progress) -> Result<PurgeSet, ActorError> {
        let refused = |text: String| ActorError::Internal(Status::failed_precondition(text));
        let mut family = PurgeSet::default();
        let mut known = HashSet::from([(None, id.to_owned())]);
        let mut found = VecDeque::from([id.to_owned()]);
        while let Some(member) = found.pop_front() {
            progress.check_limits(id)?;
            // Only one history is held in memory at a time.
            let instance: Instance = match self.load(&member).await {
                Ok(Some(loaded)) if loaded.instance.is_left_over() => loaded.instance,
                Ok(Some(loaded)) if loaded.instance.start_event().is_some() => {
                    if !force {
                        let purged = loaded.instance.purge();
                        purged.map_err(|error| refused(error.to_string()))?;
                    }
                    loaded.instance
                }
                Ok(_) if member == id => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
                Ok(_) => continue,
                Err(error) if is_broken(error.code()) => {
                    // A removal may have been interrupted; otherwise it is unknown whether the instance has
                    // ended.
                    let rest = self.recover_broken(&member).await?;
                    if !force && !rest.is_completed() {
                        return Err(ActorError::Internal(error));
                    }
                    rest
                }
                Err(error) => return Err(ActorError::Internal(error)),
            };
            for child in instance.facts().children() {
                let app = child.app.clone().filter(|app| **app != *self.app_id);
                if !known.insert((app.clone(), child.id.clone())) {
                    continue;
                }
                match app {
                    Some(app) => family.elsewhere.push((app, child.id.clone())),
                    None => found.push_back(child.id.clone()),
                }
            }
            if known.len() > MAX_PURGED {
                return Err(refused(format!(
                    "'{member}' and its children exceed {MAX_PURGED} instances; purge the children first"
                )));
            }
            family.local.push(member);
        }
        Ok(family)
    }

    /// Recovers what is readable of an instance with broken state.
    async fn recover_broken(&self, id: &str) -> Result<Instance, ActorError> {
        let (actors, kind) = (self.actors()?, &self.types.workflow);
        let metadata = actors.state(kind, id, METADATA).await?;
        let counts = metadata.and_then(|metadata| Counts::read(id, &metadata.data).ok());
        let counts = match counts {
            Some(counts) => counts,
            None => Counts {
                history: self.stored_entries(id, history_key).await?,
                inbox: self.stored_entries(id, inbox_key).await?,
                ..Counts::default()
            },
        };
        let mut values = actors.states(kind, id, counts.keys().collect()).await?;
        Ok(Instance::salvage(id, counts, |key| values.remove(key)))
    }

    /// Counts the stored entries if the metadata are unusable.
    async fn stored_entries(&self, id: &str, key: fn(usize) -> String) -> Result<usize, ActorError> {
        let actors = self.actors()?;
        let mut count = 0;
        for first in (0..).step_by(PROBE_BATCH) {
            let keys: Vec<_> = (first..first + PROBE_BATCH).map(key).collect();
            let stored = actors.states(&self.types.workflow, id, keys.clone()).await?;
            let Some(last) = keys.iter().rposition(|key| stored.contains_key(key)) else {
                break;
            };
            count = first + last + 1;
        }
        Ok(count)
    }

    /// Removes the stored state of an instance and its reminders.
    pub(crate) async fn purge_stored(&self, id: &str, failures: &InstanceFailures) -> Result<(), ActorError> {
        tracing::warn!(
            target: LOG,
            "workflow '{id}' is purged by force: if it is still running, its further progress is lost"
        );
        let instance = match self.load(id).await {
            Ok(Some(loaded)) => loaded.instance,
            Ok(None) => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
            Err(error) if is_broken(error.code()) => self.recover_broken(id).await?,
            Err(error) => return Err(ActorError::Internal(error)),
        };
        let actors = self.actors()?;
        // The metadata go last: an interrupted purge can be repeated.
        let keys = instance.removal().deletes;
        actors.remove_state(&self.types.workflow, id, keys).await?;
        let failed = |error: SchedulerError| ReminderError::Delete(ReminderCause::Other(error.to_string()));
        for kind in [&self.types.workflow, &self.types.retentioner] {
            actors.delete_reminders(kind, id, false).await.map_err(failed)?;
        }
        // Not by prefix: another instance's id may have it too.
        for activity in instance.activities() {
            let deleted = actors.delete_reminder(&self.types.activity, &activity, RUN_ACTIVITY);
            deleted.await.map_err(failed)?;
        }
        failures.clear(id);
        Ok(())
    }
}

/// Maximum bytes of the answer to a purge, which has one number.
const MAX_ANSWER: usize = 1024;

/// Whether the sidecar does not know the method. Those of Dapr give no code.
fn is_unimplemented(error: &ActorError) -> bool {
    let (code, text) = error.status().unwrap_or((Code::Ok, ""));
    code == Code::Unimplemented || text.contains("no such method")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn purge_times_out_with_progress() {
        let mut progress = Progress::new();
        progress.count = 7;
        assert!(progress.check_limits("a").is_ok());
        tokio::time::advance(MAX_PURGE_TIME).await;
        let error = progress.check_limits("a").unwrap_err().to_string();
        assert!(
            error.contains("'a'") && error.contains("7 instances are purged"),
            "{error}"
        );
    }

    #[test]
    fn recognizes_sidecars_without_the_method() {
        let unknown = "error invoke actor method: no such method: RecursivePurgeWorkflowState";
        for status in [Status::unimplemented("no"), Status::internal(unknown)] {
            assert!(is_unimplemented(&ActorError::Peer(status)));
        }
        assert!(!is_unimplemented(&ActorError::Peer(Status::not_found("none"))));
    }
}
