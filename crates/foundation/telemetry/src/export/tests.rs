//! Exporters against in-process collectors.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as OtlpValue;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status as RpcStatus};

use super::*;
use crate::trace::{Parent, SpanKind, Status};

type Received<T> = mpsc::UnboundedReceiver<T>;

async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

#[derive(Clone)]
struct Collector {
    requests: mpsc::UnboundedSender<(Option<String>, ExportTraceServiceRequest)>,
    failures: Arc<AtomicU32>,
}

impl Collector {
    /// Answers `Unavailable` to the first `times` exports.
    fn failing(times: u32) -> (Self, Received<(Option<String>, ExportTraceServiceRequest)>) {
        let (requests, received) = mpsc::unbounded_channel();
        (
            Self {
                requests,
                failures: Arc::new(AtomicU32::new(times)),
            },
            received,
        )
    }

    async fn serve(self, io: impl AsyncRead + AsyncWrite + Unpin) {
        let service = TowerToHyperService::new(TraceServiceServer::new(self));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(io), service).await;
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, RpcStatus> {
        let fails = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok();
        if fails {
            return Err(RpcStatus::unavailable("try later"));
        }
        let key = request
            .metadata()
            .get("x-key")
            .map(|v| v.to_str().unwrap().to_owned());
        self.requests.send((key, request.into_inner())).unwrap();
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

struct Posted {
    path: String,
    content_type: String,
    body: Bytes,
}

async fn http_collector(answer: StatusCode) -> (SocketAddr, Received<Posted>) {
    let (posted, received) = mpsc::unbounded_channel();
    let address = listen(move |stream| {
        let posted = posted.clone();
        async move {
            let service = service_fn(move |request: http::Request<Incoming>| {
                let posted = posted.clone();
                async move {
                    let path = request.uri().path().to_owned();
                    let content_type = request.headers()["content-type"].to_str().unwrap().to_owned();
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    posted
                        .send(Posted {
                            path,
                            content_type,
                            body,
                        })
                        .unwrap();
                    let mut response = http::Response::new(Full::new(Bytes::new()));
                    *response.status_mut() = answer;
                    Ok::<_, Infallible>(response)
                }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await;
    (address, received)
}

fn otel(protocol: &str, address: SocketAddr) -> TracingConfig {
    TracingConfig {
        sampling_rate: "1".into(),
        otel: OtelConfig {
            endpoint: address.to_string(),
            protocol: protocol.into(),
            is_secure: Some(false),
            headers: vec!["x-key=secret".into()],
            timeout: None,
        },
        ..TracingConfig::default()
    }
}

fn no_env(_: &str) -> Option<String> {
    None
}

fn record(tracer: &Tracer) {
    let mut span = tracer.start(SpanKind::Client, "op", &Parent::default());
    span.set("db.name", "store");
    span.set_list("applied_patches", &["z".to_owned()]);
    span.set_list("applied_patches", &["a".to_owned(), "b".to_owned()]);
    span.set_list("none", &[]);
    span.set_status(Status::Error("Code(404): Not Found".into()));
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|a| a.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        OtlpValue::StringValue(text) => Some(text),
        _ => None,
    }
}

fn check_request(request: &ExportTraceServiceRequest) {
    let resource = &request.resource_spans[0];
    assert_eq!(
        text(&resource.resource.as_ref().unwrap().attributes, "service.name"),
        Some("my-app")
    );
    let scope = &resource.scope_spans[0];
    assert_eq!(scope.scope.as_ref().unwrap().name, "dapr-diagnostics");
    let span = &scope.spans[0];
    assert_eq!((span.name.as_str(), span.kind), ("op", 3));
    assert_eq!(text(&span.attributes, "db.name"), Some("store"));
    let list = |key: &str| {
        let found = span.attributes.iter().find(|a| a.key == key)?;
        match found.value.clone()?.value? {
            OtlpValue::ArrayValue(list) => Some(list.values.len()),
            _ => None,
        }
    };
    assert_eq!((list("applied_patches"), list("none")), (Some(2), None));
    let status = span.status.as_ref().unwrap();
    assert_eq!(
        (status.code, status.message.as_str()),
        (2, "Code(404): Not Found")
    );
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
}

#[tokio::test]
async fn otlp_grpc_retries_and_sends_headers() {
    let (collector, mut received) = Collector::failing(1);
    let address = listen(move |stream| collector.clone().serve(stream)).await;
    let (tracer, pipeline) = build(otel("grpc", address), "my-app", no_env).unwrap();
    let cancel = CancellationToken::new();
    let task = tokio::spawn(pipeline.run(cancel.clone()));
    record(&tracer);
    let (key, request) = received.recv().await.unwrap();
    assert_eq!(key.as_deref(), Some("secret"));
    check_request(&request);
    cancel.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn otlp_grpc_over_tls() {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let (collector, mut received) = Collector::failing(0);
    let address = listen(move |stream| {
        let (acceptor, collector) = (acceptor.clone(), collector.clone());
        async move { collector.serve(acceptor.accept(stream).await.unwrap()).await }
    })
    .await;

    let uri = format!("https://localhost:{}", address.port()).parse().unwrap();
    let resource = Arc::new(Resource::new("my-app", no_env));
    let mut exporter = OtlpGrpc::new(uri, roots, HeaderMap::new(), resource);
    let queue = Arc::new(SpanQueue::default());
    record(&Tracer::sampling(Sampler::new(1.0), vec![queue.clone()]));
    exporter.export(&queue.take()).await.unwrap();
    check_request(&received.recv().await.unwrap().1);
}

#[tokio::test]
async fn otlp_http_is_flushed_at_the_end() {
    let (address, mut received) = http_collector(StatusCode::OK).await;
    let (tracer, pipeline) = build(otel("http", address), "my-app", no_env).unwrap();
    record(&tracer);
    let cancel = CancellationToken::new();
    cancel.cancel();
    pipeline.run(cancel).await;
    let posted = received.recv().await.unwrap();
    assert_eq!(
        (posted.path.as_str(), posted.content_type.as_str()),
        ("/v1/traces", "application/x-protobuf")
    );
    check_request(&ExportTraceServiceRequest::decode(posted.body).unwrap());
}

#[tokio::test]
async fn rejected_batch_is_not_retried() {
    let (address, mut received) = http_collector(StatusCode::BAD_REQUEST).await;
    let (tracer, pipeline) = build(otel("http", address), "my-app", no_env).unwrap();
    let cancel = CancellationToken::new();
    let task = tokio::spawn(pipeline.run(cancel.clone()));
    record(&tracer);
    received.recv().await.unwrap();
    cancel.cancel();
    task.await.unwrap();
    assert!(received.try_recv().is_err());
}

#[tokio::test]
async fn zipkin() {
    let (address, mut received) = http_collector(StatusCode::ACCEPTED).await;
    let config = TracingConfig {
        sampling_rate: "1".into(),
        zipkin_endpoint: format!("http://{address}/api/v2/spans"),
        ..TracingConfig::default()
    };
    let (tracer, pipeline) = build(config, "my-app", no_env).unwrap();
    let cancel = CancellationToken::new();
    let mut parent = tracer.start(SpanKind::Server, "parent", &Parent::default());
    parent.set_list("applied_patches", &["a".to_owned(), "b".to_owned()]);
    tracer
        .start(SpanKind::Internal, "child", &parent.as_parent())
        .end();
    let context = parent.context().unwrap();
    parent.end();
    cancel.cancel();
    pipeline.run(cancel).await;
    let posted = received.recv().await.unwrap();
    assert_eq!(
        (posted.path.as_str(), posted.content_type.as_str()),
        ("/api/v2/spans", "application/json")
    );
    let spans: serde_json::Value = serde_json::from_slice(&posted.body).unwrap();
    let (child, parent) = (&spans[0], &spans[1]);
    assert_eq!(child["parentId"], context.span_id_hex());
    assert_eq!(child["traceId"], context.trace_id_hex());
    assert!(child.get("kind").is_none() && parent.get("parentId").is_none());
    assert_eq!(parent["kind"], "SERVER");
    assert_eq!(parent["tags"]["applied_patches"], r#"["a","b"]"#);
    assert_eq!(parent["localEndpoint"]["serviceName"], "my-app");
    assert!(parent["duration"].as_u64().unwrap() >= 1);
}

#[tokio::test(start_paused = true)]
async fn silent_collector_does_not_delay_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (tracer, pipeline) = build(otel("grpc", listener.local_addr().unwrap()), "my-app", no_env).unwrap();
    record(&tracer);
    let cancel = CancellationToken::new();
    cancel.cancel();
    let started = tokio::time::Instant::now();
    pipeline.run(cancel).await;
    assert!(started.elapsed() <= Duration::from_secs(6));
}

#[test]
fn start_up_errors() {
    let address = "127.0.0.1:1".parse().unwrap();
    let error = build(otel("udp", address), "a", no_env).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid protocol udp provided for Otel endpoint"
    );
    let config = TracingConfig {
        zipkin_endpoint: "collector/spans".into(),
        ..TracingConfig::default()
    };
    assert!(
        build(config, "a", no_env)
            .unwrap_err()
            .to_string()
            .starts_with("invalid collector URL \"collector/spans\"")
    );
}

#[test]
fn builds_configured_exporters() {
    let config = |rate: &str| TracingConfig {
        sampling_rate: rate.into(),
        ..TracingConfig::default()
    };
    let root = |tracer: &Tracer| tracer.start(SpanKind::Client, "a", &Parent::default()).context();
    let (tracer, pipeline) = build(config(""), "a", no_env).unwrap();
    assert!(tracer.enabled() && pipeline.is_empty() && !root(&tracer).unwrap().is_sampled());
    let (tracer, pipeline) = build(config("1"), "a", no_env).unwrap();
    assert!(pipeline.is_empty() && root(&tracer).unwrap().is_sampled());
    let (tracer, _) = build(config("0"), "a", no_env).unwrap();
    assert!(!tracer.enabled());
    let (_, pipeline) = build(
        TracingConfig {
            stdout: true,
            ..config("1")
        },
        "a",
        no_env,
    )
    .unwrap();
    assert!(!pipeline.is_empty());
}
