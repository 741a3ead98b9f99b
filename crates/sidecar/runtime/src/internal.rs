//! The client of the protocol between sidecars, `dapr.proto.internals.v1.ServiceInvocation`, and its streams,
//! which the server uses too.

mod client;
pub mod stream;

pub use client::{OpenRequest, RemoteError, call_remote, open_request};
