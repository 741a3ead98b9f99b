//! External HTTP endpoints: an HTTPEndpoint resource or an absolute URL.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyDataStream;
use outrigger_runtime::app::{http_reply, http_request_headers, unverified_config};
use outrigger_runtime::call::{Call, Reply};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::middleware::Middlewares;
use outrigger_transport::body::{Body, BoxError};
use outrigger_transport::conn::{MAX_FIELDS, set_framing};
use outrigger_transport::stall::Due;
use outrigger_webclient::within;
use reqwest::{ClientBuilder, Url, redirect};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::{OnceCell, Semaphore};

/// Timeout of the TCP connect, and of the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Most redirects followed in one call.
const MAX_REDIRECTS: usize = 10;

/// An HTTPEndpoint with its secrets resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Id that callers use.
    pub name: String,
    /// The base URL of calls.
    pub base_url: String,
    /// Headers set on every call.
    pub headers: Vec<(String, String)>,
    /// PEM certificates to trust instead of the system's.
    pub root_ca: Option<String>,
    /// PEM of a client certificate chain, and its key.
    pub client: Option<(String, String)>,
}

/// Why an endpoint could not be configured or called.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// `clientTLS.rootCA`.
    #[error(
        "failed to add root cert to cert pool for http endpoint {0}: use PEM certificates in clientTLS.rootCA"
    )]
    RootCa(String),
    /// `clientTLS.certificate` and `privateKey`.
    #[error("failed to load client certificate for http endpoint {0}: {1}")]
    ClientCertificate(String, String),
    /// A header that is invalid in HTTP.
    #[error("http endpoint {0}: header {1:?} is not a legal HTTP header")]
    Header(String, String),
    /// The HTTP client could not be built.
    #[error("http endpoint {0}: {1}")]
    Client(String, String),
    /// The call has no verb.
    #[error("invalid HTTP verb")]
    InvalidVerb,
    /// The method escapes the base URL of the endpoint, for which its headers and certificate are meant.
    #[error(
        "the method leads out of the baseUrl of http endpoint {0}, or a server may read it so: leave out ..;, backslashes \
         and escapes of escapes"
    )]
    Outside(String),
    /// The connection failed.
    #[error("{0}")]
    Send(String),
}

struct Endpoint {
    spec: EndpointSpec,
    base_url: String,
    /// The parsed base URL, if it is valid.
    base: Option<Url>,
    headers: HeaderMap,
    client: reqwest::Client,
    permits: Option<Arc<Semaphore>>,
}

/// All endpoints of this sidecar.
pub struct Endpoints {
    named: ArcSwap<HashMap<String, Arc<Endpoint>>>,
    max_concurrency: Option<usize>,
    /// For absolute URLs: follows no redirects, like the app channel. Built on first use, because loading the
    /// system's certificates takes longer than the rest of the start.
    anonymous: OnceCell<reqwest::Client>,
    unverified_urls: bool,
    permits: Option<Arc<Semaphore>>,
    metrics: Arc<SidecarMetrics>,
    middlewares: Arc<Middlewares>,
}

/// Settings shared by all endpoints.
pub struct Common {
    /// `--app-max-concurrency`: concurrent calls of each endpoint.
    pub max_concurrency: Option<usize>,
    /// Skip certificate verification for absolute URLs (`--app-protocol https`).
    pub unverified_urls: bool,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
    /// The middleware pipeline of outgoing calls.
    pub middlewares: Arc<Middlewares>,
}

impl Endpoints {
    /// No endpoints yet.
    pub fn new(common: Common) -> Self {
        Self {
            named: ArcSwap::default(),
            max_concurrency: common.max_concurrency,
            anonymous: OnceCell::new(),
            unverified_urls: common.unverified_urls,
            permits: permits(common.max_concurrency),
            metrics: common.metrics,
            middlewares: common.middlewares,
        }
    }

    /// Adds or replaces an endpoint. Calls in flight are not affected.
    ///
    /// # Errors
    /// [`EndpointError`]; the previous endpoint stays.
    pub fn put(&self, spec: EndpointSpec) -> Result<(), EndpointError> {
        if self
            .named
            .load()
            .get(&spec.name)
            .is_some_and(|known| known.spec == spec)
        {
            return Ok(());
        }
        let endpoint = Arc::new(endpoint(spec, permits(self.max_concurrency))?);
        self.named.rcu(|named| {
            let mut named = HashMap::clone(named);
            named.insert(endpoint.spec.name.clone(), Arc::clone(&endpoint));
            named
        });
        Ok(())
    }

    /// Removes an endpoint. Calls in flight are not affected.
    pub fn remove(&self, name: &str) {
        self.named.rcu(|named| {
            let mut named = HashMap::clone(named);
            named.remove(name);
            named
        });
    }

