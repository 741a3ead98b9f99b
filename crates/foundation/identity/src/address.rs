//! Addresses of control plane servers.

use std::fmt;
use std::sync::Arc;

/// Port of an address without one.
const DEFAULT_PORT: u16 = 443;

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// A name or an IP address, without brackets.
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Address {
    /// Parses `host:port`. An IPv6 address is in brackets; a `dns:///` prefix is ignored.
    pub(crate) fn parse(address: &str) -> Result<Self, String> {
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
        if host.is_empty() || host.contains(|letter: char| letter.is_whitespace() || letter == '/') {
            return Err("the host is missing or invalid".to_owned());
        }
        Ok(Self {
            host: host.into(),
            port,
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, host, port, shown) in [
            ("localhost:50001", "localhost", 50001, "localhost:50001"),
            (
                "dns:///sentry.ns.svc:443",
                "sentry.ns.svc",
                443,
                "sentry.ns.svc:443",
            ),
            ("sentry", "sentry", 443, "sentry:443"),
            ("[::1]:50001", "::1", 50001, "[::1]:50001"),
            ("[::1]", "::1", 443, "[::1]:443"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!((&*address.host, address.port), (host, port));
            assert_eq!(address.to_string(), shown);
        }
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
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
