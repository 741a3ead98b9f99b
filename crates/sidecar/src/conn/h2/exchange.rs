//! One request and its response on a connection.

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use http_body::Body as _;

use super::Wire;
use crate::body::Body;
use crate::http2::{Asked, InFlight, Pump, Received, pump, send_at_hand};

/// Why there is no response.
pub(super) struct Unanswered {
    pub(super) error: h2::Error,
    /// The request, where nothing of it was sent.
    pub(super) unsent: Option<Request<Body>>,
}

/// Sends a request and waits for the head of the response.
pub(super) async fn exchange(
    mut sender: SendRequest<Bytes>,
    wire: &Wire,
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
    let rest = if ended { None } else { send_at_hand(stream, body) };
    wire.queued();
    let asked = Asked {
        _in_flight: in_flight,
        _pump: rest.map(|(stream, body)| Pump(tokio::spawn(pump(stream, body)).abort_handle())),
    };
    let (head, stream) = response.await.map_err(failed)?.into_parts();
    let body = Received::body(stream, &head.headers, Some(asked));
    Ok(Response::from_parts(head, body))
}
