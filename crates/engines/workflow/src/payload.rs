//! What is too large to be sent stalls an instance, instead of failing on its way again and again.

use outrigger_wire::durabletask::{ExecutionStalledEvent, HistoryEvent, StalledReason};
use prost::Message as _;

use crate::error::AddError;
use crate::stored::MAX_ENTRIES;

/// Part of the largest body, in per cent, that an instance may fill.
const PER_CENT: usize = 95;

/// The largest body that may be sent, bytes; 0 = any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit(pub usize);

impl Limit {
    /// Which part of the limit `size` bytes are; `None` without a limit.
    #[must_use]
    pub fn ratio(self, size: usize) -> Option<f64> {
        // Both are far below 2^52.
        #[allow(clippy::cast_precision_loss)]
        (self.0 > 0).then(|| size as f64 / self.0 as f64)
    }

    /// Why an instance of this encoded size cannot go on.
    #[must_use]
    pub fn stalls(self, size: usize) -> Option<ExecutionStalledEvent> {
        self.exceeded("history and inbox of the workflow", size)
    }

    /// Why an instance that begins with this event could never be sent to a worker.
    #[must_use]
    pub fn refuses_start(self, start: &HistoryEvent) -> Option<String> {
        let stalled = self.exceeded("the start of the workflow, with its input,", start.encoded_len());
        stalled.and_then(|stalled| stalled.description)
    }

    /// Whether an instance may take an event that was raised, and would be of this size then.
    ///
    /// # Errors
    /// [`AddError::TooLarge`] where it could not go on.
    pub(crate) fn check_event(self, size: usize) -> Result<(), AddError> {
        match self.stalls(size) {
            Some(_) => Err(AddError::TooLarge { size, limit: self }),
            None => Ok(()),
        }
    }

    /// Why an instance does not take an event that would make it this large.
    pub(crate) fn with_event(self, size: usize) -> String {
        let stalled = self.exceeded("history and inbox of the workflow with this event", size);
        let text = stalled.and_then(|stalled| stalled.description);
        text.unwrap_or_default()
    }

    /// Why an instance that schedules this activity cannot go on.
    #[must_use]
    pub fn stalls_task(self, task: &HistoryEvent) -> Option<ExecutionStalledEvent> {
        self.exceeded(
            &format!("the call of activity {}", task.event_id),
            task.encoded_len(),
        )
    }

    /// Why an instance that creates this child cannot go on: no worker of the child could ever be sent its start.
    #[must_use]
    pub fn stalls_child(self, child: &str, start: &HistoryEvent) -> Option<ExecutionStalledEvent> {
        self.exceeded(
            &format!("the start of child workflow '{child}', with its input,"),
            start.encoded_len(),
        )
    }

    fn exceeded(self, what: &str, size: usize) -> Option<ExecutionStalledEvent> {
        let Self(limit) = self;
        let per_cent = size.saturating_mul(100).checked_div(limit)?;
        (size.saturating_mul(100) > limit.saturating_mul(PER_CENT)).then(|| ExecutionStalledEvent {
            reason: StalledReason::PayloadSizeExceeded.into(),
            description: Some(format!(
                "Payload size exceeded: {what} has {size} bytes, {per_cent}% of the {limit} bytes of the largest body, \
                 which exceeds the {PER_CENT}% that may be used; increase daprd --max-body-size, or pass less data."
            )),
        })
    }
}

/// Why an instance cannot go on whose history would have so many entries, with the one that says so.
pub(crate) fn too_long(entries: usize) -> Option<ExecutionStalledEvent> {
    (entries >= MAX_ENTRIES).then(|| ExecutionStalledEvent {
        reason: StalledReason::PayloadSizeExceeded.into(),
        description: Some(format!(
            "Payload size exceeded: the history of the workflow would have more than the {MAX_ENTRIES} events that can be \
             stored. Have the workflow continue as new from time to time."
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_95_per_cent_of_the_limit_is_too_much() {
        assert!(Limit(0).stalls(usize::MAX).is_none());
        assert!(Limit(1000).stalls(950).is_none());
        let stalled = Limit(1000).stalls(1951).unwrap();
        assert_eq!(stalled.reason(), StalledReason::PayloadSizeExceeded);
        let text = stalled.description.unwrap();
        assert!(
            [
                "1951 bytes, 195% of the 1000 bytes",
                "exceeds the 95%",
                "increase daprd --max-body-size"
            ]
            .iter()
            .all(|part| text.contains(part)),
            "{text}"
        );
        let start = HistoryEvent {
            event_id: 7,
            ..HistoryEvent::default()
        };
        let size = start.encoded_len();
        assert_eq!(Limit(0).refuses_start(&start), None);
        assert_eq!(Limit(2 * size).refuses_start(&start), None);
        let why = Limit(size).refuses_start(&start).unwrap();
        assert!(why.contains("input") && why.contains("--max-body-size"), "{why}");
        assert_eq!(Limit(200).ratio(50), Some(0.25));
        assert_eq!(Limit(0).ratio(50), None);
    }
}
