//! The way to the operator: mutual TLS with this workload's identity.

use std::time::Duration;

use http::Uri;
use outrigger_identity::{Expect, Identity, SpiffeId, server_name};

use crate::conn::{Channel, Dialer, H2Pool, KeepAlive};

/// Time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Port when the address names none.
const DEFAULT_PORT: u16 = 443;

/// A channel that connects when it is used.
pub(super) fn channel(address: &str, identity: &Identity, id: SpiffeId) -> Result<Channel, String> {
    let uri: Uri = format!("https://{address}")
        .parse()
        .map_err(|error| format!("{error}"))?;
    let host = uri
        .host()
        .filter(|host| !host.is_empty())
        .ok_or("it has no host")?;
    let address = format!("{host}:{}", uri.port_u16().unwrap_or(DEFAULT_PORT));
    let name = server_name(host.trim_start_matches('[').trim_end_matches(']'));
    let dialer = Dialer::mutual(address, identity, Expect::Exact(id), name, CONNECT_TIMEOUT);
    Ok(Channel::new(H2Pool::new(dialer, Some(KeepAlive::OF_SERVERS))))
}
