//! The APIs for the app and the server for other sidecars: they translate between the wire and the building
//! blocks, and authorise callers. Handlers contain no business rules.

pub mod access;
pub mod admit;
pub mod error;
pub mod grpc;
pub mod http;
pub mod internal;
pub mod metadata;
pub mod proxy;
pub mod reflection;

use std::collections::BTreeSet;

/// The API groups of all blocks as `spec.api` of a Configuration names them, sorted.
pub fn parts() -> Vec<&'static str> {
    let all: BTreeSet<_> = grpc::groups().chain(http::groups()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn parts_cover_both_protocols() {
        let parts = super::parts();
        assert!(parts.is_sorted(), "{parts:?}");
        // Only HTTP, only gRPC, and both.
        for name in ["healthz", "subscribe", "state"] {
            assert_eq!(
                parts.iter().filter(|part| **part == name).count(),
                1,
                "{name}: {parts:?}"
            );
        }
    }
}
