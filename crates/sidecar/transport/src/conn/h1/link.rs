//! One connection of hyper's, without a task: whoever makes a call, or reads its answer, drives it.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::{Request, StatusCode, response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;

use super::super::{ConnectionError, Io, MAX_FIELDS};
use super::answers::Answer;
use crate::body::{Body, BoxError};
use crate::stall::{StallTimer, UNREAD_TIMEOUT};

/// Bytes of an answer's head, and of what is read of its body at once.
const MAX_BUFFER: usize = 256 * 1024;

/// A connection that carries one call at a time.
pub(super) struct Link {
    sender: SendRequest<Body>,
    /// None once it is over.
    connection: Option<Connection<TokioIo<Checked>, Body>>,
    notes: Arc<Notes>,
}

/// What the two sides of hyper tell each other.
#[derive(Default)]
struct Notes {
    /// Set before another call.
    check: AtomicBool,
    /// Set when a line of the body is malformed, if that is chunked.
    malformed: AtomicBool,
}

/// Why a request has no answer.
pub(super) struct Unanswered {
    pub(super) why: ConnectionError,
    /// The request, if the server cannot have seen any of it.
    pub(super) unsent: Option<Request<Body>>,
}

/// What is behind the head of an answer.
pub(super) enum ResponseBody {
    /// All of it, and the connection where it can be used again.
    Whole(Bytes, Option<Box<Link>>),
    /// What comes later.
    Streaming(StreamingBody),
}

impl Link {
    /// A connection on which nothing was said.
    ///
    /// # Errors
    /// hyper's.
    pub(super) async fn open(io: Io) -> hyper::Result<Box<Self>> {
        let notes = Arc::<Notes>::default();
        let io = Checked {
            io,
            notes: Arc::clone(&notes),
            answer: Answer::default(),
            writing: StallTimer::default(),
        };
        let (sender, connection) = Builder::new()
            .max_buf_size(MAX_BUFFER)
            .max_headers(MAX_FIELDS)
            .handshake(TokioIo::new(io))
            .await?;
        Ok(Box::new(Self {
            sender,
            connection: Some(connection),
            notes,
        }))
    }

    /// Makes a call. The answer may come before all of the request has been sent; the rest is sent while its body is read.
    ///
    /// # Errors
    /// Why there is no answer; the connection is closed.
    pub(super) async fn call(
        mut self: Box<Self>,
        request: Request<Body>,
    ) -> Result<(response::Parts, ResponseBody), Unanswered> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut first = true;
        let result = std::future::poll_fn(|cx| {
            // Nobody answers what is only being sent.
            let rounds = if std::mem::take(&mut first) { 1 } else { 2 };
            self.drive_until(rounds, cx, |quiet| answer.as_mut().poll(quiet))
        })
        .await;
        let (head, incoming) = match result {
            Ok(response) => response.into_parts(),
            Err(mut error) => {
                let unsent = error.take_message();
                let why = error.into_error().into();
                return Err(Unanswered { why, unsent });
            }
        };
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // What follows is no HTTP, and nobody asked for it: the connection ends here.
            return Ok((head, ResponseBody::Whole(Bytes::new(), None)));
        }
        let chunked = is_chunked(&head);
        Ok((head, self.begin(incoming, chunked)))
    }

    /// Takes what is here of a body.
    fn begin(mut self: Box<Self>, mut incoming: Incoming, chunked: bool) -> ResponseBody {
        if incoming.is_end_stream() {
            return ResponseBody::Whole(Bytes::new(), self.if_reusable());
        }
        let Some(length) = incoming.size_hint().exact() else {
            let mut body = StreamingBody::new(self, incoming, None);
            body.chunked = chunked;
            return ResponseBody::Streaming(body);
        };
        // What is not here yet wakes whoever reads it.
        let frame = self.drive_until(1, &mut quiet(), |quiet| Pin::new(&mut incoming).poll_frame(quiet));
        match frame {
            Poll::Pending => ResponseBody::Streaming(StreamingBody::new(self, incoming, None)),
            Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(|d| d.len() as u64 == length) => {
                ResponseBody::Whole(frame.into_data().unwrap_or_default(), self.if_reusable())
            }
            Poll::Ready(first) => ResponseBody::Streaming(StreamingBody::new(self, incoming, first)),
        }
    }

    /// The connection, if it can carry another call: the last one has ended, and nothing came behind it.
    fn if_reusable(self: Box<Self>) -> Option<Box<Self>> {
        let ready = self.connection.is_some() && self.sender.is_ready();
        ready.then(|| {
            self.notes.check.store(true, Ordering::Relaxed);
            // That of a body that hyper does not take for a chunked one.
            self.notes.malformed.store(false, Ordering::Relaxed);
            self
        })
    }

    /// Reads and writes as far as possible.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(ended) = Pin::new(connection).poll(cx)
        {
            if let Err(error) = ended {
                tracing::debug!(target: "dapr.runtime.conn", "connection ended: {}", crate::error::chain(&error));
            }
            // Whoever waits for something of it hears so.
            self.connection = None;
        }
    }

    /// Drives the connection until it has brought what `look` looks for. That comes only while the connection is driven, so
    /// it is looked for without a waker, and the first of two `rounds` has none either: nothing wakes us but the socket.
    fn drive_until<T>(
        &mut self,
        rounds: usize,
        cx: &mut Context<'_>,
        mut look: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if rounds > 1 {
            let found = look(&mut quiet());
            if found.is_ready() {
                return found;
            }
            self.drive(&mut quiet());
        }
        let found = look(&mut quiet());
        if found.is_ready() {
            return found;
        }
        self.drive(cx);
        let found = look(&mut quiet());
        if found.is_pending() && !has_budget_remaining() {
            // It may be here, and just not to be seen in this turn of the task.
            cx.waker().wake_by_ref();
        }
        found
    }
}

