//! The data plane: the sidecar of an app; its binary is `daprd`.

/// Logs problems of resources or policies.
macro_rules! log_problems {
    ($target:expr, $problems:expr) => {
        for problem in $problems {
            if problem.error {
                tracing::error!(target: $target, "{problem}");
            } else {
                tracing::warn!(target: $target, "{problem}");
            }
        }
    };
}
pub(crate) use log_problems;

pub mod config;
pub mod operator;
pub mod profiling;
pub mod reload;
pub mod sidecar;
pub mod status;
mod value_checks;
pub mod wait;
