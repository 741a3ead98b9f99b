//! The execution that an event is meant for. The contract identifies activities and children only by number,
//! and each execution of an instance counts anew.

use outrigger_wire::durabletask::HistoryEvent;
use prost::Message as _;

/// Sent with events and in reminder data, as fields appended to the contract's. Dapr's sidecars and SDKs skip
/// these fields and do not send them. Checked on arrival and not stored.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Origin {
    /// The execution that awaits or started it; empty if unknown.
    #[prost(string, tag = "1002")]
    pub execution: String,
    /// Instance id of the child that ended; otherwise empty.
    #[prost(string, tag = "1003")]
    pub instance: String,
}

impl Origin {
    /// The origin of an execution.
    #[must_use]
    pub fn of(execution: &str) -> Self {
        Self {
            execution: execution.to_owned(),
            instance: String::new(),
        }
    }

    /// Reads the fields appended to a message; empty if absent.
    #[must_use]
    pub fn read(encoded: &[u8]) -> Self {
        Self::decode(encoded).unwrap_or_default()
    }

    /// Appends the fields to an encoded message: concatenated protobuf messages are merged.
    pub fn append_to(&self, encoded: &mut Vec<u8>) {
        encoded.extend(self.encode_to_vec());
    }

    /// Whether it names another execution than `own`, if both are known.
    #[must_use]
    pub fn is_of_another(&self, own: &str) -> bool {
        !self.execution.is_empty() && !own.is_empty() && self.execution != own
    }
}

/// An event with its origin.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// The event.
    pub event: HistoryEvent,
    /// The execution it is meant for.
    pub origin: Origin,
    /// Whether it waited in a reminder. The certificate of its attestation may have expired since.
    pub waited: bool,
}

impl From<HistoryEvent> for Arrival {
    fn from(event: HistoryEvent) -> Self {
        let origin = Origin::default();
        Self {
            event,
            origin,
            waited: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_origin_leaves_event_readable() {
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
