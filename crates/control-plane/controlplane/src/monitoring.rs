//! What tells whether a process is well: its health server, and its metrics server where it has one.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use outrigger_accept::{ENDPOINT_LIMITS, Listen, Ports, Server, serve_http1};
use outrigger_telemetry::metrics::{TextBody, Texts};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Part, serve_health};
use crate::tasks::{TaskFailed, fine, supervise};

/// The content type of the Prometheus text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The servers of health and metrics with their ports bound, and the parts that have to be ready.
#[derive(Debug)]
pub struct Monitoring {
    health: Health,
    /// Ready while all tasks run.
    running: Vec<Part>,
    healthz: Server,
    metrics: Option<Server>,
}

impl Monitoring {
    /// Binds the ports of `--healthz-port` and `--metrics-port`. The parts of these names are ready while all tasks run.
    /// `None` where a port cannot be had; `ports` knows which.
    pub async fn bind(
        ports: &mut Ports,
        healthz: &Listen,
        metrics: Option<&Listen>,
        parts: &[&'static str],
    ) -> Option<Self> {
        let healthz = ports.bind("health", "healthz-port", healthz).await;
        let metrics = match metrics {
            None => None,
            Some(listen) => Some(ports.bind("metrics", "metrics-port", listen).await?),
        };
        let mut monitoring = Self {
            health: Health::default(),
            running: Vec::new(),
            healthz: healthz?,
            metrics,
        };
        monitoring.ready_while_running("healthz-server");
        for name in parts {
            monitoring.ready_while_running(name);
        }
        if monitoring.metrics.is_some() {
            monitoring.ready_while_running("metrics-exporter");
        }
        Some(monitoring)
    }

    /// Adds a part that is ready while all tasks run.
    pub fn ready_while_running(&mut self, name: &'static str) {
        let part = self.health.part(name);
        self.running.push(part);
    }

    /// Adds a part with a switch of its own.
    pub fn part(&mut self, name: &'static str) -> Part {
        self.health.part(name)
    }

    /// Where `/healthz` is.
    pub fn healthz(&self) -> SocketAddr {
        self.healthz.address()
    }

    /// Where the metrics are, when they are on.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Server::address)
    }

    /// Serves `/healthz` and the metrics that `render` writes, beside `tasks`, until all have ended, as [`supervise`].
    ///
    /// # Errors
    /// That of a task.
    pub async fn supervise<E>(
        self,
        tasks: JoinSet<Result<(), E>>,
        stop: &CancellationToken,
        render: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Result<(), E>
    where
        E: From<TaskFailed> + Send + 'static,
    {
        self.supervise_and(tasks, stop, render, |_| None).await
    }

    /// As [`Monitoring::supervise`]; the health server gives also what `others` answers to a request.
    ///
    /// # Errors
    /// That of a task.
    pub async fn supervise_and<E>(
        self,
        mut tasks: JoinSet<Result<(), E>>,
        stop: &CancellationToken,
        render: impl Fn() -> String + Clone + Send + Sync + 'static,
        others: impl Fn(&Request<Incoming>) -> Option<Response<Full<Bytes>>> + Clone + Send + Sync + 'static,
    ) -> Result<(), E>
    where
        E: From<TaskFailed> + Send + 'static,
    {
        let health = Arc::new(self.health);
        tasks.spawn(fine(serve_health(self.healthz, health, stop.clone(), others)));
        if let Some(server) = self.metrics {
            tasks.spawn(fine(serve_metrics(server, stop.clone(), render)));
        }
        self.running.iter().for_each(|part| part.set(true));
        let outcome = supervise(tasks, stop).await;
        self.running.iter().for_each(|part| part.set(false));
        outcome
    }
}

/// Serves what `render` writes in the Prometheus text format, on every path, until `drain`.
async fn serve_metrics<R>(server: Server, drain: CancellationToken, render: R)
where
    R: Fn() -> String + Clone + Send + Sync + 'static,
{
    let texts = Arc::new(Texts::default());
    let respond = move |request: Request<Incoming>| {
        let (texts, render) = (Arc::clone(&texts), render.clone());
        let reads = request.method() == Method::GET || request.method() == Method::HEAD;
        async move {
            if !reads {
                let mut response = Response::new(TextBody::default());
                *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
                return response;
            }
            let mut response = Response::new(texts.answer((), render).await);
            let value = HeaderValue::from_static(EXPOSITION);
            response.headers_mut().insert(header::CONTENT_TYPE, value);
            response
        }
    };
    serve_http1(server.listener, ENDPOINT_LIMITS, drain, respond).await;
}
