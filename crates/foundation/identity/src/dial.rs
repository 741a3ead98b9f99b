//! One connection to the authority per request.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use outrigger_wire::sentry::v1::ca_client::CaClient;
use outrigger_wire::sentry::v1::{SignCertificateRequest, SignCertificateResponse};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::address::Address;
use crate::bundle::TrustAnchors;
use crate::channel::endpoint;
use crate::id::SpiffeId;
use crate::identity::{anonymous_client_config, server_name};
use crate::verify::{Expect, PeerError};

/// How long one attempt retries a closed port; shorter than the attempt's timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);
/// Pause between retries.
const PAUSE: Duration = Duration::from_millis(50);
/// Why an attempt failed.
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
    /// Whether a retry may help.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout => true,
            // A status with a source is local: the connection broke.
            Self::Status(status) => {
                matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
                    || status.source().is_some()
            }
        }
    }

    /// Whether the issuer of Dapr's sentry failed, which it reports with this text.
    pub(crate) fn is_of_issuer(&self) -> bool {
        let Self::Status(status) = self else {
            return false;
        };
        status.code() == Code::Internal && status.message() == "failed to sign certificate"
    }

    /// The remedy.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Status(status) => match status.code() {
                // Dapr's sentry sends the same text. A sentry reads the trust domain of an app from its Configuration.
                Code::PermissionDenied if status.message().contains("failed to get configuration") => {
                    "check that the Configuration of the annotation dapr.io/config exists in the pod's namespace"
                }
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

/// Address and expected identity of the authority.
pub(crate) struct Sentry {
    address: Address,
    tls: Arc<ClientConfig>,
}

impl Sentry {
    /// `address` has the form of [`Address::parse`].
    pub(crate) fn new(address: &str, id: SpiffeId, anchors: TrustAnchors) -> Result<Self, String> {
        Ok(Self {
            address: Address::parse(address)?,
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

    /// Presents no identity. The connection ends with the attempt, long before any certificate expires.
    async fn connect(&self) -> Result<Channel, Box<dyn Error + Send + Sync>> {
        let (address, tls) = (self.address.clone(), Arc::clone(&self.tls));
        let connector = tower::service_fn(move |_| {
            let (address, tls) = (address.clone(), Arc::clone(&tls));
            async move {
                let tcp = reach(&address).await?;
                tcp.set_nodelay(true)?;
                let stream = TlsConnector::from(tls)
                    .connect(server_name(&address.host), tcp)
                    .await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        Ok(endpoint(&self.address)?.connect_with_connector(connector).await?)
    }
}

/// Connects. Retries a closed port, because the authority may be starting.
async fn reach(address: &Address) -> std::io::Result<TcpStream> {
    let given_up = tokio::time::Instant::now() + CONNECT_TIMEOUT;
    loop {
        match TcpStream::connect((&*address.host, address.port)).await {
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

/// The distinct messages of an error and its sources. For a rejected peer, only the reason.
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
    fn classifies_transient_errors() {
        let status = |code| AttemptError::Status(Status::new(code, ""));
        assert!(AttemptError::Timeout.is_transient());
        assert!(status(Code::Unavailable).is_transient());
        assert!(status(Code::ResourceExhausted).is_transient());
        assert!(!status(Code::PermissionDenied).is_transient());
        assert!(!status(Code::Unknown).is_transient());
    }
}
