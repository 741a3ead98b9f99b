use outrigger_delivery::Settlement;
use tokio::sync::mpsc::UnboundedSender;

/// Settles one delivery, once. Dropped, it rejects the message.
#[derive(Debug)]
pub struct Receipt {
    id: u64,
    /// Takes the receipt's number, the settlement, and whether the messages behind it in its key are returned too. Its length
    /// is bounded by the subscription's messages in flight. `None`: settled.
    settlements: Option<UnboundedSender<(u64, Settlement, bool)>>,
}

impl Receipt {
    pub(super) fn new(id: u64, settlements: UnboundedSender<(u64, Settlement, bool)>) -> Self {
        Self {
            id,
            settlements: Some(settlements),
        }
    }

    /// The app is done with the message. [`Subscription::ended`](super::Subscription::ended) waits until the broker
    /// knows.
    pub fn acknowledge(mut self) {
        self.settle(Settlement::Acknowledge, false);
    }

    /// Returns a message that failed.
    pub fn reject(mut self) {
        self.settle(Settlement::Reject, false);
    }

    /// Returns a message that failed, and the later ones of its key that were handed out. The broker hears of all of them
    /// together, and then [`Event::Reopened`](super::Event::Reopened) comes. For subscriptions that
    /// [keep order](super::Subscription::keeps_order).
    pub fn reject_key(mut self) {
        self.settle(Settlement::Reject, true);
    }

    /// Returns a message that did not fail: it was not attempted, or its attempt was cut short. `with_key`: the later ones of
    /// its key are returned too, or an earlier one was.
    pub fn release(mut self, with_key: bool) {
        self.settle(Settlement::Release, with_key);
    }

    fn settle(&mut self, settlement: Settlement, with_key: bool) {
        if let Some(settlements) = self.settlements.take() {
            // Fails after the subscription ended: the broker has the message then.
            let _ = settlements.send((self.id, settlement, with_key));
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.settle(Settlement::Reject, false);
    }
}
