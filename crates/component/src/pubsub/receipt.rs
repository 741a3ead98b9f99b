use tokio::sync::mpsc::UnboundedSender;

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The app is done with it.
    Acknowledge,
    /// It is to be delivered again, to whomever the broker chooses.
    Return,
}

/// Settles one delivery, once. Dropped, it returns the message.
#[derive(Debug)]
pub struct Receipt {
    id: u64,
    /// Holds no more than the subscription's messages in flight. `None`: settled.
    settled: Option<UnboundedSender<(u64, Settlement)>>,
}

impl Receipt {
    pub(super) fn new(id: u64, settled: UnboundedSender<(u64, Settlement)>) -> Self {
        Self {
            id,
            settled: Some(settled),
        }
    }

    /// The app is done with the message. [`Subscription::ended`](super::Subscription::ended) waits until the broker
    /// knows.
    pub fn acknowledge(mut self) {
        self.settle(Settlement::Acknowledge);
    }

    /// Gives the message back.
    pub fn give_back(mut self) {
        self.settle(Settlement::Return);
    }

    fn settle(&mut self, settlement: Settlement) {
        if let Some(settled) = self.settled.take() {
            // Where nobody listens any more, the subscription ended and the broker has the message.
            let _ = settled.send((self.id, settlement));
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.settle(Settlement::Return);
    }
}
