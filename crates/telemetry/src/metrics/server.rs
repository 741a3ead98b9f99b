//! The exposition over HTTP.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Format, Metrics};

/// A client has this long to send its request head.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Scrapers connected at once; more wait.
const MAX_CONNECTIONS: usize = 64;

/// Answers every path with the exposition until `cancel`; open connections end with it.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>, cancel: CancellationToken) {
    let slots = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
    let connections = TaskTracker::new();
    while let Some(Ok(slot)) = cancel.run_until_cancelled(slots.clone().acquire_owned()).await {
        let Some(accepted) = cancel.run_until_cancelled(listener.accept()).await else {
            break;
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, most likely: do not spin.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (metrics, cancel) = (metrics.clone(), cancel.clone());
        connections.spawn(async move {
            let _slot = slot;
            let service = service_fn(move |request| answer(metrics.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(READ_LIMIT)
                .serve_connection(TokioIo::new(stream), service);
            // How a scraper's connection ends is of no interest here.
            let _ = cancel.run_until_cancelled(connection).await;
        });
    }
    connections.close();
    connections.wait().await;
}

async fn answer(
    metrics: Arc<Metrics>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let format = Format::negotiate(accept);
    let mut response = Response::new(Full::new(Bytes::from(metrics.render(format))));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    Ok(response)
}
