//! Identifies the client of a request: the remote address, or the address forwarded by a trusted proxy.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};

pub(super) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Stands for clients on a Unix socket.
const UNIX: &str = "unix";

/// Proxies whose forwarded addresses are trusted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Proxies {
    networks: Vec<Network>,
    unix: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    /// Prefix length in bits.
    prefix: u32,
}

impl Proxies {
    /// Parses comma-separated addresses and networks (`10.0.0.0/8`); `unix` stands for clients on a Unix
    /// socket.
    ///
    /// # Errors
    /// The invalid part and the expected form.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut proxies = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if part.eq_ignore_ascii_case(UNIX) {
                proxies.unix = true;
            } else {
                let network = Network::parse(part).ok_or_else(|| {
                    format!(
                        "{part:?} is neither an IP address nor a network like 10.0.0.0/8 or fd00::/8, nor {UNIX:?}; \
                         separate several by commas"
                    )
                })?;
                proxies.networks.push(network);
            }
        }
        Ok(proxies)
    }

    fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address))
    }

    /// The client's address: the last forwarded address that is not a proxy, or else the remote address.
    /// `None` for a client without an address.
    pub(super) fn client(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<IpAddr> {
        let trusted = peer.map_or(self.unix, |peer| self.contain(peer));
        let named = if trusted { self.forwarded(headers) } else { None };
        named.or(peer).map(client_prefix)
    }

    /// An invalid address ends the list, because its author could have forged the rest.
    fn forwarded(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let values: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
        let mut nearest = None;
        let lists = values
            .into_iter()
            .rev()
            .map(|value| value.to_str().unwrap_or_default());
        for written in lists.flat_map(|list| list.rsplit(',')) {
            let Some(address) = address(written.trim()) else {
                return nearest;
            };
            nearest = Some(address);
            if !self.contain(address) {
                return nearest;
            }
        }
        nearest.or_else(|| address(headers.get(REAL_IP)?.to_str().ok()?.trim()))
    }
}

/// Some proxies append the port.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port)
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address = address.parse::<IpAddr>().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(most), |prefix| prefix.parse().ok())?;
        (prefix <= most).then_some(Self { address, prefix })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let differ = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u32::from(own) ^ u32::from(other)).leading_zeros(),
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own) ^ u128::from(other)).leading_zeros(),
            _ => return false,
        };
        differ >= self.prefix
    }
}

/// An IPv6 network belongs to one client.
fn client_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            Ipv6Addr::from(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(proxies: &str, headers: &[(HeaderName, &str)], peer: Option<&str>) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value.parse().unwrap());
        }
        let proxies = Proxies::parse(proxies).unwrap();
        let client = proxies.client(&map, peer.map(|peer| peer.parse().unwrap()));
        client.map(|client| client.to_string())
    }

    #[test]
    fn identifies_client_by_connection() {
        assert_eq!(known("", &[], None), None);
        for (peer, expected) in [
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(known("", &[], Some(peer)).unwrap(), expected);
            let said = [(FORWARDED_FOR, "1.1.1.1"), (REAL_IP, "2.2.2.2")];
            for proxies in ["", "10.0.0.2", "192.168.0.0/16, fd00::/8", "unix"] {
                assert_eq!(known(proxies, &said, Some(peer)).unwrap(), expected, "{proxies}");
            }
        }
    }

    #[test]
    fn trusts_forwarded_address_from_proxies_only() {
        let peer = Some("::ffff:10.0.0.9");
        for (proxies, headers, expected) in [
            ("10.0.0.0/8", &[(FORWARDED_FOR, "1.1.1.1")][..], "1.1.1.1"),
            (
                "10.0.0.0/8",
                &[(FORWARDED_FOR, "1.1.1.1:99, [::ffff:10.0.0.3]:1")],
                "1.1.1.1",
            ),
            (
                "10.0.0.9",
                &[(FORWARDED_FOR, "6.6.6.6, 1.1.1.1, 10.0.0.9")],
                "1.1.1.1",
            ),
            (
                "10.0.0.0/8",
                &[(FORWARDED_FOR, "6.6.6.6, 1.1.1.1"), (FORWARDED_FOR, "10.0.0.7")],
                "1.1.1.1",
            ),
            ("10.0.0.0/8", &[(FORWARDED_FOR, "10.0.0.3, 10.0.0.7")], "10.0.0.3"),
            ("10.0.0.0/8", &[(FORWARDED_FOR, "1.1.1.1, somebody")], "10.0.0.9"),
            ("10.0.0.0/8", &[(FORWARDED_FOR, "somebody, 10.0.0.7")], "10.0.0.7"),
            ("10.0.0.0/8", &[(REAL_IP, "1.1.1.1")], "1.1.1.1"),
            (
                "10.0.0.0/8",
                &[(REAL_IP, "1.1.1.1"), (FORWARDED_FOR, "2.2.2.2")],
                "2.2.2.2",
            ),
            ("0.0.0.0/0", &[], "10.0.0.9"),
        ] {
            assert_eq!(known(proxies, headers, peer).unwrap(), expected, "{headers:?}");
        }
        let said = [(FORWARDED_FOR, "1.1.1.1")];
        assert_eq!(known("unix", &said, None).unwrap(), "1.1.1.1");
        assert_eq!(known("0.0.0.0/0", &said, None), None);
    }

    #[test]
    fn names_invalid_network() {
        for wrong in [
            "10.0.0.0/33",
            "::/129",
            "10.0.0",
            "proxy",
            "10.0.0.0/",
            "10.0.0.0/-1",
        ] {
            let error = Proxies::parse(&format!("10.0.0.1, {wrong}")).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        assert_eq!(Proxies::parse(" , ").unwrap(), Proxies::default());
    }
}
