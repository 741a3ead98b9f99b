//! How many connections each server keeps, of those that the process has descriptors for. What is left is for the
//! connections to the app, to other sidecars and to components.

use outrigger_accept::{Limits, descriptors};

/// Connections of the HTTP API, and of the gRPC API.
const MAX_API: usize = 8192;
/// Each of them may take this part of the descriptors.
const API_PART: usize = 4;
/// Connections of other sidecars.
const MAX_PEERS: usize = 4096;
/// They may take this part of the descriptors.
const PEERS_PART: usize = 4;
/// Connections of the public port.
const MAX_PUBLIC: usize = 1024;
/// They may take this part of the descriptors.
const PUBLIC_PART: usize = 16;

/// Of the HTTP API, or the gRPC API. The app is one source, and may have all of them.
pub fn api_connections() -> Limits {
    let connections = MAX_API.min(descriptors() / API_PART).max(1);
    Limits {
        connections,
        per_source: connections,
    }
}

/// Of the server for other sidecars.
pub fn peer_connections() -> Limits {
    from_the_network(MAX_PEERS.min(descriptors() / PEERS_PART))
}

/// Of the public port.
pub fn public_connections() -> Limits {
    from_the_network(MAX_PUBLIC.min(descriptors() / PUBLIC_PART))
}

/// One machine has half of them at most.
fn from_the_network(connections: usize) -> Limits {
    let connections = connections.max(1);
    Limits {
        connections,
        per_source: connections.div_ceil(2),
    }
}
