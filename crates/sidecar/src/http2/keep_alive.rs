//! Finds out when a peer is gone without a word.

use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{sleep, timeout};

use super::Ended;

/// Pings every `interval`; returns when no answer comes within `patience`.
pub(crate) async fn until_silent(
    mut pings: PingPong,
    interval: Duration,
    patience: Duration,
) -> Result<(), Ended> {
    loop {
        sleep(interval).await;
        match timeout(patience, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(Ended::Silent(patience)),
        }
    }
}
