//! `crypto.dapr.*`: keys from files and key sets, used within this process.

mod algorithms;
mod asymmetric;
mod cbc_hmac;
mod jwk;
mod jwks;
mod key;
mod local;
mod local_storage;
mod symmetric;

use outrigger_component::Catalog;

#[cfg(feature = "fuzzing")]
pub use jwk::fuzz_jwk;

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    local_storage::add(catalog);
    jwks::add(catalog);
}
