//! TLS clients of external servers: trusted authorities, verification rules and client certificates. For
//! identities of the mesh see `outrigger-identity`.

mod client;
mod refused;
mod roots;
mod verifier;

pub use client::{Unusable, certificates, client_config, verifying};
pub use refused::refused;
pub use roots::system_roots;
pub use verifier::{AnyCertificate, Check, NameCheck, Presented, Verifier, WithName};
