//! Export of finished spans: OTLP over gRPC or HTTP, Zipkin, the log.
//!
//! [`build`] turns a configuration into a [`Tracer`] and a [`Pipeline`]. Each exporter has its own bounded
//! queue and task, so a stalled collector slows neither requests nor the other exporters.
//!
//! The OpenTelemetry SDK is not used: with its OTLP exporter a process has 1.7 MB more resident memory, a ninth of an
//! idle sidecar.

mod batch;
mod config;
mod otlp;
mod post;
mod resource;
mod stdout;
pub mod wrong;
mod zipkin;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Uri};
use prost::Message as _;
use rustls::RootCertStore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::trace::{Sampler, SpanData, SpanQueue, Tracer};

use batch::Worker;
pub use config::{OtelConfig, TracingConfig, TracingError};
use otlp::OtlpGrpc;
use post::Poster;
use resource::Resource;

/// Connect timeout for a collector; the TLS handshake has the same again.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Default timeout of one export.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// The exporter tasks; call [`run`](Pipeline::run).
#[derive(Debug, Default)]
pub struct Pipeline {
    workers: Vec<Worker>,
}

impl Pipeline {
    /// True if there are no exporters.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Exports until `cancel`, then flushes the queues within five seconds.
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

/// Builds tracing from its configuration. `env` looks up an environment variable; `OTEL_*` variables are
/// merged by Dapr's rules.
///
/// # Errors
/// On an invalid endpoint, protocol, header or timeout.
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
        queues.push(pipeline.add(Exporter::Stdout, DEFAULT_TIMEOUT));
    }
    if !config.zipkin_endpoint.is_empty() {
        let zipkin = zipkin_exporter(&config.zipkin_endpoint, &resource)?;
        queues.push(pipeline.add(zipkin, DEFAULT_TIMEOUT));
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

fn zipkin_exporter(url: &str, resource: &Resource) -> Result<Exporter, TracingError> {
    let uri = zipkin::parse(url).map_err(|reason| TracingError::ZipkinUrl {
        url: url.to_owned(),
        reason,
    })?;
    let roots = roots_for(&uri);
    let poster = Poster::new(uri, roots, "application/json", HeaderMap::new())?;
    Ok(Exporter::Zipkin(poster, resource.service_name().to_owned()))
}

fn otlp_exporter(otel: &OtelConfig, resource: Arc<Resource>) -> Result<Exporter, TracingError> {
    let headers = otel.header_map()?;
    let scheme = match otel.is_secure {
        Some(false) => "http",
        _ => "https",
    };
    let path = match otel.protocol.as_str() {
        "http" => "/v1/traces",
        "grpc" => "",
        other => return Err(TracingError::Protocol(other.to_owned())),
    };
    let uri = otlp_uri(scheme, &otel.endpoint, path).map_err(|reason| TracingError::Endpoint {
        endpoint: otel.endpoint.clone(),
        reason,
    })?;
    let roots = roots_for(&uri);
    Ok(if path.is_empty() {
        Exporter::OtlpGrpc(Box::new(OtlpGrpc::new(uri, roots, headers, resource)))
    } else {
        Exporter::OtlpHttp(
            Poster::new(uri, roots, "application/x-protobuf", headers)?,
            resource,
        )
    })
}

/// The operating system's root certificates, if the collector is reached over TLS.
fn roots_for(uri: &Uri) -> RootCertStore {
    if uri.scheme_str() != Some("https") {
        return RootCertStore::empty();
    }
    let roots = outrigger_tls::system_roots();
    if roots.is_empty() {
        tracing::warn!(
            target: "dapr.runtime",
            "no trusted root certificates found: TLS to the trace collector will fail (install ca-certificates, or \
             set SSL_CERT_FILE)"
        );
    }
    roots
}

/// The OTLP URI, or why the endpoint is invalid.
fn otlp_uri(scheme: &str, endpoint: &str, path: &str) -> Result<Uri, String> {
    let text = format!("{scheme}://{endpoint}{path}");
    text.parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())
}

/// A destination of spans.
#[derive(Debug)]
enum Exporter {
    OtlpGrpc(Box<OtlpGrpc>),
    OtlpHttp(Poster, Arc<Resource>),
    /// With the service name.
    Zipkin(Poster, String),
    Stdout,
}

impl Exporter {
    async fn export(&mut self, spans: &[Arc<SpanData>]) -> Result<(), ExportError> {
        match self {
            Self::OtlpGrpc(exporter) => exporter.export(spans).await,
            Self::OtlpHttp(poster, resource) => {
                let request = otlp::request(resource, spans);
                poster.post(request.encode_to_vec()).await
            }
            Self::Zipkin(poster, service) => poster.post(zipkin::request(service, spans)).await,
            Self::Stdout => {
                stdout::log(spans);
                Ok(())
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::OtlpGrpc(_) => "OTLP gRPC",
            Self::OtlpHttp(..) => "OTLP HTTP",
            Self::Zipkin(..) => "Zipkin",
            Self::Stdout => "stdout",
        }
    }
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("the collector refused the spans: {0}")]
    Refused(String),
    #[error("the collector is not reachable or overloaded: {0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests;
