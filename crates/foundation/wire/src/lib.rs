//! Generated messages and services of the wire contract, and codecs for the hot path.
//!
//! The files in `proto/` describe the contract. Each proto package has a module here. [`invoke`] is the
//! codec of the streamed call between two sidecars, which avoids the generated types.

mod contract;
pub mod invoke;

/// `dapr.proto.common`: messages shared by the other packages.
pub mod common {
    pub use crate::contract::dapr::proto::common::v1;
}
/// `dapr.proto.components`: the services of a pluggable component.
pub mod components {
    pub use crate::contract::dapr::proto::components::v1;
}
/// The workflow worker protocol. Its proto file declares no package.
pub mod durabletask {
    pub use crate::contract::*;

    /// `durabletask.protos.backend`: messages that workflow actors store and exchange.
    pub mod backend {
        pub use crate::contract::durabletask::protos::backend::v1;
    }
}
/// `dapr.proto.internals`: calls between sidecars.
pub mod internals {
    pub use crate::contract::dapr::proto::internals::v1;
}
/// `dapr.proto.operator`: resources of a Kubernetes cluster.
pub mod operator {
    pub use crate::contract::dapr::proto::operator::v1;
}
/// `dapr.proto.placement`: placement of actors on sidecars.
pub mod placement {
    pub use crate::contract::dapr::proto::placement::v1;
}
/// `dapr.proto.runtime`: the API for apps, and their callbacks.
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

/// An encoded `google.protobuf.FileDescriptorSet` of the whole contract including imports, for gRPC
/// reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
