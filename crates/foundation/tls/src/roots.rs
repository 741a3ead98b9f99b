//! Whom components trust that are told of nobody else.

use rustls::RootCertStore;

/// The system's certificates. Some of them may be unusable; the others do.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}
