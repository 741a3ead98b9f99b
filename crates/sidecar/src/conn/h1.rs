//! HTTP/1.1 connections to one address, one call at a time each, kept a short while for the next call.

#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use outrigger_http1::{Answer, Client, Coming, Unanswered};

use super::{DialError, Dialer, Io, SendError};
use crate::body::{Body, BoxError};

/// Idle connections kept.
const MAX_IDLE: usize = 64;
/// An idle connection older than this is not used: shorter than the keep-alive of common servers (Node: 5 s), so
/// that a server's close rarely races with a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

struct Idle {
    client: Client<Io>,
    since: Instant,
}

impl Idle {
    fn is_old(&self) -> bool {
        self.since.elapsed() > IDLE_TIMEOUT
    }
}

struct Shared {
    dialer: Dialer,
    idle: Mutex<IdleList>,
}

/// Sorted by age, the oldest first.
#[derive(Default)]
struct IdleList {
    kept: Vec<Idle>,
    /// Whether somebody closes those that get old.
    swept: bool,
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, IdleList> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that get old, as long as there are any: nobody else looks at them.
async fn sweep(pool: Weak<Shared>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle();
        idle.kept.retain(|kept| !kept.is_old());
        if idle.kept.is_empty() {
            idle.swept = false;
            return;
        }
    }
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

    fn take_idle(&self) -> Option<Client<Io>> {
        let mut idle = self.0.idle();
        while let Some(mut last) = idle.kept.pop() {
            if last.is_old() {
                // The others are older still.
                idle.kept.clear();
                return None;
            }
            if last.client.is_usable() {
                return Some(last.client);
            }
        }
        None
    }

    fn give_back(&self, client: Client<Io>) {
        let mut idle = self.0.idle();
        if idle.kept.len() >= MAX_IDLE {
            return;
        }
        idle.kept.push(Idle {
            client,
            since: Instant::now(),
        });
        if !idle.swept {
            idle.swept = true;
            drop(idle);
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }

    async fn connect(&self) -> Result<Client<Io>, DialError> {
        self.0.dialer.dial().await.map(Client::new)
    }

    /// Sends a request in origin form; the connection returns to the pool when the response body has been read.
    /// A request that met a connection which the server had closed is sent again on a fresh one if the server may see it
    /// twice (idempotent, body still whole).
    ///
    /// # Errors
    /// [`SendError`] when no connection could be made or it broke before the response head.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, SendError> {
        let mut request = request;
        while let Some(client) = self.take_idle() {
            let spare = spare(&request);
            match client.call(request).await {
                Ok(response) => return Ok(self.receive(response)),
                Err(error) => match spare {
                    Some(copy) if error.failed.is_lost() => request = copy,
                    _ => return Err(self.broken(error)),
                },
            }
        }
        // Boxed: the rare path should not widen every call.
        let client = Box::pin(self.connect()).await?;
        match client.call(request).await {
            Ok(response) => Ok(self.receive(response)),
            Err(error) => Err(self.broken(error)),
        }
    }

    fn broken(&self, error: Unanswered) -> SendError {
        SendError::Broken {
            address: self.address().to_owned(),
            repeatable: !error.sent,
            source: error.failed.into(),
        }
    }

    fn receive(&self, response: Response<Answer<Io, Body>>) -> Response<Body> {
        response.map(|answer| match answer {
            Answer::Whole(data, client) => {
                if let Some(client) = client {
                    self.give_back(client);
                }
                data.into()
            }
            Answer::Coming(coming) => Body::Pooled(Box::new(PooledBody {
                coming,
                pool: self.clone(),
            })),
        })
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
    coming: Coming<Io, Body>,
    pool: H1Pool,
}

impl HttpBody for PooledBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.coming).poll_frame(cx);
        if let Some(client) = self.coming.take_client() {
            self.pool.give_back(client);
        }
        frame.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.coming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.coming.size_hint()
    }
}
