//! Workload identity: SPIFFE IDs, trust bundles, TLS configurations, and the client of the certificate
//! authority.

mod address;
mod anchors_file;
mod bundle;
mod ca;
mod channel;
mod dial;
mod directory;
pub mod expiry;
mod id;
mod identity;
mod jwt;
mod leaf;
mod learned;
pub mod pem;
mod provider;
mod renewal;
mod security;
mod signing;
mod svid;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
mod verify;

pub use anchors_file::{AnchorsFile, AnchorsFileError};
pub use bundle::{BundleError, TrustAnchors, TrustBundle};
pub use ca::{CaClient, CaConfig, FetchError, SvidSource};
pub use channel::channel;
pub use directory::IdentityDirectory;
pub use id::{
    CONTROL_PLANE_APP_IDS, DEFAULT_TRUST_DOMAIN, IdError, SENTRY_APP_ID, SpiffeId, TrustDomain,
    is_control_plane,
};
pub use identity::{Identity, anonymous_client_config, server_name};
pub use jwt::{JwtError, JwtSvid};
pub use leaf::{LeafError, peer_id};
pub use provider::{NotFips, fips};
pub use renewal::{Clock, EventSink, IdentityEvent, Renewal, renew_at};
pub use security::{AnchorsSource, SecurityConfig, StartError, TRUST_ANCHORS_VARIABLE, refuse_root, start};
pub use signing::{SignatureError, SignerChain};
pub use svid::{Svid, SvidError};
pub use token::{Env, Mode, TokenError};
pub use verify::{Expect, PeerError};
