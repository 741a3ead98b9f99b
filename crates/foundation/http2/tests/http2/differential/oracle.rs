//! HTTP/2 of hyper and h2, the reference for the comparison.

use std::convert::Infallible;
use std::error::Error as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use outrigger_http2::{Reason, StreamError};
use tokio::io::DuplexStream;

use super::client::Client;
use super::server::Recorder;
use super::{AnyBody, CONFIG};

/// Serves a connection.
pub(crate) async fn serve(io: DuplexStream, recorder: Arc<Recorder>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let recorder = Arc::clone(&recorder);
        async move {
            if request.method() == Method::CONNECT {
                return Err(h2::Error::from(h2::Reason::REFUSED_STREAM));
            }
            let response = recorder.answer(request.map(received)).await;
            Ok(response.map(Outgoing))
        }
    });
    hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(CONFIG.stream_window)
        .initial_connection_window_size(CONFIG.connection_window)
        .max_concurrent_streams(CONFIG.max_streams)
        .max_header_list_size(CONFIG.header_list)
        .max_send_buf_size(CONFIG.send_buffer)
        .serve_connection(TokioIo::new(io), service)
        .await
}

/// hyper's client.
pub(crate) struct HyperClient(SendRequest<Outgoing<Full<Bytes>>>);

/// Opens a client connection.
pub(crate) async fn connect(io: DuplexStream) -> (HyperClient, impl Future<Output = hyper::Result<()>>) {
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(CONFIG.stream_window)
        .initial_connection_window_size(CONFIG.connection_window)
        .max_header_list_size(CONFIG.header_list)
        .max_send_buf_size(CONFIG.send_buffer)
        .handshake(TokioIo::new(io))
        .await
        .unwrap();
    (HyperClient(sender), connection)
}

impl Client for HyperClient {
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Option<AnyBody<StreamError>>>, (StreamError, bool)> {
        let sent = self.0.clone().try_send_request(request.map(Outgoing)).await;
        sent.map(|response| response.map(received)).map_err(|mut failed| {
            let error = stream_error(failed.error());
            (error, failed.take_message().is_some() || error.is_refusal())
        })
    }
}

/// An outgoing body. It hides its size from hyper, which would add a `content-length`.
struct Outgoing<B>(B);

impl<B: Body<Data = Bytes, Error: Code> + Unpin> Body for Outgoing<B> {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        frame.map_err(|error| h2::Error::from(h2::Reason::from(error.code())))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// The reset code for a body's error.
trait Code {
    fn code(self) -> u32;
}

impl Code for Reason {
    fn code(self) -> u32 {
        self.0
    }
}

impl Code for Infallible {
    fn code(self) -> u32 {
        match self {}
    }
}

/// The body of a received message, if any.
fn received(body: Incoming) -> Option<AnyBody<StreamError>> {
    (!body.is_end_stream()).then(|| Received(body).boxed_unsync())
}

struct Received(Incoming);

impl Body for Received {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        let frame = Pin::new(&mut self.0).poll_frame(cx);
        frame.map(|frame| match frame?.map_err(|error| stream_error(&error)) {
            // NO_ERROR: the rest of the message is not needed (RFC 9113 section 8.1).
            Err(StreamError::Reset(Reason::NO_ERROR)) => None,
            frame => Some(frame),
        })
    }
}

/// Why a stream ended early.
fn stream_error(error: &hyper::Error) -> StreamError {
    let mut causes = std::iter::successors(error.source(), |&error| error.source());
    let h2_error = causes.find_map(|error| error.downcast_ref::<h2::Error>());
    match h2_error.map(|error| (error, error.reason())) {
        Some((error, Some(reason))) if error.is_reset() => StreamError::Reset(Reason(reason.into())),
        // A GOAWAY with another code also fails streams that were processed.
        Some((error, Some(h2::Reason::NO_ERROR))) if error.is_go_away() && error.is_remote() => {
            StreamError::GoAway(Reason::NO_ERROR)
        }
        _ => StreamError::ConnectionClosed,
    }
}
