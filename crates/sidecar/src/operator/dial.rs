//! The way to the operator: mutual TLS with this workload's identity.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use outrigger_identity::{Expect, Identity, SpiffeId, server_name};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// Time to connect, TLS included.
const CONNECT: Duration = Duration::from_secs(5);
/// Idle streams would not notice that the other machine is gone. (Not all operators allow HTTP/2 pings.)
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(5));
/// Port when the address names none.
const DEFAULT_PORT: u16 = 443;

/// A channel that connects when it is used.
pub(super) fn channel(address: &str, identity: &Identity, id: SpiffeId) -> Result<Channel, String> {
    let uri: Uri = format!("https://{address}")
        .parse()
        .map_err(|error| format!("{error}"))?;
    let host = uri
        .host()
        .filter(|host| !host.is_empty())
        .ok_or("it has no host")?;
    let host: Arc<str> = host.trim_start_matches('[').trim_end_matches(']').into();
    let port = uri.port_u16().unwrap_or(DEFAULT_PORT);
    let tls = identity.client_config(Expect::Exact(id));
    let connector = tower::service_fn(move |_| {
        let (host, tls) = (Arc::clone(&host), Arc::clone(&tls));
        async move {
            let tcp = TcpStream::connect((&*host, port)).await?;
            tcp.set_nodelay(true)?;
            let (time, interval) = KEEP_ALIVE;
            let keep_alive = TcpKeepalive::new().with_time(time).with_interval(interval);
            SockRef::from(&tcp).set_tcp_keepalive(&keep_alive)?;
            let stream = TlsConnector::from(tls).connect(server_name(&host), tcp).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    // TLS happens in the connector; only the request itself should say `https`.
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    let endpoint = endpoint.origin(uri).connect_timeout(CONNECT);
    Ok(endpoint.connect_with_connector_lazy(connector))
}
