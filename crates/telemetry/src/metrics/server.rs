//! The exposition over HTTP.

use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use outrigger_accept::{Limits, TextBody, Texts, serve_http1};
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
    let texts = Arc::new(Texts::default());
    let answer = move |request: Request<_>| {
        let accept = request.headers().get(ACCEPT);
        let format = Format::negotiate(accept.and_then(|value| value.to_str().ok()));
        answer(Arc::clone(&metrics), Arc::clone(&texts), format)
    };
    serve_http1(listener, LIMITS, cancel, answer).await;
}

async fn answer(metrics: Arc<Metrics>, texts: Arc<Texts<Format>>, format: Format) -> Response<TextBody> {
    let text = texts.answer(format, || metrics.render(format)).await;
    let mut response = Response::new(text);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}
