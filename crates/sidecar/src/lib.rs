//! The data plane: the sidecar beside each app; its binary is `daprd`.

pub mod access;
pub mod admit;
pub mod api;
pub mod app;
pub mod blocks;
pub mod body;
pub mod call;
pub mod components;
pub mod config;
pub mod conn;
mod delivery;
pub mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod grpc;
pub mod headers;
pub mod http2;
pub mod internal;
pub mod life;
pub mod listen;
pub mod metrics;
pub mod operator;
pub mod peer;
pub mod profiling;
pub mod proxy;
pub mod reflection;
pub mod reload;
pub mod resilience;
pub mod scheduler;
pub mod sidecar;
pub mod stall;
pub mod tcp;
pub mod wait;
