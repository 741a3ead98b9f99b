//! The protocol between sidecars, as its client: `dapr.proto.internals.v1.ServiceInvocation`; and its streams, which the
//! server reads and writes too.

mod client;
pub mod stream;

pub use client::{OpenRequest, RemoteError, call_remote, open_request};
