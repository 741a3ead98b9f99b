//! An HTTP/1.1 client without a task: the caller drives the connection.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::wire::Counted;

pub(super) struct Client {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<Connection<TokioIo<Counted>, Full<Bytes>>>,
}

impl Client {
    pub(super) async fn open(stream: Counted) -> hyper::Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            connection: Some(connection),
        })
    }

    /// Makes a call and reads the complete response: its status, the arrival time of its head, and its
    /// length.
    pub(super) async fn call(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<(StatusCode, Instant, usize)> {
        let Self { sender, connection } = self;
        let answer = sender.send_request(request);
        let calling = async {
            let (head, mut body) = answer.await?.into_parts();
            let came = Instant::now();
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                length += frame?.data_ref().map_or(0, Bytes::len);
            }
            Ok((head.status, came, length))
        };
        let mut calling = pin!(calling);
        std::future::poll_fn(|cx| {
            drive(connection, cx);
            let called = calling.as_mut().poll(cx);
            if called.is_pending() {
                // After registering for readiness, the data may already be available.
                drive(connection, cx);
                return calling.as_mut().poll(cx);
            }
            called
        })
        .await
    }
}

fn drive(connection: &mut Option<Connection<TokioIo<Counted>, Full<Bytes>>>, cx: &mut Context<'_>) {
    if let Some(running) = connection
        && let Poll::Ready(_told_by_the_call) = Pin::new(running).poll(cx)
    {
        *connection = None;
    }
}
