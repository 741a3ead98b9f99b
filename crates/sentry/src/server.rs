//! Listening, the same for all servers of the process.

pub(crate) mod connection;
pub(crate) mod lifetime;
pub(crate) mod owner;
pub(crate) mod plain;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use outrigger_accept::Limits;
use tokio::net::{TcpListener, lookup_host};

use crate::config::Listen;

/// Connections of the health, the metrics and the OIDC server, each.
pub(crate) const ENDPOINT_LIMITS: Limits = Limits {
    connections: 256,
    per_source: 64,
};

/// A bound server that does not serve yet.
#[derive(Debug)]
pub(crate) struct Server {
    pub listener: TcpListener,
    address: SocketAddr,
}

/// A server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("the {server} server cannot listen on {address} (--{flag})")]
pub struct BindError {
    /// The server.
    pub server: &'static str,
    /// Host and port asked for.
    pub address: String,
    /// The flag that sets the port.
    pub flag: &'static str,
    /// Why.
    pub source: io::Error,
}

impl Server {
    /// Binds a server; `flag` is the one that sets its port.
    pub(crate) async fn bind(
        name: &'static str,
        flag: &'static str,
        listen: &Listen,
    ) -> Result<Self, BindError> {
        let bound = async {
            let listener = bind(listen).await?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|source| BindError {
            server: name,
            address: format!(
                "{}:{}",
                if listen.host.is_empty() { "*" } else { &listen.host },
                listen.port
            ),
            flag,
            source,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn bind(listen: &Listen) -> io::Result<TcpListener> {
    if listen.host.is_empty() {
        return match TcpListener::bind((Ipv6Addr::UNSPECIFIED, listen.port)).await {
            // Some systems have no IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, listen.port)).await
            }
            bound => bound,
        };
    }
    let host = listen.host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return TcpListener::bind((address, listen.port)).await;
    }
    // Of several addresses an IPv4 one is taken, as Go programs do.
    let mut addresses: Vec<SocketAddr> = lookup_host((host, listen.port)).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    TcpListener::bind(addresses.as_slice()).await
}
