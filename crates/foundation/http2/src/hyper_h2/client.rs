//! The side that dials.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use super::body::{HyperBody, Outgoing, SharedBody, StreamGuard};
use super::{HyperH2, connection_error, stream_error};
use crate::boundary::{Client, Http2, Incoming, Io, KeepAlive, TrySendError};
use crate::error::{Error, Reason};
use crate::settings::Config;

/// hyper wants one type of body for all requests of a connection.
type AnyBody = Pin<Box<dyn Body<Data = Bytes, Error = h2::Error> + Send>>;

/// The sending handle of a client connection.
pub struct HyperClient {
    sender: SendRequest<AnyBody>,
    streams: StreamGuard,
}

/// Runs the tasks of a connection, hyper's own among them, until it is cut: who drops [`Http2::Connection`] cuts it, so that
/// its owner is theirs.
#[derive(Clone)]
struct Tasks(CancellationToken);

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(self.0.clone().run_until_cancelled_owned(task));
    }
}

pub(super) async fn connect<I: Io>(
    io: I,
    config: &Config,
    keep_alive: Option<KeepAlive>,
) -> Result<(HyperClient, <HyperH2 as Http2>::Connection<I>), Error> {
    let cut = CancellationToken::new();
    let mut builder = Builder::new(Tasks(cut.clone()));
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(config.stream_window)
        .initial_connection_window_size(config.connection_window)
        .max_header_list_size(config.header_list)
        .max_send_buf_size(config.send_buffer);
    if let Some(keep_alive) = keep_alive {
        builder
            .keep_alive_interval(keep_alive.interval)
            .keep_alive_timeout(keep_alive.timeout)
            .keep_alive_while_idle(config.ping_idle);
    }
    let handshake = builder.handshake(TokioIo::new(io)).await;
    let (sender, connection) = handshake.map_err(|error| connection_error(error, keep_alive))?;
    let streams = StreamGuard::default();
    // What hyper gives is not the connection, but what it asks of it: dropped, that would go on.
    let cut = cut.drop_guard();
    let connection = async move {
        let ended = connection.await;
        // Streams may be left, which end by themselves.
        cut.disarm();
        ended.map_err(|error| connection_error(error, keep_alive))
    };
    Ok((HyperClient { sender, streams }, Box::pin(connection)))
}

impl Client for HyperClient {
    type Body = HyperBody;

    fn streams(&self) -> usize {
        Arc::strong_count(&self.streams) - 1
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    async fn send<B>(
        &self,
        request: Request<B>,
        reason: fn(B::Error) -> Reason,
    ) -> Result<Response<Incoming<HyperBody>>, TrySendError<B>>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
    {
        let (head, body) = request.into_parts();
        let body = SharedBody::new(body);
        let outgoing: AnyBody = Box::pin(Outgoing {
            body: body.clone(),
            reason,
            _stream: Arc::clone(&self.streams),
        });
        let stream = Arc::clone(&self.streams);
        let sent = self
            .sender
            .clone()
            .try_send_request(Request::from_parts(head, outgoing));
        match sent.await {
            Ok(response) => Ok(response.map(|body| HyperBody::incoming(body, stream))),
            Err(mut failed) => {
                let unsent = failed.take_message().map(|request| request.into_parts().0);
                let request = unsent.and_then(|head| Some(Request::from_parts(head, body.take()?)));
                let error = stream_error(failed.error());
                Err(TrySendError { error, request })
            }
        }
    }
}
