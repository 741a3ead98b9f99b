//! Decides whether a request without a response is retried on another connection. Without a policy this is
//! the only retry, except that a proxied call fails over to another sidecar on the same evidence
//! (`peer/call.rs`).

use http::Request;

use super::{ConnectionError, SendError};
use crate::body::Body;

/// Why a request has no response.
pub(super) struct Unanswered {
    pub(super) why: ConnectionError,
    /// The request, if the server cannot have seen any of it.
    pub(super) unsent: Option<Request<Body>>,
}

impl Unanswered {
    /// The request to send on another connection to `address`. Unless this was the last connection, that is
    /// the request if it was not sent, or the `spare` copy if the connection was lost.
    ///
    /// # Errors
    /// [`SendError`], which keeps the evidence that the server did not process the request.
    pub(super) fn again(
        self,
        spare: Option<Request<Body>>,
        is_last: bool,
        address: &str,
    ) -> Result<Request<Body>, SendError> {
        let Self { why, unsent } = self;
        let is_too_large = why.is_too_large();
        let repeatable = (unsent.is_some() || why.is_refusal()) && !is_too_large;
        match unsent.or_else(|| spare.filter(|_| why.is_lost())) {
            Some(request) if !is_last && !is_too_large => Ok(request),
            _ => Err(SendError::Broken {
                address: address.to_owned(),
                repeatable,
                source: why,
            }),
        }
    }
}

/// A copy of a request that the server may process twice. Its body must be in memory, and either its method
/// is safe (RFC 9110 section 9.2.1) or it has an idempotency key. PUT does not qualify: it may be an actor
/// turn.
pub(super) fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    if !request.method().is_safe() && !request.headers().contains_key("idempotency-key") {
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

#[cfg(test)]
mod tests {
    use outrigger_http2::{Reason, StreamError};

    use super::*;

    fn request(method: &str) -> Request<Body> {
        Request::builder().method(method).body("body".into()).unwrap()
    }

    /// Whether the request goes to another connection, or else whether its error is repeatable.
    fn again(why: StreamError, is_unsent: bool, spare: Option<Request<Body>>, is_last: bool) -> (bool, bool) {
        let unanswered = Unanswered {
            why: why.into(),
            unsent: is_unsent.then(|| request("POST")),
        };
        match unanswered.again(spare, is_last, "host:1") {
            Ok(_) => (true, true),
            Err(error) => (false, error.is_repeatable()),
        }
    }

    #[test]
    fn retries_only_on_evidence() {
        let closed = StreamError::ConnectionClosed;
        let refused = StreamError::Reset(Reason::REFUSED_STREAM);
        let gone = StreamError::GoAway(Reason::NO_ERROR);
        let too_large = StreamError::PeerHeaderListLimit { size: 2, limit: 1 };
        let spare = || spare(&request("GET"));
        for (why, is_unsent, spare, is_last, expected) in [
            (closed, true, None, false, (true, true)),
            (closed, true, None, true, (false, true)),
            (closed, false, None, false, (false, false)),
            (closed, false, spare(), false, (true, true)),
            (refused, false, None, false, (false, true)),
            (gone, false, None, false, (false, true)),
            (too_large, true, spare(), false, (false, false)),
        ] {
            let context = format!("{why:?}, unsent: {is_unsent}, last: {is_last}");
            assert_eq!(again(why, is_unsent, spare, is_last), expected, "{context}");
        }
    }

    #[test]
    fn spares_only_repeatable_requests() {
        assert!(spare(&request("GET")).is_some());
        assert!(spare(&request("PUT")).is_none());
        let mut keyed = request("POST");
        keyed
            .headers_mut()
            .insert("idempotency-key", http::HeaderValue::from_static("1"));
        assert!(spare(&keyed).is_some());
        *keyed.body_mut() = Body::stream(http_body_util::Full::from("body"));
        assert!(spare(&keyed).is_none());
    }
}
