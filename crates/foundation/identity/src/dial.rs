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
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::address::Address;
use crate::bundle::TrustAnchors;
use crate::channel::endpoint;
use crate::id::SpiffeId;
use crate::identity::{anonymous_client_config, server_name};
use crate::verify::{Expect, PeerError};

/// How long one attempt tries to connect to a closed port; less than the time an attempt has.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(2500);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
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
    address: Address,
    tls: Arc<ClientConfig>,
}

impl Sentry {
    /// `address` as [`Address::parse`] reads it.
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

    /// No identity is presented, and the connection lives for one attempt, which is over long before any certificate.
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

/// Connects; while the port is closed, the authority may be about to start.
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
    fn classifies_transient_errors() {
        let status = |code| AttemptError::Status(Status::new(code, ""));
        assert!(AttemptError::Timeout.is_transient());
        assert!(status(Code::Unavailable).is_transient());
        assert!(status(Code::ResourceExhausted).is_transient());
        assert!(!status(Code::PermissionDenied).is_transient());
        assert!(!status(Code::Unknown).is_transient());
    }
}
