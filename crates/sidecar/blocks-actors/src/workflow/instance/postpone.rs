//! Reminders that fail: where the instance cannot proceed soon, a later one replaces them.

use std::time::{Duration, SystemTime};

use outrigger_workflow::names::{self, Purpose};
use prost_types::Any;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::state::Instances;
use crate::workflow::protocol::{LOG, random};
use crate::workflow::reminders::POSTPONE_TIMEOUT;

/// When a stalled instance comes again. It waits for a worker with other code: where that comes with another sidecar, because this
/// one was killed, nothing else has it run.
const STALLED_PAUSE: Duration = Duration::from_secs(5);
/// When a reminder comes again that this sidecar cannot read, or does not know: it waits for a sidecar of another version.
const UNREAD_PAUSE: Duration = Duration::from_secs(60);

impl Instances {
    /// A reminder of an instance came in vain. Where the instance cannot go on soon, another takes its place that comes later:
    /// one of each kind that carries something, and one for all those that only have it run.
    ///
    /// # Errors
    /// Why it came in vain, where it is to come again in a second.
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
        if purpose == Some(Purpose::Run) && self.failures.comes_later(id, name, pause) {
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

/// How long what came in vain is put off, whatever is known of the instance; `None` where that decides.
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
    fn what_no_repetition_mends_is_put_off() {
        let stalled = stalled_status();
        assert_eq!(pause(stalled.code()), Some(STALLED_PAUSE));
        let unread = decode::<DurableTimer>("the data of the timer", &b"\xff"[..]).unwrap_err();
        assert_eq!(pause(unread.code()), Some(UNREAD_PAUSE));
        // The store, the scheduler or a worker may be there again.
        assert_eq!(pause(retry_later("the store is away").code()), None);
    }
}
