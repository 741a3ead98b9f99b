//! Determines which local user owns a connection.

use std::net::SocketAddr;

/// Whether the other end belongs to a process of this user or of root, both of which can read the authority's
/// key anyway. `peer` and `local` are the ends of a connection within this machine.
#[cfg(target_os = "linux")]
pub(crate) fn is_own(peer: SocketAddr, local: SocketAddr) -> bool {
    match table::owner(peer, local) {
        Ok(Some(owner)) => owner == 0 || owner == rustix::process::geteuid().as_raw(),
        Ok(None) => false,
        Err(error) => {
            tracing::warn!(target: "dapr.sentry", "cannot determine the owner of the connection from {peer}: {error}");
            false
        }
    }
}

/// Other systems lack this information: any local peer counts as the same user.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_own(_peer: SocketAddr, _local: SocketAddr) -> bool {
    true
}

#[cfg(target_os = "linux")]
mod table {
    use std::fmt::Write as _;
    use std::fs::File;
    use std::io::{self, BufRead, BufReader, Read as _};
    use std::net::{IpAddr, SocketAddr};

    /// Maximum number of bytes read from the system's connection table.
    const MAX_TABLE: u64 = 64 << 20;

    /// The user whose socket is bound to `from` and connected to `to`.
    pub(super) fn owner(from: SocketAddr, to: SocketAddr) -> io::Result<Option<u32>> {
        let (from_ip, to_ip) = (from.ip().to_canonical(), to.ip().to_canonical());
        let ports = (from.port(), to.port());
        if let (IpAddr::V4(from), IpAddr::V4(to)) = (from_ip, to_ip) {
            let found = find_owner(
                "/proc/net/tcp",
                written(&from.octets(), ports.0),
                written(&to.octets(), ports.1),
            )?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let six = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let (from, to) = (six(from_ip).octets(), six(to_ip).octets());
        find_owner("/proc/net/tcp6", written(&from, ports.0), written(&to, ports.1))
    }

    /// An end of a connection as in the table: 4-byte words in native byte order.
    fn written(ip: &[u8], port: u16) -> String {
        let mut text = String::new();
        for word in ip.as_chunks::<4>().0 {
            let _infallible = write!(text, "{:08X}", u32::from_ne_bytes(*word));
        }
        let _infallible = write!(text, ":{port:04X}");
        text
    }

    fn find_owner(table: &str, from: String, to: String) -> io::Result<Option<u32>> {
        let file = match File::open(table) {
            // The system has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        for line in BufReader::new(file.take(MAX_TABLE)).lines().skip(1) {
            let line = line?;
            // Number, local and remote address, state, queues, timer, retransmissions, user.
            let mut fields = line.split_whitespace().skip(1);
            if fields.next() == Some(&from) && fields.next() == Some(&to) {
                return Ok(fields.nth(4).and_then(|user| user.parse().ok()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// Set for a copy of this test that connects as another user.
    const PORT: &str = "SENTRY_TEST_CONNECTS_TO";

    fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
        (stream.peer_addr().unwrap(), stream.local_addr().unwrap())
    }

    #[test]
    fn finds_connections_of_own_user() {
        for (listens, dials) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::ffff:127.0.0.1"),
        ] {
            // IPv6 may be missing.
            let Ok(listener) = TcpListener::bind(listens) else {
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((dials, port)).unwrap();
            let (peer, local) = ends(&listener.accept().unwrap().0);
            let own = rustix::process::geteuid().as_raw();
            assert_eq!(table::owner(peer, local).unwrap(), Some(own), "{listens} {dials}");
            assert!(is_own(peer, local));
            drop(client);
            let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
            assert!(!is_own(nobody, local), "who has no connection has no user");
        }
    }

    #[test]
    fn distinguishes_other_users() {
        if let Ok(port) = std::env::var(PORT) {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
            let _until_the_end = std::io::Read::read(&mut stream, &mut [0]);
            return;
        }
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Copied to a path that any user can execute.
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let binary = folder.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
        let mut other = Command::new(&binary)
            .args(["--exact", "server::owner::tests::distinguishes_other_users"])
            .env(PORT, listener.local_addr().unwrap().port().to_string())
            .uid(65_534)
            .current_dir("/")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let (peer, local) = ends(&stream);
        assert_eq!(table::owner(peer, local).unwrap(), Some(65_534));
        assert!(!is_own(peer, local));
        drop(stream);
        assert!(other.wait().unwrap().success());
    }
}
