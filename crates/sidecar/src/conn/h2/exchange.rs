//! One request and its response on a connection. A body that is at hand leaves together with the head, in one write
//! and without a task of its own; only what has to be waited for is pumped by one.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::AbortHandle;

use super::InFlight;
use crate::body::{Body, BoxError};

/// Why there is no response.
pub(super) struct Unanswered {
    pub(super) error: h2::Error,
    /// The request, where nothing of it was sent.
    pub(super) unsent: Option<Request<Body>>,
}

/// Sends a request and waits for the head of the response.
pub(super) async fn exchange(
    mut sender: SendRequest<Bytes>,
    request: Request<Body>,
    in_flight: InFlight,
) -> Result<Response<Body>, Unanswered> {
    if let Err(error) = std::future::poll_fn(|cx| sender.poll_ready(cx)).await {
        return Err(Unanswered {
            error,
            unsent: Some(request),
        });
    }
    let failed = |error| Unanswered { error, unsent: None };
    let (head, body) = request.into_parts();
    let ended = body.is_end_stream();
    let sent = sender.send_request(Request::from_parts(head, ()), ended);
    let (response, stream) = sent.map_err(failed)?;
    let pump = if ended { None } else { send_body(stream, body) };
    let response = response.await.map_err(failed)?;
    Ok(received(response, in_flight, pump))
}

/// Sends a body; what is not there yet is left to a task, which ends when the returned handle is dropped.
fn send_body(mut stream: SendStream<Bytes>, mut body: Body) -> Option<Pump> {
    // Whoever waits for the rest polls again with its own waker.
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut body).poll_frame(&mut cx) {
        Poll::Ready(frame) => {
            let ended = body.is_end_stream();
            // The first piece is in memory already: the connection takes it as it is and sends it as it may.
            if put(&mut stream, frame, ended) {
                return None;
            }
        }
        Poll::Pending => {}
    }
    let task = tokio::spawn(pump(stream, body));
    Some(Pump(task.abort_handle()))
}

/// Hands over what a body gave, without waiting for room. True when the stream needs nothing more.
fn put(stream: &mut SendStream<Bytes>, frame: Option<Result<Frame<Bytes>, BoxError>>, ended: bool) -> bool {
    let result = match frame {
        Some(Ok(frame)) => match frame.into_data() {
            Ok(data) => stream.send_data(data, ended).map(|()| ended),
            Err(frame) => match frame.into_trailers() {
                Ok(trailers) => stream.send_trailers(trailers).map(|()| true),
                Err(_) => Ok(ended),
            },
        },
        Some(Err(error)) => {
            tracing::debug!(target: "dapr.runtime.conn", "the body of a request failed: {error}");
            stream.send_reset(reason_of(error.as_ref()));
            return true;
        }
        None => stream.send_data(Bytes::new(), true).map(|()| true),
    };
    // A stream that takes nothing any more was reset: the response says why.
    result.unwrap_or(true)
}

/// The reason a failed body came with, to pass it on.
fn reason_of(error: &(dyn std::error::Error + 'static)) -> Reason {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reason) = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason) {
            return reason;
        }
        next = error.source();
    }
    Reason::INTERNAL_ERROR
}

async fn pump(mut stream: SendStream<Bytes>, mut body: Body) {
    loop {
        let frame = std::future::poll_fn(|cx| {
            if stream.poll_reset(cx).is_ready() {
                return Poll::Ready(None);
            }
            Pin::new(&mut body).poll_frame(cx).map(Some)
        });
        let Some(frame) = frame.await else { return };
        let frame = match frame {
            Some(Ok(frame)) if frame.is_data() => {
                let ended = body.is_end_stream();
                let Ok(data) = frame.into_data() else { return };
                if !send_with_room(&mut stream, data, ended).await || ended {
                    return;
                }
                continue;
            }
            other => other,
        };
        if put(&mut stream, frame, false) {
            return;
        }
    }
}

/// Sends data as the peer makes room; false when the stream is gone.
async fn send_with_room(stream: &mut SendStream<Bytes>, mut data: Bytes, ended: bool) -> bool {
    if data.is_empty() {
        return stream.send_data(data, ended).is_ok();
    }
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(Ok(room)) => room,
            Some(Err(_)) | None => return false,
        };
        let piece = data.split_to(room.min(data.len()));
        if !piece.is_empty() && stream.send_data(piece, ended && data.is_empty()).is_err() {
            return false;
        }
    }
    true
}

/// The task that sends a request's body. A response that is no longer wanted, or has been read to its end, ends it.
struct Pump(AbortHandle);

impl Drop for Pump {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn received(response: Response<RecvStream>, in_flight: InFlight, pump: Option<Pump>) -> Response<Body> {
    let length = response
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok()?.parse().ok());
    response.map(|stream| {
        if stream.is_end_stream() {
            return Body::Empty;
        }
        Body::Http2(Box::new(Received {
            stream,
            left: length,
            data_ended: false,
            _in_flight: in_flight,
            _pump: pump,
        }))
    })
}

/// The body of a response.
pub struct Received {
    stream: RecvStream,
    /// Bytes still to come, where the head told.
    left: Option<u64>,
    data_ended: bool,
    _in_flight: InFlight,
    _pump: Option<Pump>,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Room for the sender is made as fast as somebody reads. A stream that is gone needs none.
                    let _gone = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                // RFC 9113 section 8.1: an answer that needs no more of the request.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(None) => None,
            Err(error) => Some(Err(error.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
