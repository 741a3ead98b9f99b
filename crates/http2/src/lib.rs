//! HTTP/2 (RFC 9113) for the data path: frames, header compression, and both ends of a connection.
//!
//! A connection's state is one value behind one lock that is never held while something waits. What a message has in
//! memory leaves with its head; a request that is answered on the first look costs no task and no wake-up.
//!
//! Everything a peer can make grow is bounded ([`limits`]), and the work for a frame does not depend on how many streams
//! there are.

mod body;
mod client;
mod error;
pub mod frame;
mod head;
pub mod hpack;
pub mod limits;
mod out;
mod queue;
mod sending;
mod server;
mod settings;
mod state;
mod stream;
pub mod target;
mod turns;
mod wire;

pub use body::{Incoming, Received};
pub use client::{Client, Connection, Unanswered, connect};
pub use error::{Broken, Cut, Ended, Reason};
pub use server::{Service, Times, Upgrade, serve, serve_upgraded};
pub use settings::Config;
pub use turns::Silence;
