//! Options of the TCP connections that a sidecar accepts and opens.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Silence before the kernel asks a peer whether it is still there, and between two such questions.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Questions without an answer, after which a connection is closed.
const KEEP_ALIVE_PROBES: u32 = 9;

/// Makes a connection send without delay, and end when its peer has vanished.
///
/// # Errors
/// When the kernel refuses an option.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new()
        .with_time(KEEP_ALIVE)
        .with_interval(KEEP_ALIVE)
        .with_retries(KEEP_ALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn vanished_peers_are_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEP_ALIVE);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEP_ALIVE_PROBES);
    }
}
