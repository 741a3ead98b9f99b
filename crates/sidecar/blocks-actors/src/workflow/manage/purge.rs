//! Purges an instance, alone or with its children.

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::time::Duration;

use outrigger_runtime::scheduler::SchedulerError;
use outrigger_workflow::error::NO_INSTANCE;
use outrigger_workflow::names::{ActorTypes, METADATA, RUN_ACTIVITY, history_key, inbox_key};
use outrigger_workflow::{Counts, Instance};
use tokio::time::Instant;
use tonic::Status;

use super::error::{Action, WorkflowError};
use crate::actors::{ActorCall, ActorError, ReminderCause, ReminderError};
use crate::workflow::error::{is_broken, is_unknown};
use crate::workflow::metrics::Operation;
use crate::workflow::protocol::{LOG, methods};
use crate::workflow::service::Workflows;

/// Maximum instances purged by one call.
const MAX_PURGED: usize = 100_000;

/// Maximum duration of one call. Parents are purged last, so that another call can purge the rest.
const MAX_PURGE_TIME: Duration = Duration::from_secs(300);

/// Keys probed at once if the number of entries is unknown.
const PROBE_BATCH: usize = 1000;

/// The result of a purge.
pub struct Purged {
    /// Number of purged instances.
    pub count: usize,
    /// Why the purge is incomplete.
    pub error: Option<ActorError>,
}

/// The instances to purge together.
#[derive(Default)]
struct PurgeSet {
    /// Ids of this app's instances, parents before children.
    local: Vec<String>,
    /// Children in other apps: app and id.
    elsewhere: Vec<(String, String)>,
}

/// The progress of one call.
struct Progress {
    began: Instant,
    /// Purged instances.
    count: usize,
    /// Apps without a workflow host: each is waited for once.
    absent: HashSet<String>,
}

