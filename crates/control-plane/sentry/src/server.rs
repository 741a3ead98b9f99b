//! Connection serving: timeouts, and the lifetime of connections.

pub(crate) mod connection;
pub(crate) mod lifetime;
pub(crate) mod owner;
