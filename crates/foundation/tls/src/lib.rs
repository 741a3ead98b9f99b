//! TLS towards servers: whom to trust, what to check about a server, what to show it. Identities of the mesh are
//! `outrigger-identity`'s.

mod client;
mod refused;
mod roots;
mod verifier;

pub use client::{Unusable, certificates, client_config, verifying};
pub use refused::refused;
pub use roots::system_roots;
pub use verifier::{AnyCertificate, Check, NameCheck, Presented, Verifier, WithName};
