//! Purging instances: one, or one with all its children.

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

/// Instances that one call purges at most.
const MAX_PURGED: usize = 100_000;

/// How long one call purges at most. What is left can be purged by another: parents go last.
const MAX_PURGE_TIME: Duration = Duration::from_secs(300);

/// Keys of an instance that are looked for at once, where nothing says how many there are.
const LOOKED_FOR: usize = 1000;

/// How much was purged, and why not all.
pub struct Purged {
    /// Instances.
    pub count: usize,
    /// Why not all.
    pub error: Option<ActorError>,
}

/// What is purged together.
#[derive(Default)]
struct Family {
    /// Ids of this app's instances, each before those that it created.
    local: Vec<String>,
    /// Children in other apps: those, and the ids there.
    elsewhere: Vec<(String, String)>,
}

/// How far one call has come.
struct Progress {
    began: Instant,
    /// Instances that are purged.
    count: usize,
    /// Apps whose workflows nobody hosts: each is waited for once.
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

    /// Whether there is time for another step of the purge of `id`.
    fn may_go_on(&self, id: &str) -> Result<(), ActorError> {
        if self.began.elapsed() < MAX_PURGE_TIME {
            return Ok(());
        }
        let text = format!(
            "'{id}' and its children are not purged within {} s: {} instances are purged; repeat the call for the \
             rest",
            MAX_PURGE_TIME.as_secs(),
            self.count
        );
        Err(ActorError::Internal(Status::deadline_exceeded(text)))
    }
}

impl Workflows {
    /// Removes an instance that has ended, and all that it has created; by `force` it alone, whether it has ended or not.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_purge(&self, id: &str, force: bool) -> Result<(), WorkflowError> {
        self.ready(id)?;
        match self.purge(id, !force, force).await.error {
            None => Ok(()),
            Some(error) if is_unknown(&error) => Err(WorkflowError::NotFound(id.to_owned())),
            Some(error) => {
                let cause =
                    format!("failed to Purge workflow {id}: failed to purge orchestration state: {error}");
                Err(WorkflowError::Failed(Action::Purge, id.to_owned(), cause))
            }
        }
    }

    /// Purges an instance that has ended; `recursive`: its children first, `force`: without their actors, whether they
    /// have ended or not.
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
            true => self.family(id, force, progress).await?,
            false => Family {
                local: vec![id.to_owned()],
                ..Family::default()
            },
        };
        // Only their apps know whether they have ended. Nothing of this app goes where one of them has not.
        for (app, child) in &family.elsewhere {
            progress.may_go_on(id)?;
            let purged = self
                .purge_elsewhere(app, child, force, &mut progress.absent)
                .await?;
            progress.count += usize::from(purged);
        }
        // Parents were found before their children.
        for member in family.local.iter().rev() {
            progress.may_go_on(id)?;
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
                // Its time was over meanwhile.
                Err(error) if member != id && is_unknown(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Has another app purge a child; whether there was one. Where none hosts the app's workflows it stays, and by
    /// force it stays too where the app refuses: what it stored is not this app's to remove.
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
                "child workflow '{id}' of app '{app}' is not purged with its parent, purge it there: {why}"
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

    /// An instance and what it has created, all of which has to have ended. Children that are gone are no part of it.
    async fn family(&self, id: &str, force: bool, progress: &Progress) -> Result<Family, ActorError> {
        let refused = |text: &str| ActorError::Internal(Status::failed_precondition(text));
        let mut family = Family::default();
        let mut known = HashSet::from([(None, id.to_owned())]);
        let mut found = VecDeque::from([id.to_owned()]);
        while let Some(member) = found.pop_front() {
            progress.may_go_on(id)?;
            // One history at a time is in memory.
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
                Err(error) if says_broken(&error) => {
                    // A removal may have left it in part; of others it cannot be told whether they have ended.
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
                    "'{member}' and its children are more than {MAX_PURGED}; purge the children first"
                );
                return Err(refused(&text));
            }
            family.local.push(member);
        }
        Ok(family)
    }

    /// What can be found of an instance whose stored state is broken.
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

    /// How many entries are stored, where the metadata do not say so.
    async fn stored_entries(&self, id: &str, key: fn(usize) -> String) -> Result<usize, ActorError> {
        let mut count = 0;
        for first in (0..).step_by(LOOKED_FOR) {
            let keys: Vec<_> = (first..first + LOOKED_FOR).map(key).collect();
            let stored = self.actors.states(&self.engine.types.workflow, id, keys.clone());
            let stored = stored.await?;
            let Some(last) = keys.iter().rposition(|key| stored.contains_key(key)) else {
                break;
            };
            count = first + last + 1;
        }
        Ok(count)
    }

    /// Removes what is stored of an instance, and its reminders.
    async fn purge_stored(&self, id: &str) -> Result<(), ActorError> {
        tracing::warn!(
            target: LOG,
            "workflow '{id}' is purged by force: if it still runs, what it does from now on is lost"
        );
        let instance = match self.load_stored(id).await {
            Ok(Some(instance)) => instance,
            Ok(None) => return Err(ActorError::Internal(Status::not_found(NO_INSTANCE))),
            Err(error) if says_broken(&error) => self.recover_broken(id).await?,
            Err(error) => return Err(error),
        };
        let actors = &self.actors;
        // The metadata go last: what is left when this breaks off can be purged again.
        let keys = instance.removal().deletes;
        actors.remove_state(&self.engine.types.workflow, id, keys).await?;
        let types = &self.engine.types;
        let failed = |error: SchedulerError| ReminderError::Delete(ReminderCause::Other(error.to_string()));
        for kind in [&types.workflow, &types.retentioner] {
            actors.delete_reminders(kind, id, false).await.map_err(failed)?;
        }
        // Not by the beginning of their ids: another instance's id may begin so.
        for activity in instance.activities() {
            let deleted = actors.delete_reminder(&types.activity, &activity, RUN_ACTIVITY);
            deleted.await.map_err(failed)?;
        }
        self.instance_failures.clear(id);
        Ok(())
    }
}

/// Whether an error is about what is stored of an instance.
fn says_broken(error: &ActorError) -> bool {
    error.status().is_some_and(|(code, _)| is_broken(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_purge_ends_in_time_and_says_how_far_it_came() {
        let mut progress = Progress::new();
        progress.count = 7;
        assert!(progress.may_go_on("a").is_ok());
        tokio::time::advance(MAX_PURGE_TIME).await;
        let error = progress.may_go_on("a").unwrap_err().to_string();
        assert!(
            error.contains("'a'") && error.contains("7 instances are purged"),
            "{error}"
        );
    }
}
