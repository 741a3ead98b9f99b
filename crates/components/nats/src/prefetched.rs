//! Messages that the server sent ahead of the available capacity. The server counts messages, not bytes.
//! Payloads over the limit are dropped here and read from the stream later, so the server need not redeliver
//! them, and order and delivery count are preserved.

use std::{collections::VecDeque, future::pending};

use async_nats::{
    HeaderMap, Message,
    header::{HeaderName, NATS_MESSAGE_ID},
    jetstream::{
        Message as Incoming,
        stream::{RawMessageErrorKind, Stream},
    },
};
use bytes::Bytes;
use outrigger_component::pubsub::DEAD_LETTER_HOPS;
use tokio_util::task::AbortOnDropHandle;

/// Maximum queued messages; beyond it the connection's own buffer fills, and messages it drops are
/// redelivered.
const MAX_WAITING: usize = 8192;

/// Maximum length of a stored message id in bytes.
const MAX_ID: usize = 1024;

/// Messages in order of arrival.
#[derive(Default)]
pub(super) struct Prefetched {
    waiting: VecDeque<Waiting>,
    /// Bytes of stored payloads.
    bytes: usize,
    /// The first message, while its payload is read again.
    reading: Option<Reading>,
}

struct Waiting {
    incoming: Incoming,
    /// Whether it still has its payload.
    whole: bool,
}

type Payload = Result<Bytes, Lost>;

struct Reading {
    incoming: Incoming,
    payload: AbortOnDropHandle<Payload>,
}

/// Why a payload is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The stream no longer contains the message.
    Deleted,
    Unread(String),
}

impl Prefetched {
    /// Whether the queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    /// Adds a message; `limit` is the maximum size of all queued payloads in bytes.
    pub(super) fn push(&mut self, mut incoming: Incoming, limit: usize) {
        drop_headers(&mut incoming.message);
        let size = incoming.payload.len();
        let whole = size == 0 || self.bytes + size <= limit;
        if whole {
            self.bytes += size;
        } else {
            incoming.message.payload = Bytes::new();
        }
        self.waiting.push_back(Waiting { incoming, whole });
    }

    /// The next message. `None` if its payload was dropped; then [`Prefetched::read_again`] returns it.
    pub(super) fn next(&mut self, stream: &Stream) -> Option<Incoming> {
        if self.reading.is_some() {
            return None;
        }
        let Waiting { incoming, whole } = self.waiting.pop_front()?;
        if whole {
            self.bytes -= incoming.payload.len();
            return Some(incoming);
        }
        let sequence = incoming.info().map(|info| info.stream_sequence);
        let sequence = sequence.map_err(|error| Lost::Unread(error.to_string()));
        let stream = stream.clone();
        let payload = tokio::spawn(async move { read(&stream, sequence?).await });
        self.reading = Some(Reading {
            incoming,
            payload: AbortOnDropHandle::new(payload),
        });
        None
    }

    /// Waits for the payload being read, forever if there is none. Cancel-safe.
    pub(super) async fn read_again(&mut self) -> Result<Incoming, (Incoming, Lost)> {
        let Some(reading) = &mut self.reading else {
            return pending().await;
        };
        let payload = (&mut reading.payload).await;
        let payload = payload.unwrap_or_else(|failed| Err(Lost::Unread(failed.to_string())));
        match (self.reading.take(), payload) {
            (Some(Reading { mut incoming, .. }), Ok(payload)) => {
                incoming.message.payload = payload;
                Ok(incoming)
            }
            (Some(Reading { incoming, .. }), Err(lost)) => Err((incoming, lost)),
            (None, _) => pending().await,
        }
    }

    /// All messages in order.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Incoming> {
        let reading = self.reading.iter().map(|reading| &reading.incoming);
        reading.chain(self.waiting.iter().map(|waiting| &waiting.incoming))
    }
}

/// Drops all headers except the two used here. If headers were most of the message, copies the payload to
/// free the receive buffer.
fn drop_headers(message: &mut Message) {
    let Some(headers) = message.headers.take() else {
        return;
    };
    let mut kept = HeaderMap::new();
    for name in [NATS_MESSAGE_ID, HeaderName::from_static(DEAD_LETTER_HOPS)] {
        if let Some(value) = headers.get(name.clone())
            && value.as_str().len() <= MAX_ID
        {
            kept.insert(name, value.clone());
        }
    }
    message.headers = Some(kept).filter(|kept| !kept.is_empty());
    if message.length > 2 * message.payload.len() {
        message.payload = Bytes::copy_from_slice(&message.payload);
    }
}

pub(super) async fn read(stream: &Stream, sequence: u64) -> Payload {
    match stream.get_raw_message(sequence).await {
        Ok(message) => Ok(message.payload),
        Err(error) => Err(match error.kind() {
            RawMessageErrorKind::NoMessageFound => Lost::Deleted,
            _ => Lost::Unread(error.to_string()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_headers(headers: HeaderMap) -> Message {
        Message {
            subject: "orders".into(),
            reply: None,
            payload: Bytes::from_static(b"1"),
            headers: Some(headers),
            status: None,
            description: None,
            length: 1 << 20,
        }
    }

    #[test]
    fn drops_headers_of_queued_messages() {
        let mut headers = HeaderMap::new();
        headers.insert("X-Large", "y".repeat(1 << 20).as_str());
        headers.insert(NATS_MESSAGE_ID, "an id");
        headers.insert(DEAD_LETTER_HOPS, "3");
        let mut message = with_headers(headers);
        let before = message.payload.as_ptr();
        drop_headers(&mut message);
        let kept = message.headers.unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept.get(DEAD_LETTER_HOPS).map(|hops| hops.as_str()), Some("3"));
        assert_eq!(kept.get(NATS_MESSAGE_ID).map(|id| id.as_str()), Some("an id"));
        assert_eq!(message.payload, "1");
        assert_ne!(message.payload.as_ptr(), before, "it is a copy");

        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, "y".repeat(MAX_ID + 1).as_str());
        let mut message = with_headers(headers);
        drop_headers(&mut message);
        assert!(message.headers.is_none());
    }
}
