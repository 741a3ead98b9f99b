//! The health and the metrics server.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use outrigger_accept::serve_http1;
use tokio_util::sync::CancellationToken;

use super::{ENDPOINT_LIMITS, Server};
use crate::{health::Health, metrics::Metrics};

/// The content type of the Prometheus text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `/healthz`.
pub(crate) async fn serve_health(server: Server, health: Arc<Health>, drain: CancellationToken) {
    let respond = move |request: Request<Incoming>| respond_health(&health, request.uri().path());
    serve_http1(server.listener, ENDPOINT_LIMITS, drain, respond).await;
}

/// Serves the metrics, on every path.
pub(crate) async fn serve_metrics(server: Server, metrics: Arc<Metrics>, drain: CancellationToken) {
    let respond = move |request: Request<Incoming>| respond_metrics(&metrics, request.method());
    serve_http1(server.listener, ENDPOINT_LIMITS, drain, respond).await;
}

fn respond_health(health: &Health, path: &str) -> Response<Full<Bytes>> {
    let status = if path != "/healthz" {
        StatusCode::NOT_FOUND
    } else if health.is_ready() {
        StatusCode::OK
    } else {
        tracing::debug!(
            target: "dapr.sentry",
            "Not healthy yet: waiting for {}", health.waiting().collect::<Vec<_>>().join(", ")
        );
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

fn respond_metrics(metrics: &Metrics, method: &Method) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return response;
    }
    let mut response = Response::new(Full::from(metrics.render()));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(EXPOSITION));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_told_by_status_only() {
        let mut health = Health::default();
        let part = health.part("part");
        assert_eq!(
            respond_health(&health, "/healthz").status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        part.set(true);
        assert_eq!(respond_health(&health, "/healthz").status(), StatusCode::OK);
        assert_eq!(respond_health(&health, "/other").status(), StatusCode::NOT_FOUND);
    }
}
