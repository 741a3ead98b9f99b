//! The APIs offered to the app, and the server that other sidecars call: translation between the wire and the blocks,
//! and who may ask. Handlers hold no rules of their own.

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

/// The parts of the API as `spec.api` of a Configuration names them, sorted: the groups of the routes and methods of all
/// blocks.
pub fn parts() -> Vec<&'static str> {
    let all: BTreeSet<_> = grpc::groups().chain(http::groups()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn parts_of_the_api_are_those_of_both_protocols() {
        let parts = super::parts();
        assert!(parts.is_sorted(), "{parts:?}");
        // Of HTTP only, of gRPC only, and of both.
        for name in ["healthz", "subscribe", "state"] {
            assert_eq!(
                parts.iter().filter(|part| **part == name).count(),
                1,
                "{name}: {parts:?}"
            );
        }
    }
}
