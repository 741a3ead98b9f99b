//! The protocol between sidecars: `dapr.proto.internals.v1.ServiceInvocation` as client and server.

mod client;
mod server;
mod stream;

pub use client::{OpenRequest, RemoteError, call_remote, open_request};
pub use server::InternalApi;
