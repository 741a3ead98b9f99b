//! The second implementation: HTTP/2 of the libraries hyper and h2, for those who trust these more than ours, and as
//! what ours is compared with.
//!
//! Its limits against hostile peers are the libraries' own. It differs from [`Native`](crate::Native) in these:
//!
//! - A connection cannot begin with a request that was upgraded from HTTP/1.1.
//! - The peer's SETTINGS_MAX_HEADER_LIST_SIZE is not respected: what is too large is sent, and refused by the peer.
//! - A received header list that is too large is answered with 431, by servers of gRPC too, and ends a call of a client
//!   with a reset for PROTOCOL_ERROR. [`Config::header_memory`] is not used: only each list has a limit.
//! - Windows do not grow: [`Config::max_stream_window`] is not used.
//! - There is no limit of time for bodies that make no progress, nor for a peer that reads nothing: [`Config::stall`]
//!   is not used. PINGs end connections whose peer is gone.
//! - What peers leave unread is bounded by the number of streams: [`Config::unread_memory`] is not used.
//! - Streams are bounded by connection: [`Config::open_streams`] is not used.
//! - A connection without a stream ends after one to two times [`Config::idle`].
//! - What a server began to process when it closed a connection for an error, and what it did not, cannot be told
//!   apart: neither counts as refused.
//! - The budget of unproductive frames is h2's: 20 streams that are reset before anybody saw them, 1,024 that it has
//!   reset for errors, and a number of small frames of DATA end a connection with ENHANCE_YOUR_CALM. PING, SETTINGS,
//!   PRIORITY and WINDOW_UPDATE are not counted.
//!
//! [`Config::header_memory`]: crate::Config::header_memory
//! [`Config::max_stream_window`]: crate::Config::max_stream_window
//! [`Config::stall`]: crate::Config::stall
//! [`Config::unread_memory`]: crate::Config::unread_memory
//! [`Config::open_streams`]: crate::Config::open_streams
//! [`Config::idle`]: crate::Config::idle

mod body;
mod client;
mod server;

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub use body::HyperBody;
pub use client::HyperClient;

use crate::boundary::{Http2, Io, KeepAlive, Service, Timeouts, Upgrade};
use crate::error::{ConnectionError, Error, Reason, StreamError};
use crate::settings::Config;

/// HTTP/2 of hyper and h2.
#[derive(Debug, Clone, Copy)]
pub struct HyperH2;

impl Http2 for HyperH2 {
    type Body = HyperBody;
    type Client<I: Io> = HyperClient;
    type Connection<I: Io> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
    const UPGRADES: bool = false;

    async fn serve<I, S, D>(
        io: I,
        _never: Option<Upgrade>,
        service: Arc<S>,
        config: &Config,
        timeouts: Timeouts,
        drain: D,
    ) -> Result<(), Error>
    where
        I: Io,
        S: Service<HyperBody>,
        D: Future<Output = ()> + Send,
    {
        server::serve(io, service, config, timeouts, drain).await
    }

    async fn connect<I: Io>(
        io: I,
        config: &Config,
        keep_alive: Option<KeepAlive>,
    ) -> Result<(HyperClient, Self::Connection<I>), Error> {
        client::connect(io, config, keep_alive).await
    }
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Why a stream ended early.
fn stream_error(error: &hyper::Error) -> StreamError {
    let Some(error) = h2_error(error) else {
        return StreamError::ConnectionClosed;
    };
    match error.reason() {
        Some(reason) if error.is_reset() => StreamError::Reset(Reason(reason.into())),
        // One with another code is told to streams that were processed, too.
        Some(h2::Reason::NO_ERROR) if error.is_go_away() && error.is_remote() => {
            StreamError::GoAway(Reason::NO_ERROR)
        }
        _ => StreamError::ConnectionClosed,
    }
}

/// Why a connection ended early.
fn connection_error(error: hyper::Error, keep_alive: Option<KeepAlive>) -> Error {
    if let (true, Some(keep_alive)) = (error.is_timeout(), keep_alive) {
        return Error::KeepAliveTimeout(keep_alive.timeout);
    }
    match h2_error(&error)
        .filter(|error| !error.is_remote())
        .and_then(h2::Error::reason)
    {
        Some(reason) => Error::Protocol(ConnectionError {
            reason: Reason(reason.into()),
            detail: "a connection error that the HTTP/2 library found",
        }),
        None => Error::Hyper(error),
    }
}
