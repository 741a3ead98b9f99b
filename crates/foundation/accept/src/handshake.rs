//! The TLS handshake of a server.

use std::{sync::Arc, time::Duration};

use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::LOG;

/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The TLS handshake; `None` if it fails, times out, or the process shuts down.
pub async fn handshake(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    drain: &CancellationToken,
) -> Option<TlsStream<TcpStream>> {
    let accept = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream));
    let outcome = tokio::select! {
        () = drain.cancelled() => return None,
        outcome = accept => outcome,
    };
    match outcome {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(target: LOG, "TLS handshake failed: {error}"),
        Err(_) => tracing::debug!(target: LOG, "TLS handshake took longer than {HANDSHAKE:?}"),
    }
    None
}
