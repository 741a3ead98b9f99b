//! Pool of HTTP/1.1 connections to one address. Each carries one call at a time and stays open briefly for
//! the next.
//!
//! A connection has no task: the task that makes the call or reads the response body polls hyper's
//! connection. An idle connection is a value in a list. Before reuse, the pool asks the kernel whether unread
//! bytes have arrived. A connection with bytes beyond its response is not reused.

mod link;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use link::{Link, ResponseBody, StreamingBody};
use tokio_util::task::AbortOnDropHandle;

use super::dial::DialErrorKind;
use super::{DialError, Dialer, SendError, resend, set_framing};
use crate::body::{Body, BoxError};

/// Largest number of idle connections.
const MAX_IDLE: usize = 64;
/// Idle timeout. It is shorter than the keep-alive of common servers (Node: 5 s), so that a server's close
/// rarely races with a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

struct Idle {
    link: Box<Link>,
    since: Instant,
}

impl Idle {
    fn is_old(&self) -> bool {
        self.since.elapsed() > IDLE_TIMEOUT
    }
}

struct PoolInner {
    dialer: Dialer,
    idle: Mutex<IdleList>,
}

/// Sorted by age, oldest first.
#[derive(Default)]
struct IdleList {
    kept: Vec<Idle>,
    /// Closes expired connections. Ends with the pool.
    sweeper: Option<AbortOnDropHandle<()>>,
}

impl PoolInner {
    fn idle(&self) -> MutexGuard<'_, IdleList> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes expired connections until none is left; nothing else polls them.
async fn sweep(pool: Weak<PoolInner>) {
    loop {
        tokio::time::sleep(IDLE_TIMEOUT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle();
        idle.kept.retain(|kept| !kept.is_old());
        if idle.kept.is_empty() {
            idle.sweeper = None;
            return;
        }
    }
}

/// Pooled connections to one address.
#[derive(Clone)]
pub struct H1Pool(Arc<PoolInner>);

impl H1Pool {
    /// A pool without connections.
    pub fn new(dialer: Dialer) -> Self {
        Self(Arc::new(PoolInner {
            dialer,
            idle: Mutex::default(),
        }))
    }

    /// `host:port` of the server.
    pub fn address(&self) -> &str {
        self.0.dialer.address()
    }

    fn take_idle(&self) -> Option<Box<Link>> {
        let mut idle = self.0.idle();
        let last = idle.kept.pop()?;
        if last.is_old() {
            // The remaining ones are older.
            idle.kept.clear();
            return None;
        }
        Some(last.link)
    }

    fn give_back(&self, link: Box<Link>) {
        let mut idle = self.0.idle();
        if idle.kept.len() >= MAX_IDLE {
            return;
        }
        idle.kept.push(Idle {
            link,
            since: Instant::now(),
        });
        if idle.sweeper.is_none() {
            let sweeper = tokio::spawn(sweep(Arc::downgrade(&self.0)));
            idle.sweeper = Some(AbortOnDropHandle::new(sweeper));
        }
    }

    async fn connect(&self) -> Result<Box<Link>, DialError> {
        let link = Link::open(self.0.dialer.dial().await?).await;
        link.map_err(|error| self.0.dialer.error(DialErrorKind::Http(error)))
    }

    /// Sends a request in origin form. The connection returns to the pool when the response body has been
    /// read. If a pooled connection turns out to be closed, the request is retried (see `resend.rs`), finally
    /// on a new connection.
    ///
    /// # Errors
    /// [`SendError`] if no connection could be opened or it broke before the response head.
    pub async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, SendError> {
        set_framing(&mut request);
        loop {
            let (link, spare, is_last) = match self.take_idle() {
                Some(link) => (link, resend::spare(&request), false),
                // Boxed: the rare path must not widen the future of every call.
                None => (Box::pin(self.connect()).await?, None, true),
            };
            match link.call(request).await {
                Ok(answer) => return Ok(self.receive(answer)),
                Err(unanswered) => request = unanswered.again(spare, is_last, self.address())?,
            }
        }
    }

    fn receive(&self, (head, body): (response::Parts, ResponseBody)) -> Response<Body> {
        let body = match body {
            ResponseBody::Whole(data, link) => {
                if let Some(link) = link {
                    self.give_back(link);
                }
                data.into()
            }
            ResponseBody::Streaming(body) => Body::Pooled(Box::new(PooledBody {
                body,
                pool: self.clone(),
            })),
        };
        Response::from_parts(head, body)
    }
}

/// A response body that returns its connection to the pool at its end.
pub struct PooledBody {
    body: StreamingBody,
    pool: H1Pool,
}

impl HttpBody for PooledBody {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = self.body.poll_frame(cx);
        if let Some(link) = self.body.take_link() {
            self.pool.give_back(link);
        }
        frame
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_over()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
