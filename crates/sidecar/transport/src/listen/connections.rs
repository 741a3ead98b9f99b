//! Connection limits of each server, as shares of the process's file descriptors. The rest is for connections
//! to the app, to other sidecars and to components.

use outrigger_accept::{Limits, descriptors};

/// Most connections of the HTTP API, and of the gRPC API.
const MAX_API: usize = 8192;
/// Divisor of the descriptors: each of the two may take a quarter.
const API_PART: usize = 4;
/// Most connections of other sidecars.
const MAX_PEERS: usize = 4096;
/// Divisor of the descriptors for other sidecars.
const PEERS_PART: usize = 4;
/// Most connections of the public port.
const MAX_PUBLIC: usize = 1024;
/// Divisor of the descriptors for the public port.
const PUBLIC_PART: usize = 16;

/// Limits of the HTTP or gRPC API. The app counts as one source and may use all of them.
pub fn api_connections() -> Limits {
    let connections = MAX_API.min(descriptors() / API_PART).max(1);
    Limits {
        connections,
        per_source: connections,
    }
}

/// Limits of the server for other sidecars.
pub fn peer_connections() -> Limits {
    from_the_network(MAX_PEERS.min(descriptors() / PEERS_PART))
}

/// Limits of the public port.
pub fn public_connections() -> Limits {
    from_the_network(MAX_PUBLIC.min(descriptors() / PUBLIC_PART))
}

/// One source address may use half of the connections.
fn from_the_network(connections: usize) -> Limits {
    let connections = connections.max(1);
    Limits {
        connections,
        per_source: connections.div_ceil(2),
    }
}
