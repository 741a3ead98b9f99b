//! The HTTP server of the metrics port: the exposition and other pages.

use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request, Response};
use outrigger_accept::{Limits, serve_http1};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Format, Metrics, TextBody, Texts};

/// Limits on scraper connections; beyond them the oldest silent connection is closed.
const LIMITS: Limits = Limits {
    connections: 64,
    per_source: 32,
};

/// A page of the metrics port, rendered for each request.
#[derive(Clone)]
pub struct Page {
    /// URL path.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Renders the page. Must not block.
    pub write: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The requested resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requested {
    Exposition(Format),
    Page(usize),
}

/// Serves `pages` at their paths and the exposition at every other path until `cancel`, which also closes
/// open connections.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    pages: Arc<[Page]>,
    cancel: CancellationToken,
) {
    let texts = Arc::new(Texts::default());
    let answer = move |request: Request<_>| {
        let asked = asked(&request, &pages);
        answer(
            Arc::clone(&metrics),
            Arc::clone(&pages),
            Arc::clone(&texts),
            asked,
        )
    };
    serve_http1(listener, LIMITS, cancel, answer).await;
}

fn asked<B>(request: &Request<B>, pages: &[Page]) -> Requested {
    let path = request.uri().path();
    if let Some(page) = pages.iter().position(|page| page.path == path) {
        return Requested::Page(page);
    }
    let accept = request.headers().get(ACCEPT);
    Requested::Exposition(Format::negotiate(accept.and_then(|value| value.to_str().ok())))
}

async fn answer(
    metrics: Arc<Metrics>,
    pages: Arc<[Page]>,
    texts: Arc<Texts<Requested>>,
    asked: Requested,
) -> Response<TextBody> {
    let page = match asked {
        Requested::Exposition(_) => None,
        Requested::Page(page) => pages.get(page),
    };
    let write = || match (asked, page) {
        (_, Some(page)) => (page.write)(),
        (Requested::Exposition(format), None) => metrics.render(format),
        (Requested::Page(_), None) => String::new(),
    };
    let mut response = Response::new(texts.answer(asked, write).await);
    let content_type = match (asked, page) {
        (_, Some(page)) => page.content_type,
        (Requested::Exposition(format), None) => format.content_type(),
        (Requested::Page(_), None) => "text/plain",
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if page.is_some() {
        // Names and errors on a page are untrusted: the policy forbids scripts and fetches.
        let nothing = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
        headers.insert(CONTENT_SECURITY_POLICY, nothing);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}
