//! A connection that carries one call at a time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::call::{Body, Call, Wire};
use super::driver::{Client, DriverError};
use super::wire::{Counted, Traffic};

/// Windows that a payload of a sweep fits into, so that flow control is not what is measured.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Why a call counts as failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("connection: {0}")]
    Connection(#[from] hyper::Error),
    #[error("status {0}")]
    Status(u16),
    #[error("grpc-status {0}")]
    Grpc(String),
    #[error("{0}")]
    Driver(#[from] DriverError),
    #[error("the answer is too short")]
    Short,
}

/// When an answer came, and how large it was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(super) head: Instant,
    pub(super) end: Instant,
    pub(super) payload: usize,
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
    Driver(Box<Client>),
}

pub(crate) struct Connection {
    call: Call,
    traffic: Arc<Traffic>,
    sender: Sender,
}

impl Connection {
    /// Opens a connection for a call.
    ///
    /// # Errors
    ///
    /// When it is refused, or breaks during the handshake.
    pub(crate) async fn open(call: &Call, traffic: &Arc<Traffic>) -> Result<Self, CallError> {
        if let Wire::Driver(command) = call.wire {
            let client = Client::open(call.address, command).await?;
            return Ok(Self {
                call: call.clone(),
                traffic: Arc::clone(traffic),
                sender: Sender::Driver(Box::new(client)),
            });
        }
        let stream = TcpStream::connect(call.address).await?;
        Self::on(stream, call, traffic).await
    }

    /// The same from a given loopback address: each address has ephemeral ports of its own.
    pub(crate) async fn open_from(
        source: Ipv4Addr,
        call: &Call,
        traffic: &Arc<Traffic>,
    ) -> Result<Self, CallError> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(IpAddr::V4(source), 0))?;
        Self::on(socket.connect(call.address).await?, call, traffic).await
    }

    async fn on(stream: TcpStream, call: &Call, traffic: &Arc<Traffic>) -> Result<Self, CallError> {
        stream.set_nodelay(true)?;
        let io = TokioIo::new(Counted::new(stream, Arc::clone(traffic)));
        let sender = if call.wire == Wire::Http1 {
            let (sender, connection) = http1::handshake(io).await?;
            // It ends with the connection; what goes wrong on it comes out of the call.
            tokio::spawn(connection);
            Sender::Http1(sender)
        } else {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .handshake(io)
                .await?;
            tokio::spawn(connection);
            Sender::Http2(sender)
        };
        Ok(Self {
            call: call.clone(),
            traffic: Arc::clone(traffic),
            sender,
        })
    }

    /// Replaces the connection by a new one.
    pub(super) async fn reopen(&mut self) -> Result<(), CallError> {
        *self = Self::open(&self.call, &self.traffic).await?;
        Ok(())
    }

    /// Makes the call and reads the whole answer.
    ///
    /// # Errors
    ///
    /// When the connection breaks, the answer is no success, or less comes back than was sent.
    pub(crate) async fn call(&mut self) -> Result<Answer, CallError> {
        let response = match &mut self.sender {
            Sender::Driver(client) => {
                let length = client.call(self.call.body()).await?;
                return self.answered(Instant::now(), length);
            }
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(self.call.request()).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(self.call.request()).await?
            }
        };
        let head = Instant::now();
        if !response.status().is_success() {
            return Err(CallError::Status(response.status().as_u16()));
        }
        let length = if self.call.wire == Wire::Http1 {
            read(response.into_body()).await?.0
        } else {
            grpc(response).await?
        };
        self.answered(head, length)
    }

    fn answered(&self, head: Instant, length: usize) -> Result<Answer, CallError> {
        if !self.call.satisfied_by(length) {
            return Err(CallError::Short);
        }
        Ok(Answer {
            head,
            end: Instant::now(),
            payload: self.call.payload,
        })
    }
}

/// The length of the body, once the trailers, or headers alone, have said that all went well.
async fn grpc(response: Response<Incoming>) -> Result<usize, CallError> {
    let (parts, body) = response.into_parts();
    let (length, trailers) = read(body).await?;
    let status = trailers
        .as_ref()
        .and_then(|trailers| trailers.get("grpc-status"))
        .or_else(|| parts.headers.get("grpc-status"));
    let message = trailers.as_ref().unwrap_or(&parts.headers).get("grpc-message");
    match status {
        Some(status) if status.as_bytes() == b"0" => Ok(length),
        Some(status) => {
            let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let message = message.map(text).unwrap_or_default();
            Err(CallError::Grpc(format!("{} {message}", text(status))))
        }
        None => Err(CallError::Grpc("missing".to_owned())),
    }
}

async fn read(mut body: Incoming) -> Result<(usize, Option<HeaderMap>), CallError> {
    let mut length = 0;
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => length += data.len(),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok((length, trailers))
}
