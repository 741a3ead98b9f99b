//! Failed reminders: if the instance cannot proceed soon, a later reminder replaces them.

use std::time::{Duration, SystemTime};

use outrigger_workflow::names::{self, Purpose};
use prost_types::Any;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::state::Instances;
use crate::workflow::protocol::{LOG, random};
use crate::workflow::reminders::POSTPONE_TIMEOUT;

/// Retry interval of a stalled instance, which waits for a worker with other code. If that worker connects to
/// another sidecar because this one was killed, only the reminder runs the instance.
const STALLED_PAUSE: Duration = Duration::from_secs(5);
/// Retry interval of reminders that this sidecar cannot decode or does not know: they wait for a sidecar of
/// another version.
const UNREAD_PAUSE: Duration = Duration::from_secs(60);

impl Instances {
    /// Handles a failed reminder. If the instance cannot proceed soon, replaces it by a later one: one per
    /// kind of reminder with data, and one for all reminders that only run the instance.
    ///
    /// # Errors
    /// The error, if the reminder is to be redelivered in a second.
    pub(crate) async fn postpone(
        &self,
        id: &str,
        name: &str,
        data: Option<&Any>,
        why: Status,
    ) -> Result<(), Status> {
        let Some(pause) = pause(why.code()).or_else(|| self.failures.pause(id)) else {
            return Err(why);
        };
        let purpose = names::purpose(name);
        if purpose == Some(Purpose::Run) && self.failures.has_later_reminder(id, name, pause) {
            return Ok(());
        }
        if why.code() == Code::InvalidArgument {
            tracing::warn!(
                target: LOG,
                "workflow '{id}': reminder '{name}' is postponed by {} s: {}",
                pause.as_secs(),
                why.message()
            );
        }
        let later = match purpose {
            Some(purpose) => names::later_reminder(purpose, random()),
            None => names::later_unknown(name, random()),
        };
        let due = (SystemTime::now() + pause).into();
        let engine = &self.engine;
        let set = engine.remind(&engine.types.workflow, id, &later, Some(due), data.cloned());
        match timeout(POSTPONE_TIMEOUT, set).await {
            Ok(Ok(())) => {
                if purpose == Some(Purpose::Run) {
                    self.failures.postpone(id, later, pause);
                }
                Ok(())
            }
            _ => Err(why),
        }
    }
}

/// The pause after an error that retrying cannot fix; `None` if the instance's backoff decides.
fn pause(why: Code) -> Option<Duration> {
    match why {
        Code::FailedPrecondition => Some(STALLED_PAUSE),
        Code::InvalidArgument => Some(UNREAD_PAUSE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::durabletask::backend::v1::DurableTimer;

    use super::*;
    use crate::workflow::error::{retry_later, stalled_status};
    use crate::workflow::protocol::decode;

    #[test]
    fn postpones_permanent_errors() {
        let stalled = stalled_status();
        assert_eq!(pause(stalled.code()), Some(STALLED_PAUSE));
        let unread = decode::<DurableTimer>("the data of the timer", &b"\xff"[..]).unwrap_err();
        assert_eq!(pause(unread.code()), Some(UNREAD_PAUSE));
        // Store, scheduler or worker may recover.
        assert_eq!(pause(retry_later("the store is away").code()), None);
    }
}