    /// Whether `name` is an HTTPEndpoint.
    pub fn contains(&self, name: &str) -> bool {
        let named = self.named.load();
        !named.is_empty() && named.contains_key(name)
    }

    /// The base URL of an endpoint.
    pub fn base_url(&self, name: &str) -> Option<String> {
        self.named.load().get(name).map(|e| e.base_url.clone())
    }

    /// The names of all endpoints, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.named.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Calls a named endpoint.
    ///
    /// # Errors
    /// [`EndpointError`] if there was no response.
    pub async fn call_named(&self, name: &str, call: Call) -> Result<Reply, EndpointError> {
        let Some(endpoint) = self.named.load().get(name).cloned() else {
            return Err(EndpointError::Send(format!(
                "http endpoint {name} does not exist"
            )));
        };
        let Endpoint {
            client,
            base_url,
            base,
            headers,
            permits,
            ..
        } = &*endpoint;
        if let Some(base) = base
            && Url::parse(&below(base_url, &call)).is_ok_and(|url| !within(base, &url))
        {
            return Err(EndpointError::Outside(name.to_owned()));
        }
        self.call(client, base_url, call, Some(headers), permits.as_ref())
            .await
    }

    /// Calls a method at an absolute URL.
    ///
    /// # Errors
    /// [`EndpointError`] if there was no response.
    pub async fn call_url(&self, url: &str, call: Call) -> Result<Reply, EndpointError> {
        let client = self.anonymous.get_or_try_init(|| anonymous(self.unverified_urls));
        self.call(client.await?, url, call, None, self.permits.as_ref())
            .await
    }

    async fn call(
        &self,
        client: &reqwest::Client,
        base: &str,
        call: Call,
        extra: Option<&HeaderMap>,
        permits: Option<&Arc<Semaphore>>,
    ) -> Result<Reply, EndpointError> {
        // The semaphore is never closed, so a permit always becomes available.
        let permit = match permits {
            Some(permits) => Arc::clone(permits).acquire_owned().await.ok(),
            None => None,
        };
        let method = call
            .verb
            .clone()
            .filter(|v| *v != Method::CONNECT)
            .ok_or(EndpointError::InvalidVerb)?;
        let url = below(base, &call);
        let mut headers = http_request_headers(call.metadata, &call.trace, &call.body);
        headers.remove(HOST);
        if let Some(content_type) = call.content_type {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if let Some(extra) = extra {
            headers.extend(extra.clone());
        }
        let mut request = Request::new(call.body);
        *request.method_mut() = method.clone();
        *request.headers_mut() = headers;
        let started = Instant::now();
        let result = match self.middlewares.app.current() {
            None => transmit(client, url, request).await,
            Some(chain) => {
                let illegal = |error| EndpointError::Send(format!("{url}: {error}"));
                *request.uri_mut() = url.parse().map_err(illegal)?;
                let end = |request: Request<Body>| -> BoxFuture<'_, Result<Response<Body>, BoxError>> {
                    let url = request.uri().to_string();
                    Box::pin(transmit(client, url, request))
                };
                Box::pin(chain.run(request, end)).await
            }
        };
        let status = result.as_ref().map_or(500, |r| r.status().as_u16());
        self.metrics
            .http_client(&method, &call.method, status, started.elapsed(), 0, 0);
        let response = result.map_err(|e| EndpointError::Send(described(e.as_ref())))?;
        let mut reply = http_reply(response);
        if let Some(permit) = permit {
            reply.body = reply.body.hold(permit);
        }
        Ok(reply)
    }
}

/// The URL of a call. An empty method yields the base URL without an added slash.
fn below(base: &str, call: &Call) -> String {
    let target = call.target();
    let is_base = call.octets.is_none() && call.method.is_empty();
    let target = if is_base {
        target.trim_start_matches('/')
    } else {
        &target
    };
    format!("{base}{target}")
}

