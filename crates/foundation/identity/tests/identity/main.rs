//! Certificates and handshakes, against authorities and peers of the tests.
#![allow(clippy::unwrap_used, reason = "tests")]

mod authority;
mod handshake;
mod renewal;
