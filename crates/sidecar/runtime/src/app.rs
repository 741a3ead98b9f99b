//! The app channel: calls from the sidecar to the app.

mod callback;
mod grpc;
mod http;
mod probe;
mod reach;
mod settings;
mod tls;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::http::{HeaderValue, Request, Response};
use outrigger_transport::body::{Body, TooMuchUnfinished};
use outrigger_transport::conn::{Dialer, H1Pool, H2Pool, KeepAlive, SendError};
use outrigger_transport::grpc::send_code;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status};

use crate::call::{Call, Reply};
use crate::metrics::SidecarMetrics;
use crate::middleware::Middlewares;

use self::reach::Reach;

pub use http::{reply as http_reply, request_headers as http_request_headers};
pub use probe::{Health, HealthSetter, probe, wait_for_port};
pub use settings::{App, AppHealth, AppProtocol};
pub use tls::unverified_config;

/// Timeout of opening a connection to the app.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for gRPC apps, as in the contract: a restarting app may accept late.
const GRPC_CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The connection to the app, created once at start.
pub struct AppChannel {
    transport: Transport,
    authority: HeaderValue,
    address: String,
    token: Option<HeaderValue>,
    max_concurrency: Option<usize>,
    permits: Option<Arc<Semaphore>>,
    health: Health,
    reach: Reach,
    max_body: usize,
    metrics: Arc<SidecarMetrics>,
    middlewares: Arc<Middlewares>,
}

enum Transport {
    H1(H1Pool),
    H2(H2Pool),
    Grpc(H2Pool),
}

/// Why a call got no response from the app. Displays only the reason; the caller adds which call failed.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// No `--app-port`.
    #[error("app channel is not initialized")]
    NoChannel,
    /// The health checks failed.
    #[error("app is not in a healthy state")]
    Unhealthy,
    /// The call has no verb that HTTP can send.
    #[error("invalid HTTP verb")]
    InvalidVerb,
    /// The request cannot be represented in HTTP.
    #[error("the request cannot be sent to the app: {0}")]
    Request(#[from] ::http::Error),
    /// The connection failed.
    #[error("{}{hint}", outrigger_transport::error::chain(source))]
    Send {
        /// The error of the connection.
        source: SendError,
        /// A hint about the settings; empty if the cause is unknown.
        hint: &'static str,
    },
    /// The request body could not be read.
    #[error("reading the request body: {0}")]
    Body(String),
    /// The request body was abandoned before it was complete.
    #[error("reading the request body: {0}")]
    Unfinished(TooMuchUnfinished),
}

impl AppError {
    /// The gRPC status of a call without response: `Unavailable` if the app was unreachable, which callers
    /// distinguish from our own failures.
    fn unanswered(&self) -> Status {
        match self {
            Self::Send { source, .. } => Status::new(send_code(source), self.to_string()),
            _ => self.status(),
        }
    }

    /// The gRPC status for other sidecars.
    pub fn status(&self) -> Status {
        match self {
            Self::NoChannel | Self::Unhealthy => Status::internal(self.to_string()),
            Self::InvalidVerb => Status::invalid_argument(self.to_string()),
            Self::Send { source, .. } if source.is_too_large() => {
                Status::resource_exhausted(self.to_string())
            }
            Self::Unfinished(_) => Status::resource_exhausted(self.to_string()),
            _ => Status::internal(format!("error invoking app channel: {self}")),
        }
    }
}

/// No pings to a local app: it cannot vanish unnoticed by the kernel.
fn keep_alive(host: &str) -> Option<KeepAlive> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let here = match bare.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    };
    (!here).then_some(KeepAlive::OF_SERVERS)
}

