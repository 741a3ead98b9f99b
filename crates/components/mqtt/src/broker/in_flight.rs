use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use rumqttc::QoS;

use crate::client::Received;

/// Messages not acknowledged to the broker, in order of arrival.
#[derive(Default)]
pub(super) struct InFlight {
    messages: BTreeMap<u64, Message>,
    by_packet: HashMap<u16, u64>,
    /// Messages without a subscription.
    unrouted: BTreeSet<u64>,
    next: u64,
    /// Their memory size in bytes.
    bytes: usize,
}

struct Message {
    received: Arc<Received>,
    /// The last connection that delivered it, the only one that can acknowledge it. `None` if the broker
    /// forgot it.
    connection: Option<u64>,
    /// The app has handled it.
    done: bool,
}

/// How to treat an incoming message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Deliver it under this number.
    New(u64, Arc<Received>),
    /// The app still holds it.
    Known,
    /// The app handled it earlier: acknowledge it.
    Done(Arc<Received>),
}

impl InFlight {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Memory size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of the message, if held.
    fn known(&self, received: &Received) -> Option<u64> {
        if received.qos == QoS::AtMostOnce || !received.again {
            return None;
        }
        let number = *self.by_packet.get(&received.packet)?;
        let known = &self.messages.get(&number)?.received;
        (known.topic == received.topic && known.payload == received.payload).then_some(number)
    }

    /// Whether the message is held.
    pub(super) fn knows(&self, received: &Received) -> bool {
        self.known(received).is_some()
    }

    pub(super) fn add(&mut self, received: Received, connection: u64) -> Arrival {
        if let Some(number) = self.known(&received)
            && let Some(known) = self.messages.get_mut(&number)
        {
            known.connection = Some(connection);
            if !known.done {
                return Arrival::Known;
            }
            self.remove(number);
            return Arrival::Done(received.into());
        }
        let number = self.next;
        self.next += 1;
        if received.qos != QoS::AtMostOnce {
            self.by_packet.insert(received.packet, number);
        }
        let received = Arc::new(received);
        let message = Message {
            received: Arc::clone(&received),
            connection: Some(connection),
            done: false,
        };
        self.bytes += received.size();
        self.messages.insert(number, message);
        Arrival::New(number, received)
    }

    /// Marks a message as handled. Returns the message to acknowledge if this connection can.
    pub(super) fn done(&mut self, number: u64, connection: Option<u64>) -> Option<Arc<Received>> {
        let message = self.messages.get_mut(&number)?;
        if message.connection.is_none() || message.received.qos == QoS::AtMostOnce {
            self.remove(number);
            return None;
        }
        if message.connection != connection {
            // The broker resends it.
            message.done = true;
            return None;
        }
        self.remove(number).map(|message| message.received)
    }

    /// The message has no subscription any longer.
    pub(super) fn set_unrouted(&mut self, number: u64) -> Option<Arc<Received>> {
        if self.messages.get(&number)?.received.qos == QoS::AtMostOnce {
            self.remove(number);
            return None;
        }
        self.unrouted.insert(number);
        let message = self.messages.get(&number);
        message.map(|message| Arc::clone(&message.received))
    }

    pub(super) fn set_routed(&mut self, number: u64) {
        self.unrouted.remove(&number);
    }

    /// Messages without a subscription, in order.
    pub(super) fn unrouted(&self) -> Vec<(u64, Arc<Received>)> {
        let unrouted = self.unrouted.iter();
        unrouted
            .filter_map(|number| Some((*number, Arc::clone(&self.messages.get(number)?.received))))
            .collect()
    }

    /// The broker lost the session, with all earlier messages.
    pub(super) fn forgotten(&mut self) {
        self.by_packet.clear();
        let done = self.messages.iter().filter(|(_, message)| message.done);
        for number in done.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.remove(number);
        }
        for message in self.messages.values_mut() {
            message.connection = None;
        }
    }

    fn remove(&mut self, number: u64) -> Option<Message> {
        self.unrouted.remove(&number);
        let message = self.messages.remove(&number)?;
        self.bytes -= message.received.size();
        if self.by_packet.get(&message.received.packet) == Some(&number) {
            self.by_packet.remove(&message.received.packet);
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(packet: u16, again: bool, text: &'static str) -> Received {
        Received {
            topic: "orders".into(),
            payload: text.into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            again,
            packet,
            expires: None,
            properties: None,
        }
    }

    /// The number of a new message.
    fn new(arrival: Arrival) -> u64 {
        match arrival {
            Arrival::New(number, _) => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn does_not_deliver_held_message_twice() {
        let mut in_flight = InFlight::default();
        assert_eq!(new(in_flight.add(received(1, false, "a"), 1)), 0);
        assert!(in_flight.knows(&received(1, true, "a")) && !in_flight.knows(&received(1, true, "b")));
        assert_eq!(in_flight.add(received(1, true, "a"), 2), Arrival::Known);
        let settled = in_flight.done(0, Some(2)).unwrap();
        assert_eq!(settled.packet, 1);
        assert_eq!((in_flight.len(), in_flight.bytes()), (0, 0));
    }

    #[test]
    fn acknowledges_done_message_on_resend() {
        let mut in_flight = InFlight::default();
        in_flight.add(received(1, false, "a"), 1);
        assert_eq!(in_flight.done(0, None), None);
        let again = received(1, true, "a");
        assert_eq!(in_flight.add(again.clone(), 2), Arrival::Done(again.into()));
        assert_eq!(in_flight.len(), 0);
    }

    #[test]
    fn packet_id_is_per_session() {
        let mut in_flight = InFlight::default();
        in_flight.add(received(1, false, "a"), 1);
        in_flight.add(received(2, false, "done"), 1);
        assert_eq!(in_flight.done(1, None), None);
        in_flight.forgotten();
        assert_eq!(
            (in_flight.len(), in_flight.bytes()),
            (1, 7),
            "nobody asks for what is done"
        );
        assert_eq!(new(in_flight.add(received(1, false, "b"), 2)), 2);
        assert_eq!(in_flight.done(0, Some(2)), None, "the broker does not know it");
        assert_eq!(in_flight.done(2, Some(2)).unwrap().payload, "b");
        assert_eq!((in_flight.len(), in_flight.bytes()), (0, 0));
    }

    #[test]
    fn unrouted_messages_keep_order() {
        let mut in_flight = InFlight::default();
        for (packet, text) in [(1, "a"), (2, "b")] {
            in_flight.add(received(packet, false, text), 1);
        }
        in_flight.set_unrouted(1);
        in_flight.set_unrouted(0);
        let numbers: Vec<_> = in_flight
            .unrouted()
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        assert_eq!(numbers, [0, 1]);
        in_flight.set_routed(0);
        assert_eq!(in_flight.unrouted().len(), 1);
    }
}
