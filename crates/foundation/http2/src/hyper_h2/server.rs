//! The side that accepts.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::body::{HyperBody, Outgoing, StreamGuard};
use super::connection_error;
use crate::boundary::{Io, Service, Timeouts};
use crate::error::Error;
use crate::frame::PREFACE;
use crate::settings::Config;

pub(super) async fn serve<I, S, D>(
    io: I,
    service: Arc<S>,
    config: &Config,
    timeouts: Timeouts,
    drain: D,
) -> Result<(), Error>
where
    I: Io,
    S: Service<HyperBody>,
    D: Future<Output = ()> + Send,
{
    let usage = Arc::new(Usage::default());
    let streams = Arc::downgrade(&usage.streams);
    // One of them is the connection's own.
    service.connected(move || streams.strong_count() > 1);
    let calls = Arc::clone(&usage);
    let service = service_fn(move |request| call(Arc::clone(&service), Arc::clone(&calls), request));
    let io = TokioIo::new(Counted {
        io,
        usage: Arc::clone(&usage),
    });
    // The tasks of calls have an owner: the connection ends after them, and where it is dropped their streams end.
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(config.stream_window)
        .initial_connection_window_size(config.connection_window)
        .max_concurrent_streams(config.max_streams)
        .max_header_list_size(config.header_list)
        .max_send_buf_size(config.send_buffer)
        .keep_alive_interval(timeouts.keep_alive.interval)
        .keep_alive_timeout(timeouts.keep_alive.timeout);
    let mut connection = pin!(builder.serve_connection(io, service));
    let (mut drain, mut draining) = (pin!(drain), false);
    let mut watch = Watch::new(usage, timeouts.preface, config.idle);
    std::future::poll_fn(|cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
            let ended = ended.map_err(|error| connection_error(error, Some(timeouts.keep_alive)));
            return Poll::Ready(ended);
        }
        while let Poll::Ready(due) = watch.poll(cx) {
            match due {
                Due::Preface => return Poll::Ready(Err(Error::PrefaceTimeout(timeouts.preface))),
                Due::Idle if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                    cx.waker().wake_by_ref();
                }
                Due::Idle => {}
            }
        }
        Poll::Pending
    })
    .await
}

/// Answers one request. The error is the code of a reset.
async fn call<S: Service<HyperBody>>(
    service: Arc<S>,
    usage: Arc<Usage>,
    request: Request<hyper::body::Incoming>,
) -> Result<Response<Outgoing<S::Body>>, h2::Error> {
    if request.method() == Method::CONNECT {
        return Err(h2::Reason::REFUSED_STREAM.into());
    }
    usage.calls.fetch_add(1, Ordering::Relaxed);
    let stream = Arc::clone(&usage.streams);
    let request = request.map(|body| HyperBody::incoming(body, Arc::clone(&stream)));
    let response = service.call(request).await;
    Ok(response.map(|body| Outgoing {
        body,
        reason: S::reason,
        _stream: stream,
    }))
}

/// What a connection is used for.
#[derive(Default)]
struct Usage {
    /// Bytes that were read, as far as they tell whether there was a preface.
    read: AtomicUsize,
    calls: AtomicU64,
    streams: StreamGuard,
}

enum Due {
    /// There was no preface.
    Preface,
    /// There was no call for a while, and none is running.
    Idle,
}

/// Looks whether a connection is used.
struct Watch {
    usage: Arc<Usage>,
    timer: Pin<Box<Sleep>>,
    awaits_preface: bool,
    idle: Duration,
    calls: u64,
}

impl Watch {
    fn new(usage: Arc<Usage>, preface: Duration, idle: Duration) -> Self {
        Self {
            usage,
            timer: Box::pin(tokio::time::sleep(preface)),
            awaits_preface: true,
            idle,
            calls: 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Due> {
        loop {
            ready!(self.timer.as_mut().poll(cx));
            self.timer.as_mut().reset(Instant::now() + self.idle);
            if std::mem::take(&mut self.awaits_preface) {
                if self.usage.read.load(Ordering::Relaxed) < PREFACE.len() {
                    return Poll::Ready(Due::Preface);
                }
                continue;
            }
            let calls = self.usage.calls.load(Ordering::Relaxed);
            let same = std::mem::replace(&mut self.calls, calls) == calls;
            if same && Arc::strong_count(&self.usage.streams) == 1 {
                return Poll::Ready(Due::Idle);
            }
        }
    }
}

/// Counts the first bytes that are read.
struct Counted<I> {
    io: I,
    usage: Arc<Usage>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Counted<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        let known = self.usage.read.load(Ordering::Relaxed);
        if let Some(preface) = PREFACE.get(known..).filter(|left| !left.is_empty()) {
            self.usage.read.fetch_add(read.len(), Ordering::Relaxed);
            if read.iter().zip(preface).any(|(byte, expected)| byte != expected) {
                // h2 leaves the rest in the socket. Closed with that it would be reset, and what the peer was told lost.
                let mut rest = [0; 1024];
                let _closed = Pin::new(&mut self.io).poll_read(cx, &mut ReadBuf::new(&mut rest))?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Counted<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
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