/// An error and its causes. Tools match the prefix of a refused certificate.
fn described(error: &(dyn std::error::Error + 'static)) -> String {
    const REFUSED: &str = "invalid peer certificate";
    outrigger_transport::error::chain(error).replacen(
        REFUSED,
        &format!("tls: failed to verify certificate: {REFUSED}"),
        1,
    )
}

/// Sends a request to `url` instead of its target.
async fn transmit(
    client: &reqwest::Client,
    url: String,
    mut request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    set_framing(&mut request);
    let (mut head, body) = request.into_parts();
    let length = body.known_length();
    if let Some(length) = length.filter(|length| *length > 0) {
        head.headers.insert(CONTENT_LENGTH, length.into());
    }
    let request = client.request(head.method, url).headers(head.headers);
    let request = match body {
        _ if length == Some(0) => request,
        Body::Full(bytes) => request.body(bytes),
        other => request.body(reqwest::Body::wrap_stream(BodyDataStream::new(other))),
    };
    let response = request.send().await.map_err(without_query);
    Ok(watched(response?))
}

/// Removes the query from an error: callers, logs and traces get it, and a query may contain keys.
fn without_query(mut error: reqwest::Error) -> reqwest::Error {
    if let Some(url) = error.url_mut() {
        url.set_query(None);
    }
    error
}

fn watched(response: reqwest::Response) -> Response<Body> {
    let (head, body) = Response::<reqwest::Body>::from(response).into_parts();
    let body = Body::stream(Due::new(body, &head.headers));
    Response::from_parts(head, body)
}

fn permits(max_concurrency: Option<usize>) -> Option<Arc<Semaphore>> {
    max_concurrency.map(|calls| Arc::new(Semaphore::new(calls)))
}

fn endpoint(spec: EndpointSpec, permits: Option<Arc<Semaphore>>) -> Result<Endpoint, EndpointError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &spec.headers {
        let illegal = || EndpointError::Header(spec.name.clone(), name.clone());
        let value = HeaderValue::try_from(value).map_err(|_| illegal())?;
        headers.insert(HeaderName::try_from(name).map_err(|_| illegal())?, value);
    }
    let roots = match &spec.root_ca {
        Some(pem) => Some(roots_of(pem).ok_or_else(|| EndpointError::RootCa(spec.name.clone()))?),
        None => None,
    };
    let identity = match &spec.client {
        Some((chain, key)) => {
            let pair = client_pair(chain, key);
            Some(pair.map_err(|e| EndpointError::ClientCertificate(spec.name.clone(), e))?)
        }
        None => None,
    };
    let client = client(roots, identity)
        .map_err(|e| EndpointError::ClientCertificate(spec.name.clone(), e.to_string()))?
        .redirect(redirect::Policy::custom(redirected))
        .build();
    let base_url = spec.base_url.trim_end_matches('/').to_owned();
    Ok(Endpoint {
        base: Url::parse(&base_url).ok(),
        base_url,
        headers,
        client: client.map_err(|e| EndpointError::Client(spec.name.clone(), e.to_string()))?,
        permits,
        spec,
    })
}

/// Decides on redirects of a named endpoint. The sidecar follows only those within the endpoint's base URL,
/// to which its headers and certificate belong. It follows only those that repeat the request as `GET` (RFC
/// 9110 section 15.4). Others go back to the caller.
fn redirected(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let followed = match (attempt.previous().first(), attempt.status()) {
        (Some(first), StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER) => {
            first.origin() == attempt.url().origin() && attempt.previous().len() <= MAX_REDIRECTS
        }
        _ => false,
    };
    if followed {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

async fn anonymous(unverified: bool) -> Result<reqwest::Client, EndpointError> {
    let made = tokio::task::spawn_blocking(move || make_anonymous(unverified)).await;
    made.unwrap_or_else(|e| Err(EndpointError::Client("(absolute URLs)".into(), e.to_string())))
}

fn make_anonymous(unverified: bool) -> Result<reqwest::Client, EndpointError> {
    let failed = |e: String| EndpointError::Client("(absolute URLs)".into(), e);
    let builder = if unverified {
        with_tls(ClientConfig::clone(&unverified_config(&[b"h2", b"http/1.1"])))
    } else {
        client(None, None).map_err(|e| failed(e.to_string()))?
    };
    builder
        .redirect(redirect::Policy::none())
        .build()
        .map_err(|e| failed(e.to_string()))
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn roots_of(pem: &str) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.ok()?).ok()?;
    }
    (!roots.is_empty()).then_some(roots)
}

fn client_pair(chain: &str, key: &str) -> Result<Pair, String> {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| format!("certificate: {e}"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| format!("privateKey: {e}"))?;
    Ok((chain, key))
}

/// The system's certificates, loaded once and shared, because there are many.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| Arc::new(outrigger_tls::system_roots()));
    Arc::clone(&ROOTS)
}

/// A client with its own trust roots and identity; the system's roots by default.
fn client(roots: Option<RootCertStore>, identity: Option<Pair>) -> Result<ClientBuilder, rustls::Error> {
    let roots = roots.map_or_else(system_roots, Arc::new);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match identity {
        Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
        None => config.with_no_client_auth(),
    };
    Ok(with_tls(config))
}

fn with_tls(config: ClientConfig) -> ClientBuilder {
    outrigger_webclient::builder(config)
        .connect_timeout(CONNECT_TIMEOUT)
        .http1_max_headers(MAX_FIELDS)
        .no_proxy()
}

#[cfg(test)]
mod tests;
