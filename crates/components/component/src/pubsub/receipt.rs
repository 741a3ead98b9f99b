use outrigger_delivery::Settlement;
use tokio::sync::mpsc::UnboundedSender;

/// Settles one delivery, once. Dropping it rejects the message.
#[derive(Debug)]
pub struct Receipt {
    id: u64,
    /// Takes the receipt number, the settlement, and whether later messages of the key are returned too. The
    /// number of messages in flight bounds its length. `None` after settling.
    settlements: Option<UnboundedSender<(u64, Settlement, bool)>>,
}

impl Receipt {
    pub(super) fn new(id: u64, settlements: UnboundedSender<(u64, Settlement, bool)>) -> Self {
        Self {
            id,
            settlements: Some(settlements),
        }
    }

    /// The app has handled the message. [`Subscription::ended`](super::Subscription::ended) waits until the
    /// broker knows.
    pub fn acknowledge(mut self) {
        self.settle(Settlement::Acknowledge, false);
    }

    /// Returns a failed message.
    pub fn reject(mut self) {
        self.settle(Settlement::Reject, false);
    }

    /// Returns a failed message and the later ones of its key. The broker is notified of all together;
    /// [`Event::Reopened`](super::Event::Reopened) follows. For subscriptions that [keep
    /// order](super::Subscription::keeps_order).
    pub fn reject_key(mut self) {
        self.settle(Settlement::Reject, true);
    }

    /// Returns a message that did not fail: its attempt did not start or was interrupted. `with_key`: later
    /// messages of the key are returned too, or an earlier one was.
    pub fn release(mut self, with_key: bool) {
        self.settle(Settlement::Release, with_key);
    }

    fn settle(&mut self, settlement: Settlement, with_key: bool) {
        if let Some(settlements) = self.settlements.take() {
            // Fails after the end of the subscription, when the broker already has the message.
            let _ = settlements.send((self.id, settlement, with_key));
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.settle(Settlement::Reject, false);
    }
}
