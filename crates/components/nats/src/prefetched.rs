//! What the server sent while there was no room. It counts messages, whatever their size, so payloads beyond the room are
//! dropped here and read from the stream again when it is their turn: the server need not send those messages again, and
//! their order and their count of deliveries stay.

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

/// Messages that wait here; beyond it the connection's own buffer fills, and what it drops the server sends again.
const MAX_WAITING: usize = 8192;

/// The longest id of a message that is kept, bytes.
const MAX_ID: usize = 1024;

/// Messages in the order they came.
#[derive(Default)]
pub(super) struct Prefetched {
    waiting: VecDeque<Waiting>,
    /// Of payloads that are kept.
    bytes: usize,
    /// The first message, whose payload is on its way.
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

/// Why there is no payload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The stream does not have the message any more.
    Deleted,
    Unread(String),
}

impl Prefetched {
    /// Whether no more messages may be taken.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    /// Takes a message; `limit` is how many bytes all that wait here may have.
    pub(super) fn push(&mut self, mut incoming: Incoming, limit: usize) {
        lighten(&mut incoming.message);
        let size = incoming.payload.len();
        let whole = size == 0 || self.bytes + size <= limit;
        if whole {
            self.bytes += size;
        } else {
            incoming.message.payload = Bytes::new();
        }
        self.waiting.push_back(Waiting { incoming, whole });
    }

    /// The next message. Where its payload was dropped there is none: [`Prefetched::read_again`] brings it.
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

    /// Waits for the message whose payload is on its way, for ever where there is none. Can be abandoned without losing
    /// any.
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

    /// All messages, in their order.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Incoming> {
        let reading = self.reading.iter().map(|reading| &reading.incoming);
        reading.chain(self.waiting.iter().map(|waiting| &waiting.incoming))
    }
}

/// Lets go of headers, but for the two that are used here. Where they were most of the message, its payload
/// is copied, so that it does not keep all that was read with it.
fn lighten(message: &mut Message) {
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
    fn headers_do_not_wait_with_their_message() {
        let mut headers = HeaderMap::new();
        headers.insert("X-Large", "y".repeat(1 << 20).as_str());
        headers.insert(NATS_MESSAGE_ID, "an id");
        headers.insert(DEAD_LETTER_HOPS, "3");
        let mut message = with_headers(headers);
        let before = message.payload.as_ptr();
        lighten(&mut message);
        let kept = message.headers.unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept.get(DEAD_LETTER_HOPS).map(|hops| hops.as_str()), Some("3"));
        assert_eq!(kept.get(NATS_MESSAGE_ID).map(|id| id.as_str()), Some("an id"));
        assert_eq!(message.payload, "1");
        assert_ne!(message.payload.as_ptr(), before, "it is a copy");

        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, "y".repeat(MAX_ID + 1).as_str());
        let mut message = with_headers(headers);
        lighten(&mut message);
        assert!(message.headers.is_none());
    }
}
