//! The data plane: the sidecar beside each app; its binary is `daprd`.

pub mod config;
mod known;
pub mod operator;
pub mod profiling;
pub mod reload;
pub mod sidecar;
pub mod wait;
