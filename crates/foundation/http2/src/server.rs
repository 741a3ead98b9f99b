//! The side that accepts. A request that was received whole, and whose answer is ready, costs no task and no wake-up:
//! it is answered in the turn in which it was read.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::Response;
use http_body::Body;
use tokio::io::AsyncWrite;

use crate::boundary::{Io, Service, Timeouts, Upgrade};
use crate::driver::Driver;
use crate::error::Error;
use crate::send_stream::SendStream;
use crate::settings::Config;
use crate::state::{Accepted, Role};
use crate::transport::Transport;

/// How long requests are taken that a client may have sent before it read our GOAWAY. One that is silent would otherwise be
/// waited for as long as a stalled call.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Serves a connection until the client is done, or, once `drain` is ready, until the calls in flight are.
/// `upgrade` is the request of stream 1, where the connection was upgraded to HTTP/2 and the answer to that was
/// sent.
///
/// # Errors
/// Why the connection ended early.
pub async fn serve<I, S, D>(
    io: I,
    upgrade: Option<Upgrade>,
    service: Arc<S>,
    config: &Config,
    timeouts: Timeouts,
    drain: D,
) -> Result<(), Error>
where
    I: Io,
    S: Service,
    D: Future<Output = ()>,
{
    let mut drain = pin!(drain);
    let mut draining = false;
    let mut last_requests = pin!(None);
    let transport = Transport::new(io, config, Role::Server);
    let load = transport.shared.state().load();
    service.connected(move || load.streams.load(Ordering::Relaxed) > 0);
    if let Some(upgrade) = upgrade {
        transport.shared.state().upgrade(upgrade);
    }
    let mut accepted = Vec::new();
    let mut begin_calls = |transport: &Arc<Transport<I>>| {
        let more = transport.shared.state().accept(&transport.shared, &mut accepted);
        accepted
            .drain(..)
            .for_each(|request| begin(transport, &service, request));
        more
    };
    begin_calls(&transport);
    let mut driver = Driver::new(transport, Some(timeouts.preface), Some(timeouts.keep_alive));
    std::future::poll_fn(|cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            driver.transport.shared.state().shut_down();
            last_requests.set(Some(tokio::time::sleep(LAST_REQUESTS)));
        }
        let over = last_requests.as_mut().as_pin_mut().map(|wait| wait.poll(cx));
        if over.is_some_and(|over| over.is_ready()) {
            last_requests.set(None);
            driver.transport.shared.state().send_final_goaway();
        }
        driver.poll(cx, &mut begin_calls)
    })
    .await
}

/// Answers a request at once, or begins to.
fn begin<I, S>(transport: &Arc<Transport<I>>, service: &Arc<S>, accepted: Accepted)
where
    I: Io,
    S: Service,
{
    let answer = SendStream {
        transport: Arc::clone(transport),
        id: accepted.stream,
    };
    // Boxed: a call's future is large, and starting a task moves it several times.
    let mut call = Box::pin(Arc::clone(service).call(accepted.request));
    // The first poll may be the last. If it is not, the next one, by a task of the call's own, brings a waker.
    let mut cx = Context::from_waker(Waker::noop());
    match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))) {
        Ok(Poll::Ready(response)) => {
            if let Some(body) = respond::<S, I>(&answer, response) {
                // These tasks have an owner: their stream stays open until they end, and whoever serves the connection
                // waits for its streams. Where the connection is cut, the stream is reset, and they end by that.
                tokio::spawn(answer.send_body(body, S::reason));
            }
        }
        Ok(Poll::Pending) => {
            tokio::spawn(wait::<S, I, _>(answer, call));
        }
        // Dropping the answer tells the client.
        Err(_panicked) => {}
    }
}

async fn wait<S, I, F>(answer: SendStream<I>, mut call: Pin<Box<F>>)
where
    S: Service,
    I: AsyncWrite + Unpin,
    F: Future<Output = Response<S::Body>>,
{
    let response = std::future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        Poll::Pending => answer.poll_reset(cx).map(|()| None),
    });
    let Some(response) = response.await else { return };
    let rest = respond::<S, I>(&answer, response);
    answer.transport.notify();
    if let Some(body) = rest {
        answer.send_body(body, S::reason).await;
    }
}

/// Sends the head and what the body has without waiting; returns a body that has more.
fn respond<S, I>(answer: &SendStream<I>, response: Response<S::Body>) -> Option<S::Body>
where
    S: Service,
    I: AsyncWrite + Unpin,
{
    let (head, body) = response.into_parts();
    let ended = body.is_end_stream();
    let head = Response::from_parts(head, ());
    if !answer.transport.shared.state().respond(answer.id, &head, ended) || ended {
        return None;
    }
    answer.send_ready(body, S::reason)
}
