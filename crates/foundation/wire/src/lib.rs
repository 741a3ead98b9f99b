//! Generated messages and services of the wire contract, and codecs for the hot path.
//!
//! The contract is described by the files in `proto/`. Each proto package has a module here; the codec of the
//! streamed call between two sidecars, which avoids the generated types, is [`invoke`].

mod contract;
pub mod invoke;

/// `dapr.proto.common`: messages shared by the other packages.
pub mod common {
    pub use crate::contract::dapr::proto::common::v1;
}
/// `dapr.proto.components`: what a component in a process of its own serves.
pub mod components {
    pub use crate::contract::dapr::proto::components::v1;
}
/// The workflow worker protocol. Its proto file declares no package.
pub mod durabletask {
    pub use crate::contract::*;

    /// `durabletask.protos.backend`: what workflow actors store and send to each other.
    pub mod backend {
        pub use crate::contract::durabletask::protos::backend::v1;
    }
}
/// `dapr.proto.internals`: what sidecars say to each other.
pub mod internals {
    pub use crate::contract::dapr::proto::internals::v1;
}
/// `dapr.proto.operator`: resources of a Kubernetes cluster.
pub mod operator {
    pub use crate::contract::dapr::proto::operator::v1;
}
/// `dapr.proto.placement`: which sidecar hosts which actors.
pub mod placement {
    pub use crate::contract::dapr::proto::placement::v1;
}
/// `dapr.proto.runtime`: the API offered to apps, and the callbacks apps offer.
pub mod runtime {
    pub use crate::contract::dapr::proto::runtime::v1;
}
/// `dapr.proto.scheduler`: jobs and reminders.
pub mod scheduler {
    pub use crate::contract::dapr::proto::scheduler::v1;
}
/// `dapr.proto.sentry`: the certificate authority.
pub mod sentry {
    pub use crate::contract::dapr::proto::sentry::v1;
}

/// An encoded `google.protobuf.FileDescriptorSet` of the whole contract, imports included, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
