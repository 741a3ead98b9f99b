//! HTTP/2 client and server against handwritten frames and against hyper.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client;
mod differential;
mod hostile;
mod server;
mod silence;
