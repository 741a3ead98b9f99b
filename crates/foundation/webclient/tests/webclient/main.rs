//! The HTTP client of components, against test servers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client_credentials;
mod redirects;
