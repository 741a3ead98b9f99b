//! Apps: servers in the test that sidecars call.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use outrigger_identity::testing::{Algorithm, Authority, Leaf};
use outrigger_transport::body::Body;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

type Handle = dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync;

/// A request as received by the app.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub headers: HeaderMap,
    pub version: Version,
}

impl Seen {
    /// All values of a header.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let values = self.headers.get_all(name).iter();
        values.map(|v| v.to_str().unwrap()).collect()
    }

    /// The only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "{name}: {all:?}");
        all.first().copied()
    }
}

/// An HTTP/1.1 and HTTP/2 server, in cleartext or over TLS. It stops, with its connections, on drop.
pub struct App {
    pub port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Drop for App {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl App {
    /// An app that answers with `handle`.
    pub async fn start<F, R>(handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::listen(0, handle).await
    }

    /// Like `start`, over TLS with an untrusted certificate.
    pub async fn start_tls<F, R>(handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::serve_tls(unvouched(), handle).await
    }

    /// An app that answers 200 with the body and content type of the request.
    pub async fn echo() -> Self {
        Self::start(echo).await
    }

    /// An app on a port; 0 means any port.
    pub async fn listen<F, R>(port: u16, handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::run(port, None, Arc::new(move |request| Box::pin(handle(request)))).await
    }

    /// An app with this TLS configuration.
    pub async fn serve_tls<F, R>(tls: ServerConfig, handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let tls = TlsAcceptor::from(Arc::new(tls));
        Self::run(0, Some(tls), Arc::new(move |request| Box::pin(handle(request)))).await
    }

    async fn run(port: u16, tls: Option<TlsAcceptor>, handle: Arc<Handle>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let server = Server {
            handle,
            seen: Arc::clone(&seen),
            tls,
        };
        let task = tokio::spawn(server.serve(listener));
        Self { port, seen, task }
    }

    /// Stops at once with all connections; the port is free afterwards.
    pub async fn stop(mut self) {
        self.task.abort();
        let ended = (&mut self.task).await;
        assert!(ended.unwrap_err().is_cancelled());
    }

    /// The requests so far, except the sidecar's own.
    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        let own = |s: &&Seen| s.target != "/dapr/config" && s.target != "/healthz";
        seen.iter().filter(own).cloned().collect()
    }

    /// The latest request.
    pub fn last(&self) -> Seen {
        self.seen().pop().expect("the app was called")
    }

    /// Number of requests.
    pub fn calls(&self) -> usize {
        self.seen().len()
    }
}

/// Echoes the request.
pub async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let mut response = Response::new(Body::stream(body));
    if let Some(kind) = head.headers.get("content-type") {
        response.headers_mut().insert("content-type", kind.clone());
    }
    response
}

/// A text response.
pub fn text(status: u16, body: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_owned()));
    *response.status_mut() = status.try_into().unwrap();
    response
}

struct Server {
    handle: Arc<Handle>,
    seen: Arc<Mutex<Vec<Seen>>>,
    tls: Option<TlsAcceptor>,
}

impl Server {
    async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            stream.set_nodelay(true).unwrap();
            let (handle, seen, tls) = (Arc::clone(&self.handle), Arc::clone(&self.seen), self.tls.clone());
            connections.spawn(async move {
                match tls {
                    None => connection(stream, &handle, &seen).await,
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            connection(stream, &handle, &seen).await;
                        }
                    }
                }
            });
        }
    }
}

async fn connection<I>(io: I, handle: &Arc<Handle>, seen: &Mutex<Vec<Seen>>)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        seen.lock().unwrap().push(Seen {
            method: request.method().clone(),
            target: request
                .uri()
                .path_and_query()
                .map_or("", |p| p.as_str())
                .to_owned(),
            headers: request.headers().clone(),
            version: request.version(),
        });
        let answer = handle(request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).max_headers(1000);
    builder.http2().timer(TokioTimer::new());
    // The client observes how the connection ends.
    let _ended = builder.serve_connection(TokioIo::new(io), service).await;
}

/// An untrusted certificate.
fn unvouched() -> ServerConfig {
    let issued = Authority::new("apps", Algorithm::P256).issue(Leaf::workload("https://app.example"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(issued.chain, issued.key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}
