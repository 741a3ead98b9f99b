//! The APIs offered to the app, and the server that other sidecars call: translation between the wire and the blocks,
//! and who may ask. Handlers hold no rules of their own.

pub mod access;
pub mod admit;
pub mod error;
pub mod grpc;
pub mod http;
pub mod internal;
pub mod metadata;
pub mod proxy;
pub mod reflection;
