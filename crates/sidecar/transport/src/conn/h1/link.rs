//! One hyper connection without a task: the code that makes a call or reads its response polls the
//! connection.

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

/// Limit of a response head, and of one read of a body, bytes.
const MAX_BUFFER: usize = 256 * 1024;

/// A connection that carries one call at a time.
pub(super) struct Link {
    sender: SendRequest<Body>,
    /// `None` once the connection has ended.
    connection: Option<Connection<TokioIo<Checked>, Body>>,
    /// Set before the connection is reused: `Checked` then looks for unexpected bytes.
    check: Arc<AtomicBool>,
}

/// The body of a response.
pub(super) enum ResponseBody {
    /// The whole body, and the connection if it is reusable.
    Whole(Bytes, Option<Box<Link>>),
    /// A body that is still arriving.
    Streaming(StreamingBody),
}

impl Link {
    /// Starts HTTP/1.1 on a new connection.
    ///
    /// # Errors
    /// The handshake error of hyper.
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

    /// Makes a call. The response may come before the request has been sent; the rest of the request is sent
    /// while the response body is read.
    ///
    /// # Errors
    /// Why there is no response; the connection is closed.
    pub(super) async fn call(
        mut self: Box<Self>,
        request: Request<Body>,
    ) -> Result<(response::Parts, ResponseBody), Unanswered> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let mut first = true;
        let result = std::future::poll_fn(|cx| {
            // The first poll only sends the request, so there is no response to look for.
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
            // The bytes that follow are not HTTP and were not requested: the connection ends here.
            return Ok((head, ResponseBody::Whole(Bytes::new(), None)));
        }
        Ok((head, self.begin(incoming)))
    }

    /// Takes the part of the body that has arrived.
    fn begin(mut self: Box<Self>, mut incoming: Incoming) -> ResponseBody {
        if incoming.is_end_stream() {
            return ResponseBody::Whole(Bytes::new(), self.if_reusable());
        }
        let Some(length) = incoming.size_hint().exact() else {
            return ResponseBody::Streaming(StreamingBody::new(self, incoming, None));
        };
        // If the body has not arrived, the later read registers a waker.
        let frame = self.drive_until(1, &mut quiet(), |quiet| Pin::new(&mut incoming).poll_frame(quiet));
        match frame {
            Poll::Pending => ResponseBody::Streaming(StreamingBody::new(self, incoming, None)),
            Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(|d| d.len() as u64 == length) => {
                ResponseBody::Whole(frame.into_data().unwrap_or_default(), self.if_reusable())
            }
            Poll::Ready(first) => ResponseBody::Streaming(StreamingBody::new(self, incoming, first)),
        }
    }

    /// The connection, if it is reusable: the last call has ended and no bytes followed it.
    fn if_reusable(self: Box<Self>) -> Option<Box<Self>> {
        let ready = self.connection.is_some() && self.sender.is_ready();
        ready.then(|| {
            self.check.store(true, Ordering::Relaxed);
            self
        })
    }

    /// Polls the connection: reads and writes as far as possible.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && let Poll::Ready(ended) = Pin::new(connection).poll(cx)
        {
            if let Err(error) = ended {
                tracing::debug!(target: "dapr.runtime.conn", "connection ended: {}", crate::error::chain(&error));
            }
            // Dropping the connection wakes every waiting sender and reader.
            self.connection = None;
        }
    }

    /// Polls the connection until `look` succeeds. Only polling the connection makes progress, so `look`
    /// needs no waker, and neither does the first of two `rounds`: only the socket wakes the task.
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
            // The task has used up its budget; the result may be ready but hidden until the next poll.
            cx.waker().wake_by_ref();
        }
        found
    }
}

fn quiet() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// A response body that has not fully arrived. Reading it reads from the socket and sends the rest of the
/// request.
pub(super) struct StreamingBody {
    /// `None` once the body has ended.
    link: Option<Box<Link>>,
    incoming: Incoming,
    /// A frame that was read before the first poll.
    first: Option<Result<Frame<Bytes>, hyper::Error>>,
    over: bool,
    /// Times the next frame, if one must come.
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
                let late = reading.poll(UNREAD_TIMEOUT, "no more of the response arrived", cx);
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

    /// The connection, if it is reusable and the body has been read to its end.
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

/// A socket that is checked before reuse and whose writes have a timeout.
struct Checked {
    io: Io,
    check: Arc<AtomicBool>,
    writing: StallTimer,
}

impl Checked {
    /// Whether bytes have arrived. This asks the kernel, because the runtime's readiness may lag.
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
        // The first read of a call precedes its request. Bytes that arrive here belong to no call, so hyper
        // gets an end of stream.
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
