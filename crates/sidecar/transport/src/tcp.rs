//! Options of the TCP connections that a sidecar accepts and opens.

use std::io;

use outrigger_accept::probe;
use socket2::SockRef;
use tokio::net::TcpStream;

/// Disables Nagle's algorithm and enables keep-alive, so that a vanished peer is noticed.
///
/// # Errors
/// If the kernel refuses an option.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    probe(&SockRef::from(stream))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn enables_keep_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap() && socket.tcp_nodelay().unwrap());
        let [idle, interval] = [socket.tcp_keepalive_time(), socket.tcp_keepalive_interval()];
        let until_noticed = idle.unwrap() + interval.unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert_eq!(until_noticed.as_secs(), 60);
    }
}