/// Whether hyper takes the body behind a head for one of chunks, if it tells no length.
fn is_chunked(head: &response::Parts) -> bool {
    let last = head.headers.get_all(TRANSFER_ENCODING).iter().next_back();
    last.is_some_and(|codings| {
        codings
            .as_bytes()
            .trim_ascii_end()
            .to_ascii_lowercase()
            .ends_with(b"chunked")
    })
}

fn malformed() -> BoxError {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the end of a chunked body is malformed",
    )
    .into()
}

fn quiet() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// The body of an answer that is not here yet, or not all of it. Reading it reads from the socket, and sends what is
/// left of the request.
pub(super) struct StreamingBody {
    /// None once the body is over.
    link: Option<Box<Link>>,
    incoming: Incoming,
    /// What was read before anybody asked.
    first: Option<Result<Frame<Bytes>, hyper::Error>>,
    chunked: bool,
    over: bool,
    /// For the next piece, where it is known that one must come.
    reading: StallTimer,
}

impl StreamingBody {
    fn new(link: Box<Link>, incoming: Incoming, first: Option<Result<Frame<Bytes>, hyper::Error>>) -> Self {
        Self {
            link: Some(link),
            incoming,
            first,
            chunked: false,
            over: false,
            reading: StallTimer::default(),
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let Self { link, incoming, .. } = self;
        let Some(link) = link else {
            return Poll::Ready(None);
        };
        let found = match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => link.drive_until(2, cx, |quiet| Pin::new(&mut *incoming).poll_frame(quiet)),
        };
        // What came before is given first. hyper would wait for more, or take what follows for a trailer.
        let at_end = !matches!(&found, Poll::Ready(Some(Ok(frame))) if frame.is_data());
        let frame = if at_end && self.chunked && link.notes.malformed.load(Ordering::Relaxed) {
            Some(Err(malformed()))
        } else {
            match found {
                Poll::Ready(frame) => frame.map(|frame| frame.map_err(BoxError::from)),
                Poll::Pending if incoming.size_hint().exact().is_none() => return Poll::Pending,
                Poll::Pending => {
                    let reading = &mut self.reading;
                    let late = reading.poll(UNREAD_TIMEOUT, "the server sent no more of the answer", cx);
                    Some(Err(std::task::ready!(late).into()))
                }
            }
        };
        self.reading.renew();
        if !matches!(&frame, Some(Ok(_))) {
            self.over = true;
            if matches!(frame, Some(Err(_))) {
                self.link = None;
            }
        } else if self.incoming.is_end_stream() {
            self.over = true;
        }
        Poll::Ready(frame)
    }

    /// The connection, once the body has been read to its end, and if it can be used again.
    pub(super) fn take_link(&mut self) -> Option<Box<Link>> {
        let mut link = self.link.take_if(|_| self.over)?;
        if !link.sender.is_ready() {
            link.drive(&mut quiet());
        }
        link.if_reusable()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let first = match &self.first {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len) as u64,
            _ => 0,
        };
        match self.incoming.size_hint().exact() {
            Some(left) => SizeHint::with_exact(left + first),
            None => SizeHint::new(),
        }
    }
}

/// A socket that is looked at before it is used again, and that is not written to for ever.
struct Checked {
    io: Io,
    notes: Arc<Notes>,
    answer: Answer,
    writing: StallTimer,
}

impl Checked {
    /// Whether something has come, asked of the kernel: what tells the runtime may be on its way still.
    fn has_unread(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        match SockRef::from(self.io.tcp()).peek(&mut byte) {
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            Ok(_) => true,
        }
    }
}

impl AsyncRead for Checked {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        // The first read of a call comes before its request is written: whatever is there belongs to nobody, and to hyper
        // the connection has ended.
        if this.notes.check.load(Ordering::Relaxed) {
            this.notes.check.store(false, Ordering::Relaxed);
            this.answer = Answer::default();
            if read.is_pending() && this.has_unread() {
                return Poll::Ready(Ok(()));
            }
        }
        if this.answer.follow(&buf.filled()[before..]).is_err() {
            this.notes.malformed.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Checked {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.writing.of_write(written, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.writing.of_write(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
