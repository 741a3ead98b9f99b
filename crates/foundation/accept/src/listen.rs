//! Listening on addresses given by flags, for all servers of the control plane.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpListener, lookup_host};

use crate::Limits;

/// Connection limits of each operator endpoint (health, metrics and similar).
pub const ENDPOINT_LIMITS: Limits = Limits {
    connections: 256,
    per_source: 64,
};

/// A listen address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Host name or address; empty means all addresses.
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
}

impl Listen {
    /// A port on all addresses.
    pub fn everywhere(port: u16) -> Self {
        Self {
            host: String::new(),
            port,
        }
    }
}

/// A bound server that does not accept yet.
#[derive(Debug)]
pub struct Server {
    /// The socket that accepts connections.
    pub listener: TcpListener,
    address: SocketAddr,
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("the {server} server cannot listen on {address} (--{flag})")]
pub struct BindError {
    /// The server.
    pub server: &'static str,
    /// Requested host and port.
    pub address: String,
    /// The flag that sets the port.
    pub flag: &'static str,
    /// The operating system's error.
    pub source: io::Error,
}

impl BindError {
    /// The remedy for the operator.
    fn remedy(&self) -> &'static str {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => "give another port, or stop the process that uses it",
            io::ErrorKind::PermissionDenied => "give a port from 1024 on",
            _ => "give an address of this machine",
        }
    }
}

/// All bind errors of a process with causes and remedies, one per line.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct BindErrors(Vec<BindError>);

fn lines(errors: &[BindError]) -> String {
    let lines = errors
        .iter()
        .map(|error| format!("{error}: {} ({})", error.source, error.remedy()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Binds the servers of one process and collects the errors, so that all are reported together.
#[derive(Debug, Default)]
pub struct Ports {
    failed: Vec<BindError>,
}

impl Ports {
    /// Like [`Server::bind`]; `None` on failure.
    pub async fn bind(&mut self, name: &'static str, flag: &'static str, listen: &Listen) -> Option<Server> {
        match Server::bind(name, flag, listen).await {
            Ok(server) => Some(server),
            Err(error) => {
                self.failed.push(error);
                None
            }
        }
    }

    /// The required servers of the process.
    ///
    /// # Errors
    /// All bind errors, including those of optional servers.
    pub fn all<T>(self, servers: Option<T>) -> Result<T, BindErrors> {
        match servers {
            Some(servers) if self.failed.is_empty() => Ok(servers),
            _ => Err(BindErrors(self.failed)),
        }
    }
}

impl Server {
    /// Binds a server; `flag` is the flag of its port.
    ///
    /// # Errors
    /// If the address is in use, or not local.
    pub async fn bind(name: &'static str, flag: &'static str, listen: &Listen) -> Result<Self, BindError> {
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

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
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
    // Prefers an IPv4 address, as Go programs do.
    let mut addresses: Vec<SocketAddr> = lookup_host((host, listen.port)).await?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    TcpListener::bind(addresses.as_slice()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reports_all_bind_errors() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = taken.local_addr().unwrap().port();
        let here = |port| Listen {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let elsewhere = Listen {
            host: "192.0.2.1".to_owned(),
            port: 0,
        };
        let mut ports = Ports::default();
        let grpc = ports.bind("gRPC", "port", &here(port)).await;
        let health = ports.bind("health", "healthz-port", &here(0)).await;
        let metrics = ports.bind("metrics", "metrics-port", &elsewhere).await;
        assert!(grpc.is_none() && health.is_some() && metrics.is_none());
        let told = ports.all(health).unwrap_err().to_string();
        let lines: Vec<&str> = told.lines().collect();
        let [grpc, metrics] = lines[..] else {
            panic!("{told}")
        };
        let wanted = format!("the gRPC server cannot listen on 127.0.0.1:{port} (--port): ");
        assert!(
            grpc.starts_with(&wanted)
                && grpc.ends_with("(give another port, or stop the process that uses it)")
        );
        assert!(metrics.starts_with("the metrics server cannot listen on 192.0.2.1:0 (--metrics-port): "));
        assert!(metrics.ends_with("(give an address of this machine)"), "{told}");
    }
}
