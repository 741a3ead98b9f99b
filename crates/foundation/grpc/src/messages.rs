//! Limits for gRPC requests that stall, or take more memory than their size suggests.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::fields::{Counter, FLAT, Nested, TooManyFields};
use crate::frame::{PREFIX, Prefix};
use crate::unfinished::UnfinishedRequest;

/// Time without progress after which a started message, or an unfinished unary request, fails.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The request of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// One message, expected as a whole.
    Unary,
    /// A stream of messages, which may pause between messages.
    Streaming,
}

/// The client did not send the rest of a message in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the rest of a message did not arrive within {MESSAGE_TIMEOUT:?}")]
pub struct MessageTimeout;

/// A request body that fails with [`MessageTimeout`] if a message stalls, and with [`TooManyFields`] before
/// an oversized message is complete. Pings do not detect a stall, because the peer keeps answering them.
#[derive(Debug)]
pub struct Messages<B> {
    body: B,
    kind: RequestKind,
    place: Progress,
    /// Time without data; created at the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
    /// Accounts for unfinished bytes.
    held: Option<UnfinishedRequest>,
}

impl<B> Messages<B> {
    /// Wraps `body`.
    pub fn new(body: B, kind: RequestKind) -> Self {
        Self {
            body,
            kind,
            place: Progress::new(Some(&FLAT)),
            timer: None,
            waiting: false,
            held: None,
        }
    }

    /// Also counts the fields of these nested messages.
    #[must_use]
    pub fn counting(mut self, nested: &'static Nested) -> Self {
        self.place.nested = Some(nested);
        self
    }

    /// Counts no fields: the messages are forwarded, not decoded here.
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.place.nested = None;
        self
    }

    /// Accounts for incomplete messages, which the reader buffers. The body fails with
    /// [`TooMuchUnfinished`](crate::unfinished::TooMuchUnfinished) if there is no room for them.
    #[must_use]
    pub fn held_in(mut self, held: Option<UnfinishedRequest>) -> Self {
        self.held = held;
        self
    }

    /// Bytes of the incomplete message; for a unary request, all bytes received.
    fn unfinished(&self) -> usize {
        match self.kind {
            RequestKind::Unary => self.place.all,
            RequestKind::Streaming => self.place.of_message,
        }
    }

    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<MessageTimeout> {
        if self.kind == RequestKind::Streaming && self.place.of_message == 0 {
            self.waiting = false;
            return Poll::Pending;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(MESSAGE_TIMEOUT)));
        if !self.waiting {
            self.waiting = true;
            timer.as_mut().reset(Instant::now() + MESSAGE_TIMEOUT);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(MessageTimeout)
    }
}

