//! Purges an instance, alone or with its children.

use super::error::{Action, InstanceId, WorkflowError};
use crate::actors::ActorError;
use crate::workflow::error::is_unknown;
use crate::workflow::instance::family::Progress;
use crate::workflow::service::Workflows;

/// The result of a purge.
pub struct Purged {
    /// Number of purged instances.
    pub count: usize,
    /// Why the purge is incomplete.
    pub error: Option<ActorError>,
}

impl Workflows {
    /// Removes an ended instance and its children; with `force` only the instance, ended or not.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub async fn manage_purge(&self, of: InstanceId<'_>, force: bool) -> Result<(), WorkflowError> {
        let id = of.id;
        self.ready(id)?;
        let error = match self.other_app(of.app)? {
            Some(app) => self.engine.purge_tree_of(app, id, force).await.err(),
            None => self.purge(id, !force, force).await.error,
        };
        match error {
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
        let (engine, failures) = (&self.engine, &self.instance_failures);
        let mut progress = Progress::new();
        let purged = async {
            if recursive {
                engine.purge_below(id, force, failures, &mut progress).await?;
            }
            engine.purge_one(id, force, failures).await
        };
        let error = purged.await.err();
        Purged {
            count: progress.count + usize::from(error.is_none()),
            error,
        }
    }
}
