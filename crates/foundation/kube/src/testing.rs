//! A server of the API for tests: it keeps objects, lists them in pages, and watches them by version, over plain HTTP.
//! It can be told to fail in the ways that a real one does.

mod patch;
mod server;
mod state;

pub use patch::apply_patch;
pub use server::Server;
