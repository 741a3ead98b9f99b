//! Access of other apps to an instance.

use outrigger_workflow::{Arrival, Delivery};
use tonic::Status;

use super::state::Held;
use crate::actors::ActorCall;
use crate::workflow::access::{Asked, Guarded, undecided};
use crate::workflow::error::retry_later;
use crate::workflow::protocol::LOG;

/// What becomes of an admitted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The instance handles it.
    Granted,
    /// Nothing is left to do.
    Answered,
}

impl Held<'_> {
    /// Decides about a call by the policies of this app.
    ///
    /// # Errors
    /// `PermissionDenied` with the text of the contract, or why the workflow is unknown.
    pub(crate) async fn check_access(&mut self, call: &ActorCall) -> Result<Access, Status> {
        let Some(guarded) = self.all.engine.access.guard(call) else {
            return Ok(Access::Granted);
        };
        let (operation, name) = match guarded.asked()? {
            Asked::Operation(operation, name) => (operation, name),
            Asked::Result(result) => return self.check_result(&guarded, &result).await,
        };
        let name = match name {
            Some(name) => name,
            None => self.workflow_name().await.map_err(|error| undecided(&error))?,
        };
        guarded.workflow(operation, &name).map(|()| Access::Granted)
    }

    /// The name of the workflow; empty without an instance.
    async fn workflow_name(&mut self) -> Result<String, Status> {
        let Some(loaded) = self.take().await? else {
            return Ok(String::new());
        };
        let started = loaded.instance.start_event();
        let name = started.map(|started| started.name.clone()).unwrap_or_default();
        self.keep(loaded);
        Ok(name)
    }

    /// Takes results from the app that runs the task, whatever the policies say: the workflow sent it there. A
    /// result that no task will await changes nothing.
    async fn check_result(&mut self, guarded: &Guarded<'_>, result: &Arrival) -> Result<Access, Status> {
        // The sender of a result needs to know that there is no instance.
        let Some(loaded) = self.take().await? else {
            return Ok(Access::Granted);
        };
        let decided = loaded.instance.delivery(result, guarded.app);
        self.keep(loaded);
        let (id, app) = (self.id, guarded.app);
        match decided {
            Delivery::Accepted => Ok(Access::Granted),
            Delivery::Denied => Err(guarded.unknown_method()),
            Delivery::Early => Err(retry_later(format!(
                "workflow '{id}' has not stored yet that app '{app}' runs the task of this result"
            ))),
            Delivery::Unwanted => {
                tracing::debug!(target: LOG, "workflow '{id}' awaits no such result of app '{app}': it is dropped");
                Ok(Access::Answered)
            }
        }
    }
}