impl<B> Body for Messages<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            return self.poll_late(cx).map(|late| Some(Err(late.into())));
        };
        self.waiting = false;
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.place.pass(data)?;
            let unfinished = self.unfinished();
            if let Some(held) = &mut self.held {
                held.hold(unfinished)?;
            }
        } else if !matches!(frame, Some(Ok(_))) {
            self.held = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Progress in a stream of messages.
#[derive(Debug)]
struct Progress {
    prefix: [u8; PREFIX],
    /// Bytes of the current message including its prefix; 0 between messages.
    of_message: usize,
    /// Bytes of all messages.
    all: usize,
    /// Messages whose fields are counted; `None` counts none.
    nested: Option<&'static Nested>,
    /// Field counter of the current message, if it can exceed the limit.
    fields: Option<Counter>,
}

impl Progress {
    fn new(nested: Option<&'static Nested>) -> Self {
        Self {
            prefix: [0; PREFIX],
            of_message: 0,
            all: 0,
            nested,
            fields: None,
        }
    }

    fn pass(&mut self, mut data: &[u8]) -> Result<(), TooManyFields> {
        self.all = self.all.saturating_add(data.len());
        while let [first, rest @ ..] = data {
            if let Some(place) = self.prefix.get_mut(self.of_message) {
                *place = *first;
                self.of_message += 1;
                data = rest;
                if self.of_message == PREFIX {
                    let length = self.length() - PREFIX;
                    self.fields = self.nested.and_then(|nested| Counter::of(length, nested));
                }
            } else {
                let step = data.len().min(self.length() - self.of_message);
                let (passing, rest) = data.split_at(step);
                if let Some(fields) = &mut self.fields {
                    fields.pass(passing)?;
                }
                self.of_message += step;
                data = rest;
            }
            if self.of_message >= PREFIX && self.of_message == self.length() {
                self.of_message = 0;
                self.fields = None;
            }
        }
        Ok(())
    }

    /// Length of the message with its prefix, which is complete.
    fn length(&self) -> usize {
        let message = Prefix::read(&self.prefix).map_or(0, |prefix| prefix.length);
        PREFIX.saturating_add(message)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::sync::Arc;

    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::fields::MAX_FIELDS;
    use crate::unfinished::{Bounds, TooMuchUnfinished, Unfinished, UnfinishedMemory};

    /// Chunks, each after a pause; then silence or the end.
    struct Slow {
        pieces: VecDeque<(Pin<Box<Sleep>>, &'static [u8])>,
        ends: bool,
    }

    impl Body for Slow {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let ends = self.ends;
            let Some((pause, piece)) = self.pieces.front_mut() else {
                return if ends { Poll::Ready(None) } else { Poll::Pending };
            };
            ready!(pause.as_mut().poll(cx));
            let piece = Bytes::from_static(piece);
            self.pieces.pop_front();
            Poll::Ready(Some(Ok(Frame::data(piece))))
        }
    }

    /// `pieces` at these seconds.
    fn slow(pieces: &[(u64, &'static [u8])], ends: bool) -> Slow {
        let pieces = pieces.iter().map(|&(at, piece)| {
            let pause = Box::pin(sleep(Duration::from_secs(at)));
            (pause, piece)
        });
        Slow {
            pieces: pieces.collect(),
            ends,
        }
    }

    /// All data received, or the seconds until the timeout.
    async fn outcome(kind: RequestKind, pieces: &[(u64, &'static [u8])], ends: bool) -> Result<Bytes, u64> {
        let begun = Instant::now();
        match Messages::new(slow(pieces, ends), kind).collect().await {
            Ok(all) => Ok(all.to_bytes()),
            Err(error) => {
                assert!(error.is::<MessageTimeout>(), "{error}");
                Err(begun.elapsed().as_secs())
            }
        }
    }

    const WHOLE: &[u8] = b"\0\0\0\0\x02ab";

    #[tokio::test(start_paused = true)]
    async fn stalled_message_times_out() {
        for kind in [RequestKind::Unary, RequestKind::Streaming] {
            for cut in 1..WHOLE.len() {
                assert_eq!(
                    outcome(kind, &[(7, &WHOLE[..cut])], false).await,
                    Err(67),
                    "{kind:?} {cut}"
                );
            }
            let steps: Vec<_> = (0..).step_by(59).zip(WHOLE.chunks(1)).collect();
            assert_eq!(outcome(kind, &steps, true).await.unwrap(), WHOLE);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_streams_may_pause() {
        let pieces = [(1000, WHOLE), (2000, b"\0\0\0\0\0"), (3000, WHOLE)];
        let all = outcome(RequestKind::Streaming, &pieces, true).await.unwrap();
        assert_eq!(all, [WHOLE, b"\0\0\0\0\0", WHOLE].concat());
        assert_eq!(outcome(RequestKind::Unary, &pieces, true).await, Err(60));
        assert_eq!(
            outcome(RequestKind::Unary, &[(1, WHOLE)], false).await,
            Err(61),
            "no end"
        );
        let late = [(1000, &WHOLE[..3])];
        assert_eq!(outcome(RequestKind::Streaming, &late, false).await, Err(1060));
    }

    #[tokio::test]
    async fn rejects_too_many_fields_early() {
        static NAMED: Nested = Nested::of(&[(1, &FLAT)]);
        let framed = |fields: &[u8]| [&Prefix::write(fields.len()).unwrap()[..], fields].concat();
        let most = framed(&[0x12, 0].repeat(MAX_FIELDS));
        let many = framed(&[0x12, 0].repeat(MAX_FIELDS + 1));
        for kind in [RequestKind::Unary, RequestKind::Streaming] {
            let body = Messages::new(Full::new(Bytes::from([&most[..], &most].concat())), kind);
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), 2 * most.len());
            let body = Messages::new(Full::new(Bytes::from([&most[..], &many].concat())), kind);
            let error = body.collect().await.unwrap_err();
            assert!(error.is::<TooManyFields>(), "{error}");
            let body = Messages::new(Full::new(Bytes::from(many.clone())), kind).uncounted();
            assert_eq!(body.collect().await.unwrap().to_bytes(), many, "passed on");
        }
        let nested = framed(&[&[0x0a, 0x82, 0x80, 0x10][..], &[0x12, 0].repeat(MAX_FIELDS + 1)].concat());
        let body = || Messages::new(Full::new(Bytes::from(nested.clone())), RequestKind::Unary);
        assert_eq!(body().collect().await.unwrap().to_bytes(), nested);
        assert!(body().counting(&NAMED).collect().await.is_err());
    }

    #[tokio::test]
    async fn counts_unfinished_bytes() {
        let pieces = [(0, WHOLE), (0, &WHOLE[..6]), (0, &WHOLE[6..])];
        for (kind, counts) in [
            (RequestKind::Streaming, [0, 6, 0]),
            (RequestKind::Unary, [7, 13, 14]),
        ] {
            let mut body = Messages::new(slow(&pieces, true), kind);
            for count in counts {
                let _piece = body.frame().await.unwrap().unwrap();
                assert_eq!(body.unfinished(), count);
            }
        }
    }

    #[tokio::test]
    async fn unfinished_bytes_are_bounded() {
        static MEMORY: UnfinishedMemory = UnfinishedMemory::new();
        let bounds = Bounds {
            connection: 13,
            process: 1000,
        };
        let connection = Unfinished::new(bounds, &MEMORY);
        let pieces = [(0, WHOLE), (0, &WHOLE[..6]), (0, &WHOLE[6..])];
        for _ in 0..2 {
            for (kind, outcome) in [(RequestKind::Streaming, Ok(())), (RequestKind::Unary, Err(true))] {
                let held = Arc::clone(&connection).begin();
                let body = Messages::new(slow(&pieces, true), kind).held_in(Some(held));
                let read = body.collect().await.map(|_| ());
                let read = read.map_err(|error| error.is::<TooMuchUnfinished>());
                assert_eq!(read, outcome, "{kind:?}");
            }
        }
    }
}
