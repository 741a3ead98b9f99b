//! The exposition over HTTP.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use outrigger_accept::{Limits, serve_http1};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Format, Metrics};

/// Scrapers connected at once; beyond it the oldest silent connection goes.
const LIMITS: Limits = Limits {
    connections: 64,
    per_source: 32,
};

/// Answers every path with the exposition until `cancel`; open connections end with it.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, cancel: CancellationToken) {
    let answer = move |request: Request<_>| answer(&metrics, &request);
    serve_http1(listener, LIMITS, cancel, answer).await;
}

fn answer<B>(metrics: &Metrics, request: &Request<B>) -> Response<Full<Bytes>> {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let format = Format::negotiate(accept);
    let mut response = Response::new(Full::new(Bytes::from(metrics.render(format))));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}
