//! HTTP/1.1 (RFC 9112) for the data path: both ends of a connection.
//!
//! The side that accepts is one task, the side that calls is none. A request whose body came with its head carries it
//! as bytes; one that comes later is read from the socket by whoever reads the body. What is at hand leaves in one
//! write.
//!
//! What could be understood in two ways is refused: two framings, lengths that differ, line breaks inside of a chunk's
//! size. Heads, size lines and trailers are bounded, as is the time for a head.

mod body;
mod chunks;
mod client;
mod encode;
mod error;
mod head;
mod out;
mod rewound;
mod sending;
mod server;
mod wire;

pub use body::{Incoming, Received};
pub use client::{Answer, Client, Coming, Failed, Unanswered};
pub use error::{Cut, Ended, Refused};
pub use rewound::Rewound;
pub use server::{Config, Served, Service, serve};
