//! Both sides of HTTP/2, against frames by hand and against the client and the server of hyper.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod differential;
mod hostile;
mod server;
mod silence;
