//! TLS towards servers: the settings that several components share.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Verifies servers against `roots` (PEM), or against the system's authorities without any, and shows them
/// `identity` (certificate chain and key, PEM). TLS 1.2 and later.
///
/// # Errors
/// What is wrong with which of the three.
pub fn client_config(roots: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, String> {
    verifying(store(roots)?, identity)
}

/// The same with the certificates of `roots`.
///
/// # Errors
/// What is wrong with `identity`.
pub fn verifying(roots: RootCertStore, identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((chain, key)) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(chain).map_err(|error| format!("the client certificate: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the client key: {error}"))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| format!("the client certificate and its key: {error}"))
}

fn store(roots: Option<&[u8]>) -> Result<RootCertStore, String> {
    let Some(pem) = roots else {
        return Ok(crate::system_roots());
    };
    let mut store = RootCertStore::empty();
    let wrong = |error: &dyn std::fmt::Display| format!("the root certificates: {error}");
    for certificate in certificates(pem).map_err(|error| wrong(&error))? {
        store.add(certificate).map_err(|error| wrong(&error))?;
    }
    Ok(store)
}

/// The certificates of a PEM text, one at least.
///
/// # Errors
/// A damaged block, or none.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("it holds no PEM block of a certificate".to_owned());
    }
    Ok(found)
}
