//! Addresses of sidecars.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
};

/// Host and port of another sidecar's internal gRPC server. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address {
    host: Arc<str>,
    port: u16,
}

impl Address {
    /// Builds an address from a host name or IP address (IPv6 with or without brackets) and a port.
    pub fn new(host: &str, port: u16) -> Self {
        let bare = host
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .unwrap_or(host);
        Self {
            host: Arc::from(bare),
            port,
        }
    }

    /// Host name or IP address; IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The IP address, or `None` for a host name.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// The socket address, or `None` for a host name, which needs a DNS lookup.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.port))
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self {
            host: Arc::from(addr.ip().to_string()),
            port: addr.port(),
        }
    }
}

/// A text that is not `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address of the form HOST:PORT")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || AddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        if host.is_empty() {
            return Err(bad());
        }
        Ok(Self::new(host, port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_all_forms() {
        for (text, host, printed) in [
            ("10.0.0.1:50002", "10.0.0.1", "10.0.0.1:50002"),
            ("[fd00::2]:50002", "fd00::2", "[fd00::2]:50002"),
            ("fd00::2:50002", "fd00::2", "[fd00::2]:50002"),
            ("x-dapr.ns.svc:50002", "x-dapr.ns.svc", "x-dapr.ns.svc:50002"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.port()), (host, 50002));
            assert_eq!(address.to_string(), printed);
        }
        for text in ["", "host", ":1", "host:", "host:70000", "host:x"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn host_names_have_no_socket_address() {
        assert!(Address::new("[::1]", 1).socket_addr().is_some());
        assert!(Address::new("localhost", 1).socket_addr().is_none());
    }
}
