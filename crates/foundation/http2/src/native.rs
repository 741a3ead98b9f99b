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

pub use client::{Connection, SendRequest, connect};
pub use recv_stream::RecvStream;
pub use server::serve;
