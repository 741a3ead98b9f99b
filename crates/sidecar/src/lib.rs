//! The data plane: the sidecar beside each app; its binary is `daprd`.

pub mod access;
pub mod admit;
pub mod api;
pub mod app;
pub mod blocks;
pub mod call;
pub mod components;
pub mod config;
mod delivery;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod internal;
pub mod life;
pub mod metrics;
pub mod operator;
pub mod profiling;
pub mod proxy;
pub mod reflection;
pub mod reload;
pub mod resilience;
pub mod scheduler;
pub mod sidecar;
pub mod wait;
