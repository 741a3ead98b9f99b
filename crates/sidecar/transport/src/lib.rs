//! The sidecar's transport: listeners, client connections to apps and other sidecars, streaming bodies,
//! headers and gRPC framing. It depends on neither building blocks nor components.

pub mod body;
pub mod conn;
pub mod error;
pub mod grpc;
pub mod headers;
pub mod http2;
pub mod listen;
pub mod peer;
pub mod response;
pub mod stall;
pub mod tcp;
