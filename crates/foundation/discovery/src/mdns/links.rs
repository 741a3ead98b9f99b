//! Sockets and network interfaces for multicast DNS.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    time::Duration,
};

use if_addrs::IfAddr;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;

use super::message::MAX_MESSAGE;

/// The multicast DNS port (RFC 6762, 3).
pub(super) const PORT: u16 = 5353;
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
/// RFC 6762, 11: proves to receivers that the packet is from the local link.
const HOPS: u32 = 255;
/// Maximum number of interfaces; hosts with many containers have hundreds of virtual ones.
const MAX_LINKS: usize = 32;
/// Pause after a receive error, to avoid a busy loop on a broken socket.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// No interface on this machine supports multicast.
#[derive(Debug, thiserror::Error)]
#[error(
    "no network interface can multicast (IPv4: {v4}; IPv6: {v6}); bring one up (the loopback \
     interface is enough on a single host) or choose another name resolver, for example `sqlite`, \
     under spec.nameResolution of the Configuration"
)]
pub struct NoMulticast {
    v4: io::Error,
    v6: io::Error,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Link {
    index: u32,
    /// IPv4 addresses and their masks.
    v4: Vec<(Ipv4Addr, Ipv4Addr)>,
    /// IPv6 addresses and their masks.
    v6: Vec<(Ipv6Addr, Ipv6Addr)>,
}

/// One socket per address family, joined to the group on every interface.
pub(super) struct Links {
    v4: Option<Port>,
    v6: Option<Port>,
    links: Vec<Link>,
}

struct Port {
    socket: UdpSocket,
    buffer: Box<[u8]>,
    joined: Vec<u32>,
}

impl Links {
    /// Opens the sockets. One address family suffices.
    pub(super) fn open() -> Result<Self, NoMulticast> {
        let links = list().unwrap_or_default();
        let mut this = Self {
            v4: None,
            v6: None,
            links,
        };
        let v4 = Port::open(Domain::IPV4).and_then(|port| port.join(&this.links, join_v4));
        let v6 = Port::open(Domain::IPV6).and_then(|port| port.join(&this.links, join_v6));
        match (v4, v6) {
            (Err(v4), Err(v6)) => return Err(NoMulticast { v4, v6 }),
            (v4, v6) => {
                this.v4 = v4.ok();
                this.v6 = v6.ok();
            }
        }
        Ok(this)
    }

    /// Joins on new interfaces; true if there is one.
    pub(super) fn rescan(&mut self) -> bool {
        let Ok(links) = list() else { return false };
        if links == self.links {
            return false;
        }
        let is_new = links.iter().any(|link| !self.links.contains(link));
        self.links = links;
        for (port, join) in [(&mut self.v4, join_v4 as Join), (&mut self.v6, join_v6 as Join)] {
            if let Some(port) = port {
                port.joined
                    .retain(|index| self.links.iter().any(|link| link.index == *index));
                port.join_all(&self.links, join);
            }
        }
        is_new
    }

