//! The address under which other sidecars reach this machine.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// No usable address was found.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not determine the host IP address: no route and no usable network interface (set DAPR_HOST_IP)"
)]
pub struct HostAddressError;

/// The address to advertise: `DAPR_HOST_IP` if set, otherwise the source address of the default route,
/// otherwise the best address of an interface. Sends no packets.
pub fn host_address(host_ip: Option<&str>) -> Result<String, HostAddressError> {
    if let Some(given) = host_ip.filter(|ip| !ip.is_empty()) {
        return Ok(given.to_owned());
    }
    // Documentation addresses, which are routed but never answer. Connecting a UDP socket only selects the
    // route.
    let v4 = || {
        outbound(
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (Ipv4Addr::new(192, 0, 2, 1), 80).into(),
        )
    };
    let v6 = || {
        let far = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        outbound((Ipv6Addr::UNSPECIFIED, 0).into(), (far, 80).into())
    };
    v4().or_else(v6)
        .or_else(interface)
        .map(|ip| ip.to_string())
        .ok_or(HostAddressError)
}

/// Whether a listen address is local to this machine; such an address is advertised unchanged.
pub fn is_localhost(address: &str) -> bool {
    matches!(address, "localhost" | "127.0.0.1" | "[::1]" | "::1")
}

fn outbound(from: SocketAddr, to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !is_translation(*ip))
}

/// 192.0.0.0/29: the near end of IPv4 over IPv6, unreachable from elsewhere.
fn is_translation(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.octets()[..3] == [192, 0, 0] && v4.octets()[3] < 8)
}

fn interface() -> Option<IpAddr> {
    let addresses = if_addrs::get_if_addrs().ok()?.into_iter().map(|i| i.ip());
    best(addresses)
}

/// The address most likely to be reachable; the first of equals.
fn best(addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    let ranked = addresses.filter_map(|ip| rank(ip).map(|rank| (rank, ip)));
    ranked.min_by_key(|(rank, _)| Reverse(*rank)).map(|(_, ip)| ip)
}

/// Higher is better; `None` means unusable.
fn rank(ip: IpAddr) -> Option<u8> {
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_translation(ip) {
        return None;
    }
    Some(match ip {
        IpAddr::V4(v4) if v4.is_link_local() => 1,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 1,
        IpAddr::V6(v6) if v6.is_unique_local() => 2,
        IpAddr::V4(v4) if v4.is_private() || is_carrier(v4) => 3,
        IpAddr::V6(_) => 4,
        IpAddr::V4(_) => 5,
    })
}

/// 100.64.0.0/10: carrier-grade NAT addresses.
fn is_carrier(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    a == 100 && (64..128).contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_address_wins() {
        assert_eq!(host_address(Some("10.1.2.3")).unwrap(), "10.1.2.3");
    }

    #[test]
    fn prefers_better_addresses() {
        let order = ["8.8.8.8", "2600::1", "10.0.0.1", "fd00::1", "169.254.1.1"];
        let parsed: Vec<IpAddr> = order.iter().map(|a| a.parse().unwrap()).collect();
        for skip in 0..parsed.len() {
            assert_eq!(best(parsed[skip..].iter().rev().copied()), Some(parsed[skip]));
        }
        let carrier = ["fd00::1", "100.64.0.1"].map(|a| a.parse().unwrap());
        assert_eq!(best(carrier.into_iter()), Some(carrier[1]));
        let unusable = ["127.0.0.1", "::1", "192.0.0.2", "0.0.0.0", "224.0.0.1"].map(|a| a.parse().unwrap());
        assert_eq!(best(unusable.into_iter()), None);
    }

    #[test]
    fn recognizes_local_addresses() {
        assert!(
            ["localhost", "127.0.0.1", "[::1]", "::1"]
                .into_iter()
                .all(is_localhost)
        );
        assert!(!is_localhost("") && !is_localhost("127.0.0.2"));
    }
}
