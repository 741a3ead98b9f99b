//! Detection of vanished peers by TCP keep-alive.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;

/// Silence before the first probe.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of probes.
const INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes before the connection is closed.
const PROBES: u32 = 3;
/// Time for data sent on an accepted connection to be acknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(60);

/// Lets the kernel close accepted connections whose peer vanished: after a minute without an answer to
/// probes or data. Connections inherit this from the listening socket.
pub fn keep_alive(listener: &TcpListener) {
    if let Err(error) = ask_for(listener) {
        tracing::debug!(target: crate::LOG, "cannot enable TCP keep-alive, vanished peers are detected late: {error}");
    }
}

/// Lets the kernel close a connection whose peer vanished: after a minute of silence, half of it with
/// unanswered probes. A live peer that does not read is not affected.
///
/// # Errors
/// If the kernel rejects an option.
pub fn probe(socket: &SockRef<'_>) -> io::Result<()> {
    let probes = TcpKeepalive::new()
        .with_time(IDLE)
        .with_interval(INTERVAL)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&probes)
}

fn ask_for(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    probe(&socket)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn probes_accepted_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        keep_alive(&listener);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), IDLE);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), INTERVAL);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), PROBES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(UNACKNOWLEDGED));
    }
}
