//! What both ends of an HTTP/2 connection need: few and large writes, a driver that does not let frames wait, bodies,
//! and the detection of a peer that is gone.

mod body;
mod driver;
mod gather;
mod keep_alive;

pub(crate) use body::Received;
pub(crate) use body::{Asked, InFlight, Pump, pump, send_at_hand};
pub(crate) use driver::{Drive, Driver};
pub(crate) use gather::{Gather, Outgoing};
use keep_alive::until_silent;

use std::time::Duration;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// As the protocol reports it.
    #[error(transparent)]
    Http2(#[from] h2::Error),
    /// The socket took no more.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A ping was not answered.
    #[error("no answer to a ping within {0:?}")]
    Silent(Duration),
}