impl AppChannel {
    /// A channel to the app that `config` describes; `None` without app port. It dials on first use.
    pub fn build(
        config: &App,
        health: Health,
        max_body: Option<usize>,
        metrics: Arc<SidecarMetrics>,
        middlewares: Arc<Middlewares>,
    ) -> Option<Self> {
        if config.port == 0 {
            return None;
        }
        let host = &config.address;
        let address = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]:{}", config.port)
        } else {
            format!("{host}:{}", config.port)
        };
        let connect_timeout = match config.protocol {
            AppProtocol::Grpc | AppProtocol::Grpcs => GRPC_CONNECT_TIMEOUT,
            AppProtocol::Http | AppProtocol::Https | AppProtocol::H2c => CONNECT_TIMEOUT,
        };
        let dialer = |alpn: &[&[u8]]| match config.protocol {
            AppProtocol::Https | AppProtocol::Grpcs => Dialer::tls(
                address.as_str(),
                unverified_config(alpn),
                tls::server_name(host),
                connect_timeout,
            ),
            _ => Dialer::plain(address.as_str(), connect_timeout),
        };
        let transport = match config.protocol {
            AppProtocol::Http | AppProtocol::Https => Transport::H1(H1Pool::new(dialer(&[b"http/1.1"]))),
            AppProtocol::H2c => Transport::H2(H2Pool::new(dialer(&[]), keep_alive(host))),
            AppProtocol::Grpc | AppProtocol::Grpcs => {
                Transport::Grpc(H2Pool::new(dialer(&[b"h2"]), keep_alive(host)))
            }
        };
        Some(Self {
            transport,
            authority: HeaderValue::try_from(address.as_str())
                .unwrap_or_else(|_| HeaderValue::from_static("localhost")),
            address,
            token: config.api_token.as_deref().and_then(sensitive),
            permits: config.max_concurrency.map(|n| Arc::new(Semaphore::new(n))),
            max_concurrency: config.max_concurrency,
            health,
            reach: Reach::new(config.protocol),
            max_body: max_body.unwrap_or(usize::MAX),
            metrics,
            middlewares,
        })
    }

    /// Closes the HTTP/2 connections, which have tasks.
    pub async fn close(&self) {
        match &self.transport {
            Transport::H1(_) => {}
            Transport::H2(pool) | Transport::Grpc(pool) => pool.close().await,
        }
    }

    /// `host:port` of the app.
    #[inline]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Most concurrent calls of the app; `None` means no limit.
    #[inline]
    pub fn max_concurrency(&self) -> Option<usize> {
        self.max_concurrency
    }

    /// The app's health.
    #[inline]
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Whether the app speaks gRPC.
    #[inline]
    pub fn is_grpc(&self) -> bool {
        matches!(self.transport, Transport::Grpc(_))
    }

    /// The token that the app expects from the sidecar.
    #[inline]
    pub fn token(&self) -> Option<&HeaderValue> {
        self.token.as_ref()
    }

    /// Waits for a concurrency permit of the app.
    ///
    /// # Errors
    /// [`AppError::Unhealthy`].
    pub async fn turn(&self) -> Result<Turn, AppError> {
        self.admit().await.map(Turn)
    }

    async fn admit(&self) -> Result<Option<OwnedSemaphorePermit>, AppError> {
        if !self.health.is_healthy() {
            return Err(AppError::Unhealthy);
        }
        match &self.permits {
            // The semaphore is never closed, so a permit always becomes available.
            Some(permits) => Ok(Arc::clone(permits).acquire_owned().await.ok()),
            None => Ok(None),
        }
    }

    /// Calls a method of the app. Any response is `Ok`.
    ///
    /// # Errors
    /// [`AppError`] if there is no response.
    pub fn invoke(&self, call: Call) -> impl Future<Output = Result<Reply, AppError>> + Send + '_ {
        self.answer(None, call)
    }

    /// Like `invoke`, with a concurrency permit already taken.
    ///
    /// # Errors
    /// As [`AppChannel::invoke`].
    pub fn invoke_in(
        &self,
        turn: Turn,
        call: Call,
    ) -> impl Future<Output = Result<Reply, AppError>> + Send + '_ {
        self.answer(Some(turn), call)
    }

    // One future for both, because futures are copied each time they are passed on.
    async fn answer(&self, turn: Option<Turn>, call: Call) -> Result<Reply, AppError> {
        let Turn(permit) = match turn {
            Some(turn) => turn,
            None => self.turn().await?,
        };
        let mut reply = match &self.transport {
            Transport::Grpc(pool) => Box::pin(grpc::on_invoke(self, pool, call)).await?,
            _ => http::send(self, call).await?,
        };
        if let Some(permit) = permit {
            reply.body = reply.body.hold(permit);
        }
        Ok(reply)
    }

    /// Checks the app's health: `GET path` returns 2xx, or `AppCallbackHealthCheck` returns OK.
    ///
    /// # Errors
    /// Why the app counts as unhealthy.
    pub async fn health_check(&self, path: &str) -> Result<(), String> {
        let started = Instant::now();
        match &self.transport {
            Transport::Grpc(pool) => {
                let result = grpc::health_check(self, pool).await;
                let code = result.as_ref().map_or_else(|s| s.code(), |()| Code::Ok);
                self.metrics.grpc_health_probe(code, started.elapsed());
                result.map_err(|status| status.message().to_owned())
            }
            Transport::H1(_) | Transport::H2(_) => {
                let result = http::health_check(self, path).await;
                self.metrics
                    .http_health_probe(*result.as_ref().unwrap_or(&500), started.elapsed());
                match result {
                    Ok(status) if (200..300).contains(&status) => Ok(()),
                    Ok(status) => Err(format!("the app answered {status} to GET {path}")),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }

    /// Forwards a gRPC request of any service to the app unchanged.
    ///
    /// # Errors
    /// The status for the caller.
    pub async fn proxy(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let Transport::Grpc(pool) = &self.transport else {
            return Err(Status::new(
                Code::Unavailable,
                "cannot proxy a gRPC call: the app does not speak gRPC (see --app-protocol)",
            ));
        };
        let permit = self.admit().await.map_err(|e| e.status())?;
        let response = self.reach.noted(pool.send(request).await);
        let response = response.map_err(|error| error.unanswered())?;
        Ok(match permit {
            Some(permit) => response.map(|body| body.hold(permit)),
            None => response,
        })
    }
}

/// A concurrency permit of the app.
#[derive(Debug)]
pub struct Turn(Option<OwnedSemaphorePermit>);

/// A header value that is excluded from logs and compression tables.
pub fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
