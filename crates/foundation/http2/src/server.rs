//! Server side. A request that was received whole, and whose response is ready at once, costs no task and
//! no wake-up: it is answered in the turn in which it was read.

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

/// Time during which requests are accepted that the client sent before it read our GOAWAY. Without it, a
/// silent client would delay the shutdown until the stall timeout.
const LAST_REQUESTS: Duration = Duration::from_secs(1);

/// Serves a connection until the client closes it or, once `drain` is ready, until the calls in flight have
/// completed. `upgrade` is the request of stream 1 if the connection was upgraded to HTTP/2 and the 101
/// response was sent.
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

/// Answers a request immediately, or spawns a task that will.
fn begin<I, S>(transport: &Arc<Transport<I>>, service: &Arc<S>, accepted: Accepted)
where
    I: Io,
    S: Service,
{
    let answer = SendStream {
        transport: Arc::clone(transport),
        id: accepted.stream,
    };
    // Boxed because a call's future is large, and spawning a task moves it several times.
    let mut call = Box::pin(Arc::clone(service).call(accepted.request));
    // Often the first poll completes the call. If not, the call's task polls again with a real waker.
    let mut cx = Context::from_waker(Waker::noop());
    match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(&mut cx))) {
        Ok(Poll::Ready(response)) => {
            if let Some(body) = respond::<S, I>(&answer, response) {
                // These tasks are bounded by the connection: their stream stays open until they end, and
                // `serve` waits for its streams. If the connection fails, the stream is reset and ends the
                // task.
                tokio::spawn(answer.send_body(body, S::reason));
            }
        }
        Ok(Poll::Pending) => {
            tokio::spawn(wait::<S, I, _>(answer, call));
        }
        // Dropping the response resets the stream.
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

/// Sends the head and the part of the body that is ready. Returns the body if it has more.
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
