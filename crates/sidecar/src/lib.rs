//! The data plane: the sidecar beside each app; its binary is `daprd`.

pub mod access;
pub mod admit;
pub mod api;
pub mod config;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod internal;
pub mod metadata;
pub mod operator;
pub mod profiling;
pub mod proxy;
pub mod reflection;
pub mod reload;
pub mod sidecar;
pub mod wait;
