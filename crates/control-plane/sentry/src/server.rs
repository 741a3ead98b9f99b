//! Serving connections: their time limits, and how long a peer may stay.

pub(crate) mod connection;
pub(crate) mod lifetime;
pub(crate) mod owner;
