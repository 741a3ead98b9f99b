//! `daprd --wait`: asks a sidecar whether it is ready.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_millis(500);

/// Whether the sidecar on this local port answers 204 to `GET /v1.0/healthz/outbound`.
pub fn is_outbound_ready(http_port: u16) -> bool {
    let Ok(addresses) = ("localhost", http_port).to_socket_addrs() else {
        return false;
    };
    addresses.into_iter().any(|address| ask(address).unwrap_or(false))
}

fn ask(address: std::net::SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream
        .write_all(b"GET /v1.0/healthz/outbound HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(&head == b"HTTP/1.1 204")
}
