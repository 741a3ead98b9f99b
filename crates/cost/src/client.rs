//! The caller: one connection, one call at a time.

use std::convert::Infallible;

use bytes::Bytes;
use futures::stream::{self, Once};
use http::{HeaderValue, Request, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::Failure;
use crate::app::framed_message;

/// Bytes of the body, each way.
const PAYLOAD: usize = 1024;

/// A body without a declared length: gRPC clients send none.
type Streamed = StreamBody<Once<std::future::Ready<Result<Frame<Bytes>, Infallible>>>>;

/// Frames go out at once: waiting for acknowledgements would add 40 ms to each call.
async fn connect(port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(crate) enum Client {
    Http {
        sender: http1::SendRequest<Full<Bytes>>,
        path: String,
        host: HeaderValue,
    },
    Grpc {
        sender: http2::SendRequest<Streamed>,
        uri: String,
        app_id: HeaderValue,
    },
}

impl Client {
    /// A connection to the HTTP API, for calls of a method of an app.
    pub(crate) async fn http(port: u16, app_id: &str) -> Result<Self, Failure> {
        let stream = connect(port).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self::Http {
            sender,
            path: format!("/v1.0/invoke/{app_id}/method/echo"),
            host: HeaderValue::from_str(&format!("127.0.0.1:{port}"))?,
        })
    }

    /// A connection to the gRPC API, for proxied calls to an app.
    pub(crate) async fn grpc(port: u16, app_id: &str) -> Result<Self, Failure> {
        let stream = connect(port).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self::Grpc {
            sender,
            uri: format!("http://127.0.0.1:{port}/cost.Echo/Echo"),
            app_id: HeaderValue::from_str(app_id)?,
        })
    }

    /// One call, which has to bring its payload back.
    pub(crate) async fn call(&mut self) -> Result<(), Failure> {
        let payload = Bytes::from_static(&[b'x'; PAYLOAD]);
        let (response, expected) = match self {
            Self::Http { sender, path, host } => {
                let request = Request::post(&**path)
                    .header(header::HOST, &*host)
                    .header(header::CONTENT_TYPE, "application/octet-stream")
                    .body(Full::new(payload))?;
                sender.ready().await?;
                (sender.send_request(request).await?, PAYLOAD)
            }
            Self::Grpc { sender, uri, app_id } => {
                let frame = Ok(Frame::data(framed_message(&payload)));
                let request = Request::post(&**uri)
                    .header(header::CONTENT_TYPE, "application/grpc")
                    .header(header::TE, "trailers")
                    .header("dapr-app-id", &*app_id)
                    .body(StreamBody::new(stream::once(std::future::ready(frame))))?;
                sender.ready().await?;
                (sender.send_request(request).await?, PAYLOAD + 5)
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await?;
        let refused = body
            .trailers()
            .is_some_and(|trailers| trailers.get("grpc-status").is_some_and(|s| s != "0"));
        let body = body.to_bytes();
        if !status.is_success() || refused || body.len() != expected {
            return Err(format!(
                "answered {status} with {} bytes: {}",
                body.len(),
                String::from_utf8_lossy(&body)
            )
            .into());
        }
        Ok(())
    }
}
