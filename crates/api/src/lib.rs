//! The APIs offered to the app: translation between the wire and the blocks, nothing else.

pub mod error;
pub mod grpc;
pub mod http;