    /// The next packet and its sender.
    pub(super) async fn receive(&mut self) -> (&[u8], SocketAddr) {
        loop {
            let (v4, v6) = (self.v4.as_mut(), self.v6.as_mut());
            let (is_v4, received) = tokio::select! {
                received = receive_on(v4) => (true, received),
                received = receive_on(v6) => (false, received),
            };
            match received {
                Ok((length, from)) => {
                    let port = if is_v4 { self.v4.as_ref() } else { self.v6.as_ref() };
                    let buffer = port.map_or(&[][..], |port| &port.buffer[..]);
                    return (&buffer[..length.min(buffer.len())], from);
                }
                Err(error) => {
                    tracing::debug!(target: "dapr.contrib", %error, "mDNS: receiving failed");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Whether a packet comes from a directly connected network. All others are ignored (RFC 6762, 11):
    /// they could divert calls or use this host as a reflector.
    pub(super) fn is_on_link(&self, from: SocketAddr) -> bool {
        match from.ip() {
            IpAddr::V4(ip) => self.links.iter().any(|link| link.reaches(ip)),
            IpAddr::V6(ip) => ip.is_unicast_link_local() || self.links.iter().any(|link| link.reaches_v6(ip)),
        }
    }

    /// Sends to one receiver.
    pub(super) async fn unicast(&self, bytes: &[u8], to: SocketAddr) {
        let port = if to.is_ipv4() { &self.v4 } else { &self.v6 };
        if let Some(port) = port
            && let Err(error) = port.socket.send_to(bytes, to).await
        {
            tracing::debug!(target: "dapr.contrib", %error, %to, "mDNS: sending failed");
        }
    }

    /// Sends to the group on every interface.
    pub(super) async fn multicast(&self, bytes: &[u8]) {
        self.multicast_v4(bytes, |_| true).await;
        self.multicast_v6(bytes, |_| true).await;
    }

    /// Sends to the group on the interface that reaches `peer`, or on all interfaces of its address family
    /// if that is unknown.
    pub(super) async fn multicast_near(&self, bytes: &[u8], peer: SocketAddr) {
        match peer {
            SocketAddr::V4(peer) => match self.links.iter().find(|link| link.reaches(*peer.ip())) {
                Some(near) => self.multicast_v4(bytes, |link| link.index == near.index).await,
                None => self.multicast_v4(bytes, |_| true).await,
            },
            SocketAddr::V6(peer) => {
                let index = peer.scope_id();
                self.multicast_v6(bytes, |link| index == 0 || link.index == index)
                    .await;
            }
        }
    }

    async fn multicast_v4(&self, bytes: &[u8], wanted: impl Fn(&Link) -> bool) {
        let Some(port) = &self.v4 else { return };
        let to = SocketAddr::V4(SocketAddrV4::new(GROUP_V4, PORT));
        for link in self.links.iter().filter(|link| wanted(link)) {
            let Some((ip, _)) = link.v4.first() else { continue };
            let sent = match SockRef::from(&port.socket).set_multicast_if_v4(ip) {
                Ok(()) => port.socket.send_to(bytes, to).await.map(drop),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                tracing::trace!(target: "dapr.contrib", %error, %ip, "mDNS: multicast failed");
            }
        }
    }

    async fn multicast_v6(&self, bytes: &[u8], wanted: impl Fn(&Link) -> bool) {
        let Some(port) = &self.v6 else { return };
        for link in self.links.iter().filter(|link| wanted(link)) {
            if !port.joined.contains(&link.index) {
                continue;
            }
            let to = SocketAddrV6::new(GROUP_V6, PORT, 0, link.index);
            if let Err(error) = port.socket.send_to(bytes, SocketAddr::V6(to)).await {
                let index = link.index;
                tracing::trace!(target: "dapr.contrib", %error, index, "mDNS: multicast failed");
            }
        }
    }
}

/// Joins the group on an interface; `None` if it has no address of the family.
type Join = fn(&SockRef<'_>, &Link) -> Option<io::Result<()>>;

impl Port {
    fn open(domain: Domain) -> io::Result<Self> {
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        // The port is shared with other sidecars and the system's responder. On Linux SO_REUSEPORT must
        // stay unset, because Dapr's sidecars do not set it.
        socket.set_reuse_address(true)?;
        #[cfg(all(unix, not(target_os = "linux")))]
        socket.set_reuse_port(true)?;
        let any: IpAddr = if domain == Domain::IPV4 {
            socket.set_multicast_loop_v4(true)?;
            socket.set_multicast_ttl_v4(HOPS)?;
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            socket.set_only_v6(true)?;
            socket.set_multicast_loop_v6(true)?;
            socket.set_multicast_hops_v6(HOPS)?;
            Ipv6Addr::UNSPECIFIED.into()
        };
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(any, PORT).into())?;
        Ok(Self {
            socket: UdpSocket::from_std(socket.into())?,
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
            joined: Vec::new(),
        })
    }

    fn join(mut self, links: &[Link], join: Join) -> io::Result<Self> {
        match self.join_all(links, join) {
            Some(error) if self.joined.is_empty() => Err(error),
            None if self.joined.is_empty() => Err(io::Error::other("no interface has an address")),
            _ => Ok(self),
        }
    }

    /// Joins on the remaining interfaces. Returns the last error.
    fn join_all(&mut self, links: &[Link], join: Join) -> Option<io::Error> {
        let socket = SockRef::from(&self.socket);
        let mut last = None;
        for link in links {
            if self.joined.contains(&link.index) {
                continue;
            }
            match join(&socket, link) {
                Some(Ok(())) => self.joined.push(link.index),
                Some(Err(error)) if error.kind() == io::ErrorKind::AddrInUse => self.joined.push(link.index),
                Some(Err(error)) => last = Some(error),
                None => {}
            }
        }
        last
    }
}

fn join_v4(socket: &SockRef<'_>, link: &Link) -> Option<io::Result<()>> {
    link.v4.first()?;
    Some(socket.join_multicast_v4_n(&GROUP_V4, &InterfaceIndexOrAddress::Index(link.index)))
}

fn join_v6(socket: &SockRef<'_>, link: &Link) -> Option<io::Result<()>> {
    link.v6.first()?;
    Some(socket.join_multicast_v6(&GROUP_V6, link.index))
}

async fn receive_on(port: Option<&mut Port>) -> io::Result<(usize, SocketAddr)> {
    match port {
        Some(port) => port.socket.recv_from(&mut port.buffer).await,
        None => std::future::pending().await,
    }
}

impl Link {
    fn reaches(&self, ip: Ipv4Addr) -> bool {
        let near = |(own, mask): &(Ipv4Addr, Ipv4Addr)| {
            own.to_bits() & mask.to_bits() == ip.to_bits() & mask.to_bits()
        };
        self.v4.iter().any(near)
    }

    fn reaches_v6(&self, ip: Ipv6Addr) -> bool {
        let near = |(own, mask): &(Ipv6Addr, Ipv6Addr)| {
            own.to_bits() & mask.to_bits() == ip.to_bits() & mask.to_bits()
        };
        self.v6.iter().any(near)
    }
}

/// The interfaces that are up, loopback last.
fn list() -> io::Result<Vec<Link>> {
    let mut links: BTreeMap<u32, (bool, Link)> = BTreeMap::new();
    for interface in if_addrs::get_if_addrs()?
        .into_iter()
        .filter(if_addrs::Interface::is_oper_up)
    {
        let Some(index) = interface.index else { continue };
        let loopback = interface.is_loopback();
        let (_, link) = links.entry(index).or_insert_with(|| {
            (
                loopback,
                Link {
                    index,
                    ..Link::default()
                },
            )
        });
        match interface.addr {
            IfAddr::V4(addr) => link.v4.push((addr.ip, addr.netmask)),
            IfAddr::V6(addr) => link.v6.push((addr.ip, addr.netmask)),
        }
    }
    let mut links: Vec<(bool, Link)> = links.into_values().collect();
    links.sort_by_key(|(loopback, link)| (*loopback, link.index));
    if links.len() > MAX_LINKS {
        // Keep loopback, which is last: it connects the sidecars of this host.
        let last = links.split_off(links.len() - 1);
        links.truncate(MAX_LINKS - 1);
        links.extend(last);
    }
    Ok(links.into_iter().map(|(_, link)| link).collect())
}
