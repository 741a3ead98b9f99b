//! gRPC channels to the servers of the control plane, over mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::address::Address;
use crate::expiry::{UntilExpired, valid_until};
use crate::identity::{Identity, server_name};
use crate::verify::Expect;

/// Connect timeout, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// TCP keep-alive: idle time before the first probe, and the interval of probes. Some control plane servers
/// do not permit HTTP/2 pings.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(5));

/// A channel to the server at `address` (`host:port`, default port 443), whose identity must be `expect`.
///
/// It connects on use, and again after a connection has ended. A connection ends when the certificate of
/// either end expires. Calls on it fail, and the next call connects with the renewed certificate.
///
/// # Errors
/// If the address is invalid.
pub fn channel(address: &str, identity: &Identity, expect: Expect) -> Result<Channel, String> {
    let address = Address::parse(address)?;
    let endpoint = endpoint(&address)?.connect_timeout(CONNECT_TIMEOUT);
    let identity = identity.clone();
    let tls = identity.client_config(expect);
    let connector = tower::service_fn(move |_| {
        let (address, identity, tls) = (address.clone(), identity.clone(), Arc::clone(&tls));
        async move { Ok::<_, std::io::Error>(TokioIo::new(connect(&address, &identity, tls).await?)) }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// An endpoint whose connector handles TLS; the scheme `https` is for the requests only.
pub(crate) fn endpoint(address: &Address) -> Result<Endpoint, String> {
    let origin = format!("https://{address}").parse();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    Ok(endpoint.origin(origin.map_err(|error: http::uri::InvalidUri| error.to_string())?))
}

async fn connect(
    address: &Address,
    identity: &Identity,
    tls: Arc<ClientConfig>,
) -> std::io::Result<UntilExpired<TlsStream<TcpStream>>> {
    let tcp = TcpStream::connect((&*address.host, address.port)).await?;
    tcp.set_nodelay(true)?;
    let (time, interval) = KEEP_ALIVE;
    let keep_alive = TcpKeepalive::new().with_time(time).with_interval(interval);
    SockRef::from(&tcp).set_tcp_keepalive(&keep_alive)?;
    // Read before the handshake: after a renewal in between, the connection ends early rather than late.
    let own = valid_until(identity.svid().chain()).map_err(std::io::Error::other)?;
    let stream = TlsConnector::from(tls)
        .connect(server_name(&address.host), tcp)
        .await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let theirs = valid_until(chain).map_err(std::io::Error::other)?;
    Ok(UntilExpired::new(stream, own.min(theirs)))
}
