use std::collections::{BTreeMap, BTreeSet, HashMap};

use rumqttc::{Publish, QoS};

/// Messages that the broker was not told to be settled, by the order they came in.
#[derive(Default)]
pub(super) struct Held {
    messages: BTreeMap<u64, Message>,
    by_packet: HashMap<u16, u64>,
    /// Those that no subscription has.
    stray: BTreeSet<u64>,
    next: u64,
}

struct Message {
    publish: Publish,
    /// The number of the connection it came by last: only there it can be acknowledged. `None`: the broker forgot it.
    connection: Option<u64>,
    /// The app is done with it.
    done: bool,
}

/// What to do with a message that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Deliver it under this number.
    New(u64),
    /// The app still has it.
    Known,
    /// The app was done with it before: acknowledge it.
    Done,
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn came(&mut self, publish: &Publish, connection: u64) -> Arrival {
        let numbered = publish.qos != QoS::AtMostOnce;
        if numbered
            && publish.dup
            && let Some(number) = self.by_packet.get(&publish.pkid)
            && let Some(known) = self.messages.get_mut(number)
            && known.publish.topic == publish.topic
            && known.publish.payload == publish.payload
        {
            known.connection = Some(connection);
            if !known.done {
                return Arrival::Known;
            }
            let number = *number;
            self.remove(number);
            return Arrival::Done;
        }
        let number = self.next;
        self.next += 1;
        if numbered {
            self.by_packet.insert(publish.pkid, number);
        }
        let message = Message {
            publish: publish.clone(),
            connection: Some(connection),
            done: false,
        };
        self.messages.insert(number, message);
        Arrival::New(number)
    }

    /// The app is done with it. What to acknowledge, if that is possible on this connection.
    pub(super) fn done(&mut self, number: u64, connection: Option<u64>) -> Option<Publish> {
        let message = self.messages.get_mut(&number)?;
        if message.connection.is_none() || message.publish.qos == QoS::AtMostOnce {
            self.remove(number);
            return None;
        }
        if message.connection != connection {
            // It comes again.
            message.done = true;
            return None;
        }
        self.remove(number).map(|message| message.publish)
    }

    /// No subscription has it any more.
    pub(super) fn strays(&mut self, number: u64) -> Option<&Publish> {
        if self.messages.get(&number)?.publish.qos == QoS::AtMostOnce {
            self.remove(number);
            return None;
        }
        self.stray.insert(number);
        self.messages.get(&number).map(|message| &message.publish)
    }

    pub(super) fn found(&mut self, number: u64) {
        self.stray.remove(&number);
    }

    /// Those without a subscription, in order.
    pub(super) fn stray(&self) -> Vec<(u64, Publish)> {
        let stray = self.stray.iter();
        stray
            .filter_map(|number| Some((*number, self.messages.get(number)?.publish.clone())))
            .collect()
    }

    /// The broker has no session of before: what came then is not known to it any more.
    pub(super) fn forgotten(&mut self) {
        self.by_packet.clear();
        self.messages.retain(|_, message| !message.done);
        for message in self.messages.values_mut() {
            message.connection = None;
        }
    }

    fn remove(&mut self, number: u64) -> Option<Message> {
        self.stray.remove(&number);
        let message = self.messages.remove(&number)?;
        if self.by_packet.get(&message.publish.pkid) == Some(&number) {
            self.by_packet.remove(&message.publish.pkid);
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(pkid: u16, dup: bool, text: &str) -> Publish {
        let mut publish = Publish::new("orders", QoS::AtLeastOnce, text);
        publish.pkid = pkid;
        publish.dup = dup;
        publish
    }

    #[test]
    fn what_the_app_has_is_not_delivered_twice() {
        let mut held = Held::default();
        assert_eq!(held.came(&publish(1, false, "a"), 1), Arrival::New(0));
        assert_eq!(held.came(&publish(1, true, "a"), 2), Arrival::Known);
        let settled = held.done(0, Some(2)).unwrap();
        assert_eq!(settled.pkid, 1);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn what_was_done_without_a_connection_is_acknowledged_when_it_comes_again() {
        let mut held = Held::default();
        held.came(&publish(1, false, "a"), 1);
        assert_eq!(held.done(0, None), None);
        assert_eq!(held.came(&publish(1, true, "a"), 2), Arrival::Done);
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn a_packet_identifier_of_another_session_is_another_message() {
        let mut held = Held::default();
        held.came(&publish(1, false, "a"), 1);
        held.forgotten();
        assert_eq!(held.came(&publish(1, false, "b"), 2), Arrival::New(1));
        assert_eq!(held.done(0, Some(2)), None, "the broker does not know it");
        assert_eq!(held.done(1, Some(2)).unwrap().payload, "b");
        assert_eq!(held.len(), 0);
    }

    #[test]
    fn strays_wait_in_their_order() {
        let mut held = Held::default();
        for (pkid, text) in [(1, "a"), (2, "b")] {
            held.came(&publish(pkid, false, text), 1);
        }
        held.strays(1);
        held.strays(0);
        let texts: Vec<_> = held.stray().into_iter().map(|(number, _)| number).collect();
        assert_eq!(texts, [0, 1]);
        held.found(0);
        assert_eq!(held.stray().len(), 1);
    }
}
