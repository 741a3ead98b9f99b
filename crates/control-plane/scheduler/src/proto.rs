//! Generated from `proto/`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

/// Stored jobs.
pub(crate) mod stored {
    include!(concat!(env!("OUT_DIR"), "/stored.rs"));
}

/// etcd's API.
pub(crate) mod etcd {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}
