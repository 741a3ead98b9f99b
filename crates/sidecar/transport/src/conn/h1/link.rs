//! One connection of hyper's, without a task: whoever makes a call, or reads its answer, drives it.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, StatusCode, response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::has_budget_remaining;

use super::super::resend::Unanswered;
use super::super::{Io, MAX_FIELDS};
use crate::body::{Body, BoxError};
use crate::stall::{StallTimer, UNREAD_TIMEOUT};

/// Bytes of an answer's head, and of what is read of its body at once.
const MAX_BUFFER: usize = 256 * 1024;

/// A connection that carries one call at a time.
pub(super) struct Link {
    sender: SendRequest<Body>,
    /// None once it is over.
    connection: Option<Connection<TokioIo<Checked>, Body>>,
    /// Set before another call: `Checked` looks for bytes that belong to no call.
    check: Arc<AtomicBool>,
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
        let check = Arc::<AtomicBool>::default();
        let io = Checked {
            io,
            check: Arc::clone(&check),
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
            check,
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
        Ok((head, self.begin(incoming)))
    }

    /// Takes what is here of a body.
    fn begin(mut self: Box<Self>, mut incoming: Incoming) -> ResponseBody {
        if incoming.is_end_stream() {
            return ResponseBody::Whole(Bytes::new(), self.if_reusable());
        }
        let Some(length) = incoming.size_hint().exact() else {
            return ResponseBody::Streaming(StreamingBody::new(self, incoming, None));
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
            self.check.store(true, Ordering::Relaxed);
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
        let frame = match found {
            Poll::Ready(frame) => frame.map(|frame| frame.map_err(BoxError::from)),
            Poll::Pending if incoming.size_hint().exact().is_none() => return Poll::Pending,
            Poll::Pending => {
                let reading = &mut self.reading;
                let late = reading.poll(UNREAD_TIMEOUT, "the server sent no more of the answer", cx);
                Some(Err(std::task::ready!(late).into()))
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
    check: Arc<AtomicBool>,
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
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        // The first read of a call comes before its request is written: bytes that are here then belong to no call, and
        // hyper is given the end of the connection.
        if this.check.load(Ordering::Relaxed) {
            this.check.store(false, Ordering::Relaxed);
            if read.is_pending() && this.has_unread() {
                return Poll::Ready(Ok(()));
            }
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
