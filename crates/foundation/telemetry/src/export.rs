//! Export of finished spans: OTLP over gRPC or HTTP, Zipkin, the log.
//!
//! [`build`] turns a configuration into a [`Tracer`] and a [`Pipeline`]. Each exporter has its own bounded queue and
//! task: a collector that hangs slows neither requests nor the other exporters.

mod batch;
mod config;
mod dial;
mod otlp;
mod post;
mod resource;
mod stdout;
pub mod wrong;
mod zipkin;

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::trace::{Sampler, SpanData, SpanQueue, Tracer};

use batch::Worker;
pub use config::{OtelConfig, TracingConfig, TracingError};
use dial::Dialer;
use otlp::{OtlpGrpc, OtlpHttp};
use resource::Resource;
use stdout::Stdout;
use zipkin::Zipkin;

/// Limit of one export when the configuration has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The exporters' tasks, to be [`run`](Pipeline::run).
#[derive(Debug, Default)]
pub struct Pipeline {
    workers: Vec<Worker>,
}

impl Pipeline {
    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Exports until `cancel`, then flushes what is queued within five seconds.
    pub async fn run(self, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        for worker in self.workers {
            tasks.spawn(worker.run(cancel.clone()));
        }
        tasks.join_all().await;
    }

    fn add(&mut self, exporter: Exporter, timeout: Duration) -> Arc<SpanQueue> {
        let queue = Arc::new(SpanQueue::default());
        self.workers.push(Worker::new(exporter, queue.clone(), timeout));
        queue
    }
}

/// Builds tracing from its configuration. `env` looks up an environment variable; `OTEL_*` variables are merged in by
/// the rules of Dapr.
///
/// # Errors
/// On an unusable endpoint, protocol, header or timeout.
pub fn build(
    config: TracingConfig,
    app_id: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Result<(Tracer, Pipeline), TracingError> {
    let config = config.with_env(&env)?;
    let resource = Arc::new(Resource::new(app_id, &env));
    let mut pipeline = Pipeline::default();
    let mut queues = Vec::new();
    if config.stdout {
        queues.push(pipeline.add(Exporter::Stdout(Stdout), DEFAULT_TIMEOUT));
    }
    if !config.zipkin_endpoint.is_empty() {
        let zipkin = Zipkin::new(&config.zipkin_endpoint, &resource)?;
        queues.push(pipeline.add(Exporter::Zipkin(zipkin), DEFAULT_TIMEOUT));
    }
    let otel = &config.otel;
    if !otel.endpoint.is_empty() && !otel.protocol.is_empty() {
        let timeout = otel.timeout.unwrap_or(DEFAULT_TIMEOUT);
        queues.push(pipeline.add(otlp_exporter(otel, resource)?, timeout));
    }
    let sampler = Sampler::parse(&config.sampling_rate);
    tracing::info!(target: "dapr.runtime", "Dapr trace sampler initialized: {sampler}");
    if queues.is_empty() && config.sampling_rate.is_empty() {
        return Ok((Tracer::pass_through(), pipeline));
    }
    Ok((Tracer::sampling(sampler, queues), pipeline))
}

fn otlp_exporter(otel: &OtelConfig, resource: Arc<Resource>) -> Result<Exporter, TracingError> {
    let secure = otel.is_secure.unwrap_or(true);
    let headers = otel.header_map()?;
    let scheme = if secure { "https" } else { "http" };
    let uri = |path| {
        otlp_uri(scheme, &otel.endpoint, path).map_err(|reason| TracingError::Endpoint {
            endpoint: otel.endpoint.clone(),
            reason,
        })
    };
    match otel.protocol.as_str() {
        "http" => {
            let dialer = Dialer::new(secure, b"http/1.1")?;
            Ok(Exporter::OtlpHttp(OtlpHttp::new(
                uri("/v1/traces")?,
                dialer,
                headers,
                resource,
            )))
        }
        "grpc" => {
            let dialer = Dialer::new(secure, b"h2")?;
            Ok(Exporter::OtlpGrpc(OtlpGrpc::new(
                uri("")?,
                dialer,
                headers,
                resource,
            )))
        }
        other => Err(TracingError::Protocol(other.to_owned())),
    }
}

/// Where spans go, or what is wrong with the endpoint.
fn otlp_uri(scheme: &str, endpoint: &str, path: &str) -> Result<Uri, String> {
    let text = format!("{scheme}://{endpoint}{path}");
    text.parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())
}

/// One destination of spans.
#[derive(Debug)]
enum Exporter {
    OtlpGrpc(OtlpGrpc),
    OtlpHttp(OtlpHttp),
    Zipkin(Zipkin),
    Stdout(Stdout),
}

impl Exporter {
    async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        match self {
            Self::OtlpGrpc(exporter) => exporter.export(spans).await,
            Self::OtlpHttp(exporter) => exporter.export(spans).await,
            Self::Zipkin(exporter) => exporter.export(spans).await,
            Self::Stdout(exporter) => {
                exporter.export(spans);
                Ok(())
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::OtlpGrpc(_) => "OTLP gRPC",
            Self::OtlpHttp(_) => "OTLP HTTP",
            Self::Zipkin(_) => "Zipkin",
            Self::Stdout(_) => "stdout",
        }
    }
}

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector refused the spans: {0}")]
    Refused(String),
    #[error("the collector is not reachable or overloaded: {0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests;
