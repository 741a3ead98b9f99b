//! Default root certificates of components.

use rustls::RootCertStore;

/// The system's root certificates; invalid ones are skipped.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
