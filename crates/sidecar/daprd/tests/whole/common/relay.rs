//! A way to a server that can be cut, as a network can: connections stay open, and nothing arrives.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Passes on what clients and a server on this machine send each other. It ends, with its connections, when dropped.
pub struct Relay {
    pub port: u16,
    passes: watch::Sender<bool>,
    _relaying: JoinSet<()>,
}

impl Relay {
    /// A way to the server on this port.
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

    /// The flag that names it to sidecars, where the server is placement.
    pub fn placement_flag(&self) -> String {
        format!("--placement-host-address=127.0.0.1:{}", self.port)
    }

    /// Nothing arrives any more, in either direction, not even the end of a connection. New ones are taken.
    pub fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// What was sent meanwhile arrives, and all that comes.
    pub fn heal(&self) {
        self.passes.send_replace(true);
    }
}

async fn connection(client: TcpStream, server: u16, mut passes: watch::Receiver<bool>) {
    // The relay is there as long as its connections.
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
        // The relay is there as long as its connections.
        let _ = passes.wait_for(|passes| *passes).await;
        // Dropping the halves tells both sides.
        let Ok(count @ 1..) = read else { return };
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}
