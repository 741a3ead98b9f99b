use tokio::sync::mpsc::UnboundedSender;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The app is done with it.
    Acknowledge,
    /// It failed. The broker delivers it again, to any consumer.
    Reject,
    /// It was not attempted, or its attempt was cut short. The broker delivers it again, and does not count a failure.
    Release,
}

/// Settles one delivery, once. Dropped, it rejects the message.
#[derive(Debug)]
pub struct Receipt {
    id: u64,
    /// Holds no more than the subscription's messages in flight. `None`: settled.
    settled: Option<UnboundedSender<Settled>>,
}

/// What the engine says of a delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    /// The receipt's number.
    pub(super) id: u64,
    pub(super) settlement: Settlement,
    /// Its lane goes back with it.
    pub(super) with_lane: bool,
}

impl Receipt {
    pub(super) fn new(id: u64, settled: UnboundedSender<Settled>) -> Self {
        Self {
            id,
            settled: Some(settled),
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

    /// Returns a message that failed, and its lane with it: the broker hears of it together with the later ones that were handed
    /// out, and then [`Event::Reopened`](super::Event::Reopened) comes. For subscriptions that
    /// [keep order](super::Subscription::keeps_order).
    pub fn reject_lane(mut self) {
        self.settle(Settlement::Reject, true);
    }

    /// Returns a message that did not fail: it was not attempted, or its attempt was cut short. `with_lane`: its lane goes back with
    /// it, or has gone back before it.
    pub fn release(mut self, with_lane: bool) {
        self.settle(Settlement::Release, with_lane);
    }

    fn settle(&mut self, settlement: Settlement, with_lane: bool) {
        if let Some(settled) = self.settled.take() {
            // Where nobody listens any more, the subscription ended and the broker has the message.
            let _ = settled.send(Settled {
                id: self.id,
                settlement,
                with_lane,
            });
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.settle(Settlement::Reject, false);
    }
}
