//! Drives a connection, and finds out when its peer is gone without a word.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use h2::client::Connection;
use h2::{Ping, PingPong};
use tokio::time::{sleep, timeout};

use crate::conn::dial::Io;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// As the protocol reports it.
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// A ping was not answered.
    #[error("no answer to a ping within {0:?}")]
    Silent(Duration),
}

/// Drives a connection to its end; `keep_alive` is ping interval and time to answer, also when idle.
pub(super) async fn drive(
    mut connection: Connection<Io, Bytes>,
    keep_alive: Option<(Duration, Duration)>,
) -> Result<(), Ended> {
    let pings = connection.ping_pong();
    let Some((pings, (interval, patience))) = pings.zip(keep_alive) else {
        return Ok(connection.await?);
    };
    let silence = pin!(until_silent(pings, interval, patience));
    tokio::select! {
        ended = connection => Ok(ended?),
        ended = silence => ended,
    }
}

/// Pings again and again; returns when no answer comes in time.
async fn until_silent(mut pings: PingPong, interval: Duration, patience: Duration) -> Result<(), Ended> {
    loop {
        sleep(interval).await;
        match timeout(patience, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(Ended::Silent(patience)),
        }
    }
}
