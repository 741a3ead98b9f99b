//! The data plane: the sidecar beside each app; its binary is daprd.

pub mod config;
