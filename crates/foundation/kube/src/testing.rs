//! An API server for tests over plain HTTP: stores objects, lists them in pages, and watches them by
//! version. It can simulate the failures of a real one.

mod patch;
mod server;
mod state;

pub use patch::apply_patch;
pub use server::Server;
