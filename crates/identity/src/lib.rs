//! Workload identity: SPIFFE ids, trust bundles, TLS configurations, the CA client.

mod bundle;
mod id;
mod identity;
mod jwt;
mod leaf;
pub mod pem;
mod provider;
mod svid;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::expect_used, reason = "support of tests")]
pub mod testing;
mod verify;

pub use bundle::{BundleError, TrustAnchors, TrustBundle};
pub use id::{
    CONTROL_PLANE_APP_IDS, DEFAULT_TRUST_DOMAIN, IdError, SENTRY_APP_ID, SpiffeId, TrustDomain,
    is_control_plane,
};
pub use identity::{Identity, anonymous_client_config, server_name};
pub use jwt::{JwtError, JwtSvid};
pub use leaf::{LeafError, peer_id};
pub use svid::{Svid, SvidError};
pub use verify::{Expect, PeerError};