impl Progress {
    fn new() -> Self {
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

impl Workflows {
    /// Removes an ended instance and its children; with `force` only the instance, ended or not.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_purge(&self, id: &str, force: bool) -> Result<(), WorkflowError> {
        self.ready(id)?;
        match self.purge(id, !force, force).await.error {
            None => Ok(()),
            Some(error) if is_unknown(&error) => Err(WorkflowError::NotFound(id.to_owned())),
            Some(error) => {
                let cause = format!("failed to Purge workflow {id}: failed to purge workflow state: {error}");
                Err(WorkflowError::Failed(Action::Purge, id.to_owned(), cause))
            }
        }
    }

    /// Purges an ended instance. `recursive`: its children first. `force`: without their actors, ended or
    /// not.
    pub async fn purge(&self, id: &str, recursive: bool, force: bool) -> Purged {
        let mut progress = Progress::new();
        let error = self.purge_all(id, recursive, force, &mut progress).await.err();
        Purged {
            count: progress.count,
            error,
        }
    }

    async fn purge_all(
        &self,
        id: &str,
        recursive: bool,
        force: bool,
        progress: &mut Progress,
    ) -> Result<(), ActorError> {
        let family = match recursive {
            true => self.purge_set(id, force, progress).await?,
            false => PurgeSet {
                local: vec![id.to_owned()],
                ..PurgeSet::default()
            },
        };
        // Only the other apps know whether their children have ended. If one has not, nothing of this app is
        // purged.
        for (app, child) in &family.elsewhere {
            progress.check_limits(id)?;
            let purged = self
                .purge_elsewhere(app, child, force, &mut progress.absent)
                .await?;
            progress.count += usize::from(purged);
        }
        // Children come after their parents.
        for member in family.local.iter().rev() {
            progress.check_limits(id)?;
            let purged = async {
                match force {
                    true => self.purge_stored(member).await,
                    false => {
                        let call = self.request(methods::PURGE, member, Vec::new());
                        self.actors.invoke_plain(&call).await.map(|_| ())
                    }
                }
            };
            match self.counted(Operation::Purge, purged).await {
                Ok(()) => progress.count += 1,
                // Its retention time expired in the meantime.
                Err(error) if member != id && is_unknown(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets another app purge a child; returns whether there was one. Without a host for the app's workflows
    /// the child stays. With force it also stays if the app refuses: its state is not this app's to remove.
    async fn purge_elsewhere(
        &self,
        app: &str,
        id: &str,
        force: bool,
        absent: &mut HashSet<String>,
    ) -> Result<bool, ActorError> {
        let stays = |why: &dyn Display| {
            tracing::warn!(
                target: LOG,
                "child workflow '{id}' of app '{app}' was not purged with its parent; purge it there: {why}"
            );
            Ok(false)
        };
        if absent.contains(app) {
            return stays(&"no sidecar hosts the app's workflows");
        }
        let call = ActorCall {
            kind: ActorTypes::of(&self.engine.namespace, app).workflow,
            ..self.request(methods::PURGE, id, Vec::new())
        };
        let purged = async { self.actors.invoke_plain(&call).await.map(|_| ()) };
        match self.counted(Operation::Purge, purged).await {
            Ok(()) => Ok(true),
            Err(error) if is_unknown(&error) => Ok(false),
            Err(error @ ActorError::NoAddress { .. }) => {
                absent.insert(app.to_owned());
                stays(&error)
            }
            Err(error) if force => stays(&error),
            Err(error) => Err(error),
        }
    }

    /// The instance and its children, all of which must have ended; missing children are skipped.
    async fn purge_set(&self, id: &str, force: bool, progress: &Progress) -> Result<PurgeSet, ActorError> {
        let refused = |text: &str| ActorError::Internal(Status::failed_precondition(text));
        let mut family = PurgeSet::default();
        let mut known = HashSet::from([(None, id.to_owned())]);
        let mut found = VecDeque::from([id.to_owned()]);
        while let Some(member) = found.pop_front() {
            progress.check_limits(id)?;
            // Only one history is held in memory at a time.
            let instance: Instance = match self.load_stored(&member).await {
                Ok(Some(instance)) if instance.is_left_over() => instance,
                Ok(Some(instance)) if instance.start_event().is_some() => {
                    if !instance.is_completed() {
                        return Err(refused("orchestration has not yet completed"));
                    }
                    instance
                }
                Ok(_) if member == id => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
                Ok(_) => continue,
                Err(error) if is_broken_error(&error) => {
                    // A removal may have been interrupted; otherwise it is unknown whether the instance has
                    // ended.
                    let rest = self.recover_broken(&member).await?;
                    if !force && !rest.is_completed() {
                        return Err(error);
                    }
                    rest
                }
                Err(error) => return Err(error),
            };
            for child in instance.facts().children() {
                let app = child.app.clone().filter(|app| **app != *self.engine.app_id);
                if !known.insert((app.clone(), child.id.clone())) {
                    continue;
                }
                match app {
                    Some(app) => family.elsewhere.push((app, child.id.clone())),
                    None => found.push_back(child.id.clone()),
                }
            }
            if known.len() > MAX_PURGED {
                let text = format!(
                    "'{member}' and its children exceed {MAX_PURGED} instances; purge the children first"
                );
                return Err(refused(&text));
            }
            family.local.push(member);
        }
        Ok(family)
    }

    /// Recovers what is readable of an instance with broken state.
    async fn recover_broken(&self, id: &str) -> Result<Instance, ActorError> {
        let (actors, kind) = (&self.actors, &self.engine.types.workflow);
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
        let mut count = 0;
        for first in (0..).step_by(PROBE_BATCH) {
            let keys: Vec<_> = (first..first + PROBE_BATCH).map(key).collect();
            let stored = self.actors.states(&self.engine.types.workflow, id, keys.clone());
            let stored = stored.await?;
            let Some(last) = keys.iter().rposition(|key| stored.contains_key(key)) else {
                break;
            };
            count = first + last + 1;
        }
        Ok(count)
    }

    /// Removes the stored state of an instance and its reminders.
    async fn purge_stored(&self, id: &str) -> Result<(), ActorError> {
        tracing::warn!(
            target: LOG,
            "workflow '{id}' is purged by force: if it is still running, its further progress is lost"
        );
        let instance = match self.load_stored(id).await {
            Ok(Some(instance)) => instance,
            Ok(None) => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
            Err(error) if is_broken_error(&error) => self.recover_broken(id).await?,
            Err(error) => return Err(error),
        };
        let actors = &self.actors;
        // The metadata go last: an interrupted purge can be repeated.
        let keys = instance.removal().deletes;
        actors.remove_state(&self.engine.types.workflow, id, keys).await?;
        let types = &self.engine.types;
        let failed = |error: SchedulerError| ReminderError::Delete(ReminderCause::Other(error.to_string()));
        for kind in [&types.workflow, &types.retentioner] {
            actors.delete_reminders(kind, id, false).await.map_err(failed)?;
        }
        // Not by prefix: another instance's id may have it too.
        for activity in instance.activities() {
            let deleted = actors.delete_reminder(&types.activity, &activity, RUN_ACTIVITY);
            deleted.await.map_err(failed)?;
        }
        self.instance_failures.clear(id);
        Ok(())
    }
}

/// Whether the stored state of an instance is broken.
fn is_broken_error(error: &ActorError) -> bool {
    error.status().is_some_and(|(code, _)| is_broken(code))
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
}
