use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{FutureExt, stream};
use outrigger_backoff::Backoff;
use outrigger_component::{
    Result,
    pubsub::{Feed, Message, Settlement, Subscribe},
};
use outrigger_wire::components::v1::{AckMessageError, PullMessagesRequest, PullMessagesResponse, Topic};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tonic::{Status, Streaming};

use super::BrokerInner;
use crate::{discovery::LOG, status};

/// Maximum pending acknowledgements; beyond it no messages are taken.
const MAX_ACKS: usize = 256;
/// Backoff before reopening the stream.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
/// Error text for a message to redeliver.
const REDELIVER_TEXT: &str = "the message was not processed: deliver it again";
/// How long the stream stays open after the last ack, so that the component reads it and messages sent before
/// that need not wait for the next stream.
const SETTLE_TIME: Duration = Duration::from_millis(400);
/// How long a component may take to notice the end of the reading.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Pulls the messages of one topic.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    topic: Topic,
    name: Arc<str>,
    /// Notifies the subscriber about the first stream.
    begun: Option<oneshot::Sender<Result<(), Status>>>,
    /// Backoff before the next stream.
    pauses: Backoff,
}

/// The answer to a component about a message. At the end of a stream (`ending`), unattempted messages get no
/// answer: the component redelivers them once the stream is gone, while a rejection might dead-letter them.
fn answer(id: String, settlement: Settlement, ending: bool) -> Option<PullMessagesRequest> {
    let error = match settlement {
        Settlement::Acknowledge => None,
        Settlement::Release if ending => return None,
        Settlement::Reject | Settlement::Release => Some(AckMessageError {
            message: REDELIVER_TEXT.to_owned(),
        }),
    };
    Some(PullMessagesRequest {
        topic: None,
        ack_message_id: id,
        ack_error: error,
    })
}

impl Consumer {
    pub(super) fn new(
        shared: &Arc<BrokerInner>,
        request: &Subscribe,
        begun: oneshot::Sender<Result<(), Status>>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            topic: Topic {
                name: request.topic.clone(),
                metadata: request.metadata.clone(),
            },
            name: request.topic.as_str().into(),
            begun: Some(begun),
            pauses: PAUSES,
        }
    }

    pub(super) async fn run(mut self, mut feed: Feed<String>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        loop {
            let ended = self.session(&mut feed).await;
            // A message can be acknowledged only on its own stream; the component redelivers it.
            feed.forget(|_| true);
            if drain.is_cancelled() || closed.is_cancelled() {
                return Ok(());
            }
            let cause = match ended {
                Ok(()) => "the component ended the stream".to_owned(),
                Err(status) => {
                    let cause = status::text(&status);
                    if let Some(begun) = self.begun.take()
                        && begun.send(Err(status)).is_ok()
                    {
                        return Ok(());
                    }
                    cause
                }
            };
            let (name, topic, pause) = (&self.shared.name, &self.name, self.pauses.pause());
            tracing::warn!(
                target: LOG,
                "pub/sub {name}: topic {topic}: {cause}; subscribing again in {pause:?}"
            );
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = closed.cancelled() => return Ok(()),
                () = sleep(pause) => {}
            }
        }
    }

    /// Pulls from one stream until it ends. `Ok`: the component ended it, or draining began.
    async fn session(&mut self, feed: &mut Feed<String>) -> Result<(), Status> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let (acks, queue) = mpsc::channel(MAX_ACKS);
        let first = PullMessagesRequest {
            topic: Some(self.topic.clone()),
            ..PullMessagesRequest::default()
        };
        let rest = stream::unfold(queue, |mut queue| async { Some((queue.recv().await?, queue)) });
        let requests = futures::StreamExt::chain(stream::iter([first]), rest);
        let mut client = self.shared.client();
        // Servers may answer this call only with their first message.
        let opened = tokio::select! {
            () = drain.cancelled() => return Ok(()),
            () = closed.cancelled() => return Ok(()),
            opened = client.pull_messages(requests) => opened?,
        };
        let mut messages = opened.into_inner();
        self.pauses.reset();
        if let Some(begun) = self.begun.take() {
            // The subscriber may have given up.
            let _late = begun.send(Ok(()));
        }
        let mut owed = VecDeque::new();
        let mut was_busy = false;
        loop {
            let is_busy = !feed.is_settled() || !owed.is_empty();
            if feed.draining() && !is_busy {
                break;
            }
            was_busy = is_busy;
            tokio::select! {
                () = closed.cancelled() => {
                    let settled = feed.settled().now_or_never().unwrap_or_default();
                    owed.extend(settled.into_iter().filter_map(|(id, settlement)| answer(id, settlement, true)));
                    break;
                }
                () = drain.cancelled(), if !feed.draining() => {}
                settled = feed.settled() => {
                    let ending = feed.draining();
                    owed.extend(settled.into_iter().filter_map(|(id, settlement)| answer(id, settlement, ending)));
                }
                () = acks.closed() => return Err(Status::unavailable("the stream broke")),
                permit = acks.reserve(), if !owed.is_empty() => {
                    if let (Ok(permit), Some(ack)) = (permit, owed.pop_front()) {
                        permit.send(ack);
                    }
                }
                message = messages.message(), if feed.free_capacity() > 0 && owed.len() < MAX_ACKS => match message? {
                    Some(message) => self.offer(feed, message),
                    None => return Ok(()),
                },
            }
        }
        let last = async {
            for ack in owed {
                if acks.send(ack).await.is_err() {
                    break;
                }
            }
            if was_busy {
                let _open = timeout(SETTLE_TIME, drain_stream(&mut messages)).await;
            }
            drop(acks);
            drain_stream(&mut messages).await;
        };
        let _late = timeout(DRAIN_TIMEOUT, last).await;
        Ok(())
    }

    fn offer(&self, feed: &mut Feed<String>, message: PullMessagesResponse) {
        let topic = if message.topic_name.is_empty() {
            Arc::clone(&self.name)
        } else {
            message.topic_name.into()
        };
        let incoming = Message {
            topic,
            data: message.data,
            content_type: Some(message.content_type).filter(|kind| !kind.is_empty()),
            metadata: message.metadata,
            ordering_key: None,
            redelivered: None,
        };
        feed.offer(message.id, incoming);
    }
}

/// Lets the component read the last acks, after which it ends the stream. Messages that arrive now are not
/// acknowledged.
async fn drain_stream(messages: &mut Streaming<PullMessagesResponse>) {
    while let Ok(Some(_)) = messages.message().await {}
}
