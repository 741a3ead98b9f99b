//! A proxy that can simulate a network partition: connections stay open, but nothing arrives.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards data between clients and a local server. It stops, with its connections, on drop.
pub struct Relay {
    pub port: u16,
    passes: watch::Sender<bool>,
    _relaying: JoinSet<()>,
}

impl Relay {
    /// A proxy for the server on this port.
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (passes, passing) = watch::channel(true);
        let mut relaying = JoinSet::new();
        relaying.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(connection(client, server, passing.clone()));
            }
        });
        Self {
            port,
            passes,
            _relaying: relaying,
        }
    }

    /// The sidecar flag for it, if the server is placement.
    pub fn placement_flag(&self) -> String {
        format!("--placement-host-address=127.0.0.1:{}", self.port)
    }

    /// Stops all data in both directions, even the end of a connection. New connections are accepted.
    pub fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// Forwards the held data and all further data.
    pub fn heal(&self) {
        self.passes.send_replace(true);
    }
}

async fn connection(client: TcpStream, server: u16, mut passes: watch::Receiver<bool>) {
    // The relay outlives its connections.
    let _ = passes.wait_for(|passes| *passes).await;
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await else {
        return;
    };
    let (client, server) = (client.into_split(), server.into_split());
    tokio::join!(
        pass(client.0, server.1, passes.clone()),
        pass(server.0, client.1, passes)
    );
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passes: watch::Receiver<bool>) {
    let mut piece = vec![0; 16384];
    loop {
        let read = from.read(&mut piece).await;
        // The relay outlives its connections.
        let _ = passes.wait_for(|passes| *passes).await;
        // Dropping the halves closes both sides.
        let Ok(count @ 1..) = read else { return };
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
