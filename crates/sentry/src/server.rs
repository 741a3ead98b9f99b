//! Listening, accepting and draining, the same for all servers of the process.

pub(crate) mod connection;
pub(crate) mod plain;

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream, lookup_host},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::config::Listen;

/// Most connections of one server at a time; more wait in the system's queue.
const MAX_CONNECTIONS: usize = 4096;
/// Pause after a failed accept: the usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound server that does not serve yet.
#[derive(Debug)]
pub(crate) struct Server {
    name: &'static str,
    listener: TcpListener,
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
            Ok(Self {
                name,
                listener,
                address,
            })
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

    /// Hands connections to `handle` until told to stop, then waits for those that are open;
    /// `handle` ends a connection some time after the token it is given is cancelled.
    pub(crate) async fn serve<F, C>(self, drain: CancellationToken, handle: F)
    where
        F: Fn(TcpStream, CancellationToken) -> C,
        C: Future<Output = ()> + Send + 'static,
    {
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let accept = async {
                let slot = slots.clone().acquire_owned().await;
                (slot, self.listener.accept().await)
            };
            let (slot, accepted) = tokio::select! {
                () = drain.cancelled() => break,
                accepted = accept => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Only a hint to the kernel.
                    let _ = stream.set_nodelay(true);
                    let connection = handle(stream, drain.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(target: "dapr.sentry", "The {} server cannot accept: {error}", self.name);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        connections.close();
        connections.wait().await;
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
