//! A raw connection of an attacker.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use crate::listeners::Listener;

/// Timeout for connecting, and for the server to accept data.
const STALLED: Duration = Duration::from_secs(4);
/// Received bytes that are kept.
const KEPT: usize = 1 << 20;

/// A byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection without TLS.
pub type Raw = Either<TcpStream, UnixStream>;

/// The target of an attack.
#[derive(Clone)]
pub struct Target {
    pub listener: &'static Listener,
    pub address: SocketAddr,
    /// The Unix socket, instead of the address.
    pub socket: Option<PathBuf>,
    /// The process that listens.
    pub process: u32,
    /// The source address: each one in 127.0.0.0/8 is a separate host to the server.
    pub source: Ipv4Addr,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// A certificate request message.
    pub signing: Arc<[u8]>,
}

/// Result of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The server accepted all bytes.
    All,
    /// The server closed the connection.
    Cut,
    /// The server does not read.
    Stalled,
}

/// Data received from a server.
#[derive(Debug, Default)]
pub struct Received {
    /// The first bytes.
    pub bytes: Vec<u8>,
    /// Whether the server closed the connection.
    pub closed: bool,
    /// An error found by the attack itself.
    pub wrong: Option<String>,
}

impl Received {
    /// Result of an attack that could not connect.
    pub fn not_connected() -> Self {
        Self {
            wrong: Some("not connected".to_owned()),
            ..Self::default()
        }
    }
}

/// A connection.
pub struct Peer {
    reader: ReadHalf<Box<dyn Stream>>,
    sender: Sender,
}

impl Target {
    /// The same target, with another source address.
    pub fn from(&self, source: Ipv4Addr) -> Self {
        Self {
            source,
            ..self.clone()
        }
    }

    /// A connection without TLS.
    pub async fn raw(&self) -> std::io::Result<Raw> {
        if let Some(path) = &self.socket {
            let connecting = tokio::time::timeout(STALLED * 3, UnixStream::connect(path));
            return Ok(Either::Right(connecting.await.map_err(std::io::Error::from)??));
        }
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        let connecting = tokio::time::timeout(STALLED * 3, socket.connect(self.address));
        let stream = connecting.await.map_err(std::io::Error::from)??;
        stream.set_nodelay(true)?;
        Ok(Either::Left(stream))
    }

    /// A connection ready for HTTP.
    pub async fn connect(&self) -> std::io::Result<Peer> {
        let tcp = self.raw().await?;
        Ok(Peer::new(match &self.tls {
            None => Box::new(tcp),
            Some(tls) => {
                let connector = TlsConnector::from(Arc::clone(tls));
                let name = ServerName::try_from("localhost").unwrap();
                let shaking = tokio::time::timeout(STALLED * 3, connector.connect(name, tcp));
                Box::new(shaking.await.map_err(std::io::Error::from)??)
            }
        }))
    }
}

impl Peer {
    pub fn new(stream: Box<dyn Stream>) -> Self {
        let (reader, writer) = split(stream);
        Self {
            reader,
            sender: Sender(writer),
        }
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> Sent {
        self.sender.send(bytes).await
    }

    /// Closes the sending side.
    pub async fn finish(&mut self) {
        let _cut = tokio::time::timeout(STALLED, self.sender.0.shutdown()).await;
    }

    /// Receives until the server closes the connection, `enough` returns true, or for `limit`.
    pub async fn receive(&mut self, limit: Duration, enough: impl Fn(&[u8]) -> bool) -> Received {
        let mut received = Received::default();
        let reading = receive(&mut self.reader, &mut received, enough);
        let _late = tokio::time::timeout(limit, reading).await;
        received
    }

    /// Sends pieces while receiving; continues to receive for `limit` after the last.
    pub async fn flood(self, pieces: impl Iterator<Item = Vec<u8>>, limit: Duration) -> Received {
        self.send_all(pieces, Duration::ZERO, limit).await
    }

    /// The same with a pause after each piece, until the server closes the connection.
    pub async fn drip(self, pieces: impl Iterator<Item = Vec<u8>>, pause: Duration) {
        self.send_all(pieces, pause, Duration::ZERO).await;
    }

    async fn send_all(
        self,
        pieces: impl Iterator<Item = Vec<u8>>,
        pause: Duration,
        limit: Duration,
    ) -> Received {
        let Self {
            mut reader,
            mut sender,
        } = self;
        let mut received = Received::default();
        let all_sent = CancellationToken::new();
        let sending = async {
            for piece in pieces {
                if sender.send(&piece).await != Sent::All {
                    break;
                }
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            all_sent.cancel();
        };
        let receiving = async {
            let late = async {
                all_sent.cancelled().await;
                tokio::time::sleep(limit).await;
            };
            tokio::select! {
                () = receive(&mut reader, &mut received, |_| false) => {}
                () = late => {}
            }
        };
        tokio::join!(sending, receiving);
        received
    }
}

/// The sending half of a connection.
struct Sender(WriteHalf<Box<dyn Stream>>);

impl Sender {
    async fn send(&mut self, bytes: &[u8]) -> Sent {
        let writing = async {
            self.0.write_all(bytes).await?;
            self.0.flush().await
        };
        match tokio::time::timeout(STALLED, writing).await {
            Ok(Ok(())) => Sent::All,
            Ok(Err(_)) => Sent::Cut,
            Err(_) => Sent::Stalled,
        }
    }
}

async fn receive(
    reader: &mut ReadHalf<Box<dyn Stream>>,
    received: &mut Received,
    enough: impl Fn(&[u8]) -> bool,
) {
    let mut buffer = vec![0; 16 * 1024];
    while !enough(&received.bytes) {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => {
                received.closed = true;
                return;
            }
            Ok(read) => {
                let remaining = KEPT.saturating_sub(received.bytes.len()).min(read);
                received.bytes.extend_from_slice(&buffer[..remaining]);
            }
        }
    }
}
