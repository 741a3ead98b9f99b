//! Generated code, nested like the proto packages because it refers to other packages by `super::` paths.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!(concat!(env!("OUT_DIR"), "/_.rs"));

pub(crate) mod dapr {
    pub(crate) mod proto {
        pub(crate) mod common {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.common.v1.rs"));
            }
        }
        pub(crate) mod components {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.components.v1.rs"));
            }
        }
        pub(crate) mod internals {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.internals.v1.rs"));
            }
        }
        pub(crate) mod operator {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.operator.v1.rs"));
            }
        }
        pub(crate) mod placement {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.placement.v1.rs"));
            }
        }
        pub(crate) mod runtime {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.runtime.v1.rs"));
            }
        }
        pub(crate) mod scheduler {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.scheduler.v1.rs"));
            }
        }
        pub(crate) mod sentry {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/dapr.proto.sentry.v1.rs"));
            }
        }
    }
}

pub(crate) mod durabletask {
    pub(crate) mod protos {
        pub(crate) mod backend {
            pub mod v1 {
                include!(concat!(env!("OUT_DIR"), "/durabletask.protos.backend.v1.rs"));
            }
        }
    }
}
