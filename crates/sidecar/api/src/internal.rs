//! The protocol between sidecars, as its server: `dapr.proto.internals.v1.ServiceInvocation`.

mod server;

pub use server::InternalApi;
