//! HTTP/2 of our own. Its design stands in the crate's documentation.

mod client;
mod driver;
mod fields;
mod queue;
mod recv_stream;
mod send_stream;
mod server;
pub(crate) mod state;
mod stream;
mod transport;
mod write_buffer;

use std::future::Future;
use std::sync::Arc;

pub use client::{Connection, SendRequest};
pub use recv_stream::RecvStream;

use crate::boundary::{Http2, Io, KeepAlive, Service, Timeouts, Upgrade};
use crate::error::Error;
use crate::settings::Config;

/// HTTP/2 of our own, for the data path.
#[derive(Debug, Clone, Copy)]
pub struct Native;

impl Http2 for Native {
    type Body = RecvStream;
    type Client<I: Io> = SendRequest<I>;
    type Connection<I: Io> = Connection<I>;
    const UPGRADES: bool = true;

    async fn serve<I, S, D>(
        io: I,
        upgrade: Option<Upgrade>,
        service: Arc<S>,
        config: &Config,
        timeouts: Timeouts,
        drain: D,
    ) -> Result<(), Error>
    where
        I: Io,
        S: Service<RecvStream>,
        D: Future<Output = ()> + Send,
    {
        server::serve(io, upgrade, service, config, timeouts, drain).await
    }

    async fn connect<I: Io>(
        io: I,
        config: &Config,
        keep_alive: Option<KeepAlive>,
    ) -> Result<(SendRequest<I>, Connection<I>), Error> {
        Ok(client::connect(io, config, keep_alive))
    }
}
