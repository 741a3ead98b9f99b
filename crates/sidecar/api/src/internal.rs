//! The server of the protocol between sidecars: `dapr.proto.internals.v1.ServiceInvocation`.

mod server;

pub use server::InternalApi;
