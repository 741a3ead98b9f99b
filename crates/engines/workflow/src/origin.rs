//! Which execution an event is for. The contract's events tell the number of the activity or child that ended, which every
//! execution of an instance counts anew.

use outrigger_wire::durabletask::HistoryEvent;
use prost::Message as _;

/// Goes with an event from one sidecar to another, and with the data of reminders, as fields behind theirs. Sidecars of Dapr
/// and SDKs skip them, and send none. It is looked at when the event comes, and not stored with it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Origin {
    /// The execution that waits for it, or began it; empty where that is not known.
    #[prost(string, tag = "1002")]
    pub execution: String,
    /// Instance id of the child that ended; empty for everything else.
    #[prost(string, tag = "1003")]
    pub instance: String,
}

impl Origin {
    /// Of an execution.
    #[must_use]
    pub fn of(execution: &str) -> Self {
        Self {
            execution: execution.to_owned(),
            instance: String::new(),
        }
    }

    /// Reads it from behind a message; empty where there is none.
    #[must_use]
    pub fn read(encoded: &[u8]) -> Self {
        Self::decode(encoded).unwrap_or_default()
    }

    /// Puts it behind an encoded message: what follows each other is one message.
    pub fn append_to(&self, encoded: &mut Vec<u8>) {
        encoded.extend(self.encode_to_vec());
    }

    /// Whether it is of another execution than `own`, as far as both are known.
    #[must_use]
    pub fn is_of_another(&self, own: &str) -> bool {
        !self.execution.is_empty() && !own.is_empty() && self.execution != own
    }
}

/// An event that comes to an instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// What came.
    pub event: HistoryEvent,
    /// Which execution it is for.
    pub origin: Origin,
}

impl From<HistoryEvent> for Arrival {
    fn from(event: HistoryEvent) -> Self {
        let origin = Origin::default();
        Self { event, origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_an_event_that_others_read_as_it_is() {
        let event = HistoryEvent {
            event_id: 7,
            ..HistoryEvent::default()
        };
        let mut encoded = event.encode_to_vec();
        assert_eq!(Origin::read(&encoded), Origin::default());
        let origin = Origin {
            execution: "one".to_owned(),
            instance: "child".to_owned(),
        };
        origin.append_to(&mut encoded);
        assert_eq!(Origin::read(&encoded), origin);
        assert_eq!(HistoryEvent::decode(&encoded[..]).unwrap(), event);
        assert!(origin.is_of_another("two") && !origin.is_of_another("one"));
        assert!(!origin.is_of_another("") && !Origin::default().is_of_another("one"));
    }
}
