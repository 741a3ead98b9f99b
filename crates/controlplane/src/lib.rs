//! What the processes of the control plane share: gRPC servers, their own identity, their tasks.

pub mod grpc;
mod identity;
mod tasks;

pub use identity::{TlsConfig, obtain};
pub use tasks::{TaskFailed, chain, fine, stop_on_signal, supervise};
