//! HTTP/1.1 connections to one address, one call at a time each, kept a short while for the next call.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;

use super::dial::DialErrorKind;
use super::{DialError, Dialer, SendError};
use crate::body::{Body, BoxError};

/// Idle connections kept.
const MAX_IDLE: usize = 64;
/// An idle connection older than this is not used: shorter than the keep-alive of common servers (Node: 5 s), so
/// that a server's close rarely races with a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
/// Read buffer bound of a connection, bytes.
const MAX_BUFFER: usize = 256 * 1024;

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

struct Shared {
    dialer: Dialer,
    idle: Mutex<Vec<Idle>>,
}

/// Connections to one address.
#[derive(Clone)]
pub struct H1Pool(Arc<Shared>);

impl H1Pool {
    /// A pool without connections.
    pub fn new(dialer: Dialer) -> Self {
        Self(Arc::new(Shared {
            dialer,
            idle: Mutex::default(),
        }))
    }

    /// `host:port` of the server.
    pub fn address(&self) -> &str {
        self.0.dialer.address()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_idle(&self) -> Option<SendRequest<Body>> {
        loop {
            let Idle { mut sender, since } = self.idle().pop()?;
            if since.elapsed() > IDLE_TIMEOUT {
                // Sorted by age: the others are older still.
                self.idle().clear();
                return None;
            }
            if !sender.is_closed() && (sender.is_ready() || sender.ready().await.is_ok()) {
                return Some(sender);
            }
        }
    }

    async fn connect(&self) -> Result<SendRequest<Body>, DialError> {
        let io = self.0.dialer.dial().await?;
        let handshake = Builder::new()
            .max_buf_size(MAX_BUFFER)
            .handshake(TokioIo::new(io))
            .await;
        let (sender, driver) = handshake.map_err(|e| self.0.dialer.error(DialErrorKind::Http(e)))?;
        // Ends with the connection; the sender's drop closes it.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(target: "dapr.runtime.conn", "connection to the app ended: {error}");
            }
        });
        Ok(sender)
    }

    /// Sends a request in origin form; the connection returns to the pool when the response body has been read.
    /// A request that met a connection which the server had closed is sent again on a fresh one if the server
    /// cannot have seen it, or if it may see it twice (idempotent, body still whole).
    ///
    /// # Errors
    /// [`SendError`] when no connection could be made or it broke before the response head.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let mut request = request;
        while let Some(sender) = self.take_idle().await {
            let spare = spare(&request);
            match self.exchange(sender, request).await {
                Ok(response) => return Ok(response),
                Err((_, Some(unsent))) => request = unsent,
                Err((error, None)) => match spare {
                    Some(copy) if !error.is_user() => request = copy,
                    _ => return Err(self.broken(error, false)),
                },
            }
        }
        // Boxed: the rare path should not widen every call.
        let sender = Box::pin(self.connect()).await?;
        let sent = self.exchange(sender, request).await;
        sent.map_err(|(error, unsent)| self.broken(error, unsent.is_some()))
    }

    fn broken(&self, source: hyper::Error, repeatable: bool) -> SendError {
        SendError::Broken {
            address: self.address().to_owned(),
            repeatable,
            source: source.into(),
        }
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Body>,
        request: Request<Body>,
    ) -> Result<Response<Body>, (hyper::Error, Option<Request<Body>>)> {
        match sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|incoming| {
                let body = PooledBody {
                    incoming,
                    back: Some((self.clone(), sender)),
                };
                Body::Pooled(Box::new(body.settle()))
            })),
            Err(mut error) => {
                let unsent = error.take_message();
                Err((error.into_error(), unsent))
            }
        }
    }
}

/// A copy to send again, where that is safe: RFC 9110 section 9.2.2.
fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    const IDEMPOTENT: [Method; 6] = [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::DELETE,
        Method::TRACE,
    ];
    if !IDEMPOTENT.contains(request.method()) && !request.headers().contains_key("idempotency-key") {
        return None;
    }
    let body = match request.body() {
        Body::Empty => Body::Empty,
        Body::Full(bytes) => Body::Full(bytes.clone()),
        _ => return None,
    };
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// A response body that gives its connection back when it has been read to the end.
pub struct PooledBody {
    incoming: Incoming,
    back: Option<(H1Pool, SendRequest<Body>)>,
}

impl PooledBody {
    fn settle(mut self) -> Self {
        if self.incoming.is_end_stream() {
            self.give_back();
        }
        self
    }

    fn give_back(&mut self) {
        if let Some((pool, sender)) = self.back.take()
            && !sender.is_closed()
        {
            let mut idle = pool.idle();
            if idle.len() < MAX_IDLE {
                idle.push(Idle {
                    sender,
                    since: Instant::now(),
                });
            }
        }
    }
}

impl HttpBody for PooledBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.incoming).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.give_back(),
            Poll::Ready(Some(Ok(_))) if self.incoming.is_end_stream() => self.give_back(),
            Poll::Ready(Some(Err(_))) => self.back = None,
            _ => {}
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
