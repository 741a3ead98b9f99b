//! The sidecar's transport: listeners and the connections they accept, connections to apps and other sidecars, bodies
//! that stream through, headers, and the framing of gRPC. It knows neither blocks nor components.

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
