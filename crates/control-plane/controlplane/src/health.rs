//! The readiness of a process.

use std::future::ready;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use outrigger_accept::{ENDPOINT_LIMITS, Server, serve_http1};
use tokio_util::sync::CancellationToken;

/// The parts that must be ready before the process is. Complete before it is served.
#[derive(Debug, Default)]
pub struct Health {
    parts: Vec<Part>,
}

/// The readiness of one part; initially not ready.
#[derive(Debug, Clone)]
pub struct Part {
    name: &'static str,
    ready: Arc<AtomicBool>,
}

impl Health {
    /// Adds a part.
    pub fn part(&mut self, name: &'static str) -> Part {
        let part = Part {
            name,
            ready: Arc::default(),
        };
        self.parts.push(part.clone());
        part
    }

    /// Whether there are parts and all of them are ready.
    pub fn is_ready(&self) -> bool {
        !self.parts.is_empty() && self.waiting().next().is_none()
    }

    /// Names of parts that are not ready.
    pub fn waiting(&self) -> impl Iterator<Item = &'static str> {
        self.parts
            .iter()
            .filter(|part| !part.ready.load(Ordering::Acquire))
            .map(|part| part.name)
    }
}

impl Part {
    /// Sets the readiness of the part.
    pub fn set(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }
}

/// Serves `/healthz`, and the responses of `others` to other requests, until `drain`.
pub async fn serve_health<O>(server: Server, health: Arc<Health>, drain: CancellationToken, others: O)
where
    O: Fn(&Request<Incoming>) -> Option<Response<Full<Bytes>>> + Clone + Send + Sync + 'static,
{
    let respond = move |request: Request<_>| {
        let others = others(&request);
        ready(others.unwrap_or_else(|| respond(&health, request.uri().path())))
    };
    serve_http1(server.listener, ENDPOINT_LIMITS, drain, respond).await;
}

fn respond(health: &Health, path: &str) -> Response<Full<Bytes>> {
    let status = if path != "/healthz" {
        StatusCode::NOT_FOUND
    } else if health.is_ready() {
        StatusCode::OK
    } else {
        let waiting = health.waiting().collect::<Vec<_>>().join(", ");
        tracing::debug!(target: "dapr.accept", "not healthy yet: waiting for {waiting}");
        StatusCode::SERVICE_UNAVAILABLE
    };
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_health_by_status() {
        let mut health = Health::default();
        let part = health.part("part");
        let status = |health: &Health, path| respond(health, path).status();
        assert_eq!(status(&health, "/healthz"), StatusCode::SERVICE_UNAVAILABLE);
        part.set(true);
        assert_eq!(status(&health, "/healthz"), StatusCode::OK);
        assert_eq!(status(&health, "/other"), StatusCode::NOT_FOUND);
    }

    #[test]
    fn ready_when_all_parts_are() {
        let mut health = Health::default();
        assert!(!health.is_ready(), "nothing to be ready");
        let (one, two) = (health.part("one"), health.part("two"));
        one.set(true);
        assert!(!health.is_ready());
        assert_eq!(health.waiting().collect::<Vec<_>>(), ["two"]);
        two.set(true);
        assert!(health.is_ready());
        one.set(false);
        assert!(!health.is_ready());
    }
}
