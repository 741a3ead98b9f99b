//! Size limits: an instance too large to send stalls instead of failing again and again.

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{ExecutionStalledEvent, HistoryEvent, PropagatedHistory, StalledReason};
use prost::Message as _;

use crate::error::AddError;
use crate::stored::MAX_ENTRIES;

/// Share of the largest body that an instance may fill, per cent.
const PER_CENT: usize = 95;

/// The largest body that can be sent, bytes; 0 is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit(pub usize);

impl Limit {
    /// Share of the limit that `size` bytes are; `None` without a limit.
    #[must_use]
    pub fn ratio(self, size: usize) -> Option<f64> {
        // Both values are far below 2^52.
        #[allow(clippy::cast_precision_loss)]
        (self.0 > 0).then(|| size as f64 / self.0 as f64)
    }

    /// The stall of an instance of this encoded size, if it exceeds the limit.
    #[must_use]
    pub fn stalls(self, size: usize) -> Option<ExecutionStalledEvent> {
        self.exceeded("Workflow payload size", size)
    }

    /// Why an instance with this start event could never be sent to a worker.
    #[must_use]
    pub fn refuses_start(self, start: &HistoryEvent) -> Option<String> {
        let stalled = self.exceeded(
            "Workflow payload size of the start with its input",
            start.encoded_len(),
        );
        stalled.and_then(|stalled| stalled.description)
    }

    /// Checks the size of an instance with a raised event.
    ///
    /// # Errors
    /// [`AddError::TooLarge`] if the instance would stall.
    pub(crate) fn check_event(self, size: usize) -> Result<(), AddError> {
        match self.stalls(size) {
            Some(_) => Err(AddError::TooLarge { size, limit: self }),
            None => Ok(()),
        }
    }

    /// The stall text for an instance of this size.
    pub(crate) fn with_event(self, size: usize) -> String {
        let stalled = self.exceeded("Workflow payload size with this event", size);
        let text = stalled.and_then(|stalled| stalled.description);
        text.unwrap_or_default()
    }

    /// The stall of an instance whose activity is too large, with the history `passed` on to it.
    pub(crate) fn stalls_task(
        self,
        task: &HistoryEvent,
        passed: Option<&PropagatedHistory>,
    ) -> Option<ExecutionStalledEvent> {
        let name = match &task.event_type {
            Some(EventType::TaskScheduled(task)) => task.name.as_str(),
            _ => "",
        };
        self.exceeded(
            &format!("activity '{name}::{}' payload", task.event_id),
            task.encoded_len() + passed.map_or(0, PropagatedHistory::encoded_len),
        )
    }

    /// The stall of an instance whose child is too large: its start could never be sent to a worker.
    pub(crate) fn stalls_child(
        self,
        child: &str,
        start: &HistoryEvent,
        passed: Option<&PropagatedHistory>,
    ) -> Option<ExecutionStalledEvent> {
        self.exceeded(
            &format!("child workflow '{child}' payload"),
            start.encoded_len() + passed.map_or(0, PropagatedHistory::encoded_len),
        )
    }

    fn exceeded(self, what: &str, size: usize) -> Option<ExecutionStalledEvent> {
        let Self(limit) = self;
        if limit == 0 {
            return None;
        }
        (size.saturating_mul(100) > limit.saturating_mul(PER_CENT)).then(|| ExecutionStalledEvent {
            reason: StalledReason::PayloadSizeExceeded.into(),
            description: Some(format!(
                "{what} {size} bytes exceeds {PER_CENT}% of max gRPC body size {limit} bytes; increase daprd \
                 --max-body-size and restart to resume, or pass less data"
            )),
        })
    }
}

/// The stall of an instance with too many history entries, including the stall event.
pub(crate) fn too_long(entries: usize) -> Option<ExecutionStalledEvent> {
    (entries >= MAX_ENTRIES).then(|| ExecutionStalledEvent {
        reason: StalledReason::PayloadSizeExceeded.into(),
        description: Some(format!(
            "Workflow payload size exceeded: the history would exceed {MAX_ENTRIES} events. Have the workflow \
             continue as new from time to time."
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_more_than_95_percent() {
        assert!(Limit(0).stalls(usize::MAX).is_none());
        assert!(Limit(1000).stalls(950).is_none());
        let stalled = Limit(1000).stalls(1951).unwrap();
        assert_eq!(stalled.reason(), StalledReason::PayloadSizeExceeded);
        let text = stalled.description.unwrap();
        assert!(
            text.starts_with(
                "Workflow payload size 1951 bytes exceeds 95% of max gRPC body size 1000 bytes; "
            ) && text.contains("increase daprd --max-body-size"),
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
