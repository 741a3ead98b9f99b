//! The health server of a process, and its optional metrics server.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use outrigger_accept::{ENDPOINT_LIMITS, Listen, Ports, Server, serve_http1};
use outrigger_telemetry::metrics::{Format, TextBody, Texts, process_families};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Part, serve_health};
use crate::tasks::{TaskFailed, fine, supervise};

/// The content type of the Prometheus text format.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The health and metrics servers with their ports bound, and the readiness of parts.
#[derive(Debug)]
pub struct Monitoring {
    health: Health,
    /// Ready while all tasks run.
    running: Vec<Part>,
    healthz: Server,
    metrics: Option<Server>,
}

impl Monitoring {
    /// Binds the ports of `--healthz-port` and `--metrics-port`. The named parts are ready while all tasks
    /// run. `None` if a port cannot be bound, which `ports` records.
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

    /// Adds a part with separate readiness.
    pub fn part(&mut self, name: &'static str) -> Part {
        self.health.part(name)
    }

    /// Address of `/healthz`.
    pub fn healthz(&self) -> SocketAddr {
        self.healthz.address()
    }

    /// Address of the metrics server, if enabled.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Server::address)
    }

    /// Runs `tasks` and serves `/healthz` and the metrics of `render` until all have ended, like
    /// [`supervise`].
    ///
    /// # Errors
    /// The error of a task.
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

    /// Like [`Monitoring::supervise`]; the health server also serves the responses of `others`.
    ///
    /// # Errors
    /// The error of a task.
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

/// Serves the output of `render` and the metrics of the process in the Prometheus text format, on every path,
/// until `drain`.
async fn serve_metrics<R>(server: Server, drain: CancellationToken, render: R)
where
    R: Fn() -> String + Clone + Send + Sync + 'static,
{
    let texts = Arc::new(Texts::default());
    let render = move || {
        let mut text = render();
        process_families(Format::Text, &mut text);
        text
    };
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
