//! Certificates and handshakes, against in-process authorities and peers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod authority;
mod handshake;
mod renewal;
