//! The blocks whose work has its place in the cluster: actors, and workflows, which are actors of the sidecar itself.

pub mod actors;
pub mod workflow;
