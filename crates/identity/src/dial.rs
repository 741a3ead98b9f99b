//! One connection to the authority, for one request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use outrigger_wire::sentry::v1::ca_client::CaClient;
use outrigger_wire::sentry::v1::{SignCertificateRequest, SignCertificateResponse};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::bundle::TrustAnchors;
use crate::id::SpiffeId;
use crate::identity::{anonymous_client_config, server_name};
use crate::verify::{Expect, PeerError};

/// How long one attempt knocks at a closed port; less than the time an attempt has.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Between two knocks.
const PAUSE: Duration = Duration::from_millis(50);
/// Port when the address names none.
const DEFAULT_PORT: u16 = 443;

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    #[error("{0}")]
    Connect(String),
    #[error("{}: {}", .0.code(), .0.message())]
    Status(Status),
    #[error("no answer in time")]
    Timeout,
}

impl AttemptError {
    /// Whether another attempt can help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout => true,
            // A status with a source was made here, because the connection broke.
            Self::Status(status) => {
                matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
                    || status.source().is_some()
            }
        }
    }

    /// What to do about it.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Status(status) => match status.code() {
                Code::PermissionDenied => {
                    "check the token sent (DAPR_SENTRY_TOKEN_FILE, or what Kubernetes mounts), and that it was \
                     issued to this app id and namespace"
                }
                Code::InvalidArgument => "check the token validators configured in sentry",
                _ => "see the log of sentry",
            },
            Self::Connect(_) | Self::Timeout => "check that sentry is healthy",
        }
    }
}

/// Where the authority is, and how it proves to be the authority.
pub(crate) struct Sentry {
    host: Arc<str>,
    port: u16,
    tls: Arc<ClientConfig>,
}

impl Sentry {
    /// `address` is `host:port`; an IPv6 address stands in brackets.
    pub(crate) fn new(address: &str, id: SpiffeId, anchors: TrustAnchors) -> Result<Self, String> {
        let (host, port) = split(address)?;
        Ok(Self {
            host: host.into(),
            port,
            tls: anonymous_client_config(anchors, Expect::Exact(id)),
        })
    }

    /// Connects, has `request` signed, and closes the connection.
    pub(crate) async fn sign(
        &self,
        request: SignCertificateRequest,
    ) -> Result<SignCertificateResponse, AttemptError> {
        let channel = self
            .connect()
            .await
            .map_err(|error| AttemptError::Connect(chain(&*error)))?;
        let response = CaClient::new(channel).sign_certificate(request).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(AttemptError::Status)
    }

    async fn connect(&self) -> Result<Channel, Box<dyn Error + Send + Sync>> {
        let (host, port, tls) = (Arc::clone(&self.host), self.port, Arc::clone(&self.tls));
        let authority = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let connector = tower::service_fn(move |_| {
            let (host, tls) = (Arc::clone(&host), Arc::clone(&tls));
            async move {
                let tcp = reach(&host, port).await?;
                tcp.set_nodelay(true)?;
                let stream = TlsConnector::from(tls).connect(server_name(&host), tcp).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        // TLS happens in the connector; only the request itself should say `https`.
        let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
            .origin(format!("https://{authority}").parse()?);
        Ok(endpoint.connect_with_connector(connector).await?)
    }
}

/// Connects; while the port is closed, the authority may be about to start.
async fn reach(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let given_up = tokio::time::Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((host, port)).await {
            Err(error)
                if error.kind() == std::io::ErrorKind::ConnectionRefused
                    && tokio::time::Instant::now() < given_up =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Host (without brackets) and port of `address`.
fn split(address: &str) -> Result<(&str, u16), String> {
    let address = address.strip_prefix("dns:///").unwrap_or(address);
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or("a closing bracket is missing")?,
        None => address.split_at(address.find(':').unwrap_or(address.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
        None if port.is_empty() => DEFAULT_PORT,
        None => return Err(format!("{port:?} follows the host")),
    };
    match host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter == '/') {
        true => Err("there is no host".to_owned()),
        false => Ok((host, port)),
    }
}

/// The messages of an error and its sources, each one once; for a refused peer, the reason alone.
fn chain(error: &(dyn Error + 'static)) -> String {
    if let Some(refused) = PeerError::find(error) {
        return refused.to_string();
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(split("localhost:50001"), Ok(("localhost", 50001)));
        assert_eq!(split("dns:///sentry.ns.svc:443"), Ok(("sentry.ns.svc", 443)));
        assert_eq!(split("sentry"), Ok(("sentry", 443)));
        assert_eq!(split("[::1]:50001"), Ok(("::1", 50001)));
        assert_eq!(split("[::1]"), Ok(("::1", 443)));
        for bad in [
            "",
            ":50001",
            "host:",
            "host:x",
            "host:70000",
            "[::1",
            "[::1]x",
            "::1:5",
            "http://host:1",
            "a b:1",
        ] {
            assert!(split(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_another_attempt_can_help() {
        let status = |code| AttemptError::Status(Status::new(code, ""));
        assert!(AttemptError::Timeout.is_transient());
        assert!(status(Code::Unavailable).is_transient());
        assert!(status(Code::ResourceExhausted).is_transient());
        assert!(!status(Code::PermissionDenied).is_transient());
        assert!(!status(Code::Unknown).is_transient());
    }
}
