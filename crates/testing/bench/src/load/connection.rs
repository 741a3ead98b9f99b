//! A connection that carries one call at a time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::GRACE;
use super::call::{Call, Wire};
use super::driver::{self, DriverError};
use super::grpc::{self, Fault};
use super::http1;
use super::wire::{Counted, Traffic};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("connection: {0}")]
    Http1(#[from] hyper::Error),
    #[error("connection: {0}")]
    Http2(#[from] Fault),
    #[error("status {0}")]
    Status(u16),
    #[error("grpc-status {0}")]
    Grpc(String),
    #[error("{0}")]
    Driver(#[from] DriverError),
    #[error("the answer is too short")]
    Short,
}

/// Time and size of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseTiming {
    pub(super) head: Instant,
    pub(super) end: Instant,
    pub(super) payload: usize,
}

enum Sender {
    Http1(Box<http1::Client>),
    Grpc(Box<grpc::Client>),
    Driver(Box<driver::Client>),
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
    /// If it is refused, or breaks during the handshake.
    pub(crate) async fn open(call: &Call, traffic: &Arc<Traffic>) -> Result<Self, CallError> {
        if let Wire::Driver(command) = call.wire {
            let client = driver::Client::open(call.address, command).await?;
            return Ok(Self {
                call: call.clone(),
                traffic: Arc::clone(traffic),
                sender: Sender::Driver(Box::new(client)),
            });
        }
        let stream = TcpStream::connect(call.address).await?;
        Self::on(stream, call, traffic).await
    }

    /// The same from a given loopback address, because each address has its own ephemeral ports.
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
        let counted = Counted::new(stream, Arc::clone(traffic));
        let sender = if call.wire == Wire::Http1 {
            Sender::Http1(Box::new(http1::Client::open(counted).await?))
        } else {
            Sender::Grpc(Box::new(grpc::Client::open(counted, GRACE).await?))
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

    /// Makes the call and reads the complete response.
    ///
    /// # Errors
    ///
    /// If the connection breaks, the response is not a success, or is shorter than expected.
    pub(crate) async fn call(&mut self) -> Result<ResponseTiming, CallError> {
        let (head, length) = match &mut self.sender {
            Sender::Driver(client) => {
                let length = client.call(self.call.body()).await?;
                (Instant::now(), length)
            }
            Sender::Grpc(client) => client.call(&self.call).await?,
            Sender::Http1(client) => {
                let (status, head, length) = client.call(self.call.request()).await?;
                if !status.is_success() {
                    return Err(CallError::Status(status.as_u16()));
                }
                (head, length)
            }
        };
        self.answered(head, length)
    }

    fn answered(&self, head: Instant, length: usize) -> Result<ResponseTiming, CallError> {
        if !self.call.satisfied_by(length) {
            return Err(CallError::Short);
        }
        Ok(ResponseTiming {
            head,
            end: Instant::now(),
            payload: self.call.payload,
        })
    }
}
