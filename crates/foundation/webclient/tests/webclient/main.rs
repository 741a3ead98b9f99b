//! The HTTP client of components, against servers of the tests.
#![allow(clippy::unwrap_used, reason = "tests")]

mod client_credentials;
mod redirects;
