//! TLS clients: settings shared by several components.

use std::{fmt, sync::Arc};

use rustls::{ClientConfig, Error, RootCertStore, crypto::aws_lc_rs};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Invalid input for a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    part: Part,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Roots,
    Certificate,
    Key,
}

impl Unusable {
    fn new(part: Part, error: &dyn fmt::Display) -> Self {
        let what = match part {
            Part::Roots => "the root certificates",
            Part::Certificate => "the client certificate",
            Part::Key => "the client key",
        };
        Self {
            part,
            text: format!("{what}: {error}"),
        }
    }

    /// Of the three settings, the one at fault.
    pub fn among<'a>(&self, roots: &'a str, certificate: &'a str, key: &'a str) -> &'a str {
        match self.part {
            Part::Roots => roots,
            Part::Certificate => certificate,
            Part::Key => key,
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Unusable {}

/// A client configuration that verifies servers against `roots` (PEM), or against the system's authorities,
/// and presents `identity` (certificate chain and key, PEM). TLS 1.2 and later.
///
/// # Errors
/// Which input is invalid, and why.
pub fn client_config(
    roots: Option<&[u8]>,
    identity: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, Unusable> {
    verifying(store(roots)?, identity)
}

/// The same with parsed root certificates.
///
/// # Errors
/// If `identity` is invalid.
pub fn verifying(roots: RootCertStore, identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, Unusable> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Unusable::new(Part::Roots, &error))?
        .with_root_certificates(roots);
    let Some((chain, key)) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(chain).map_err(|error| Unusable::new(Part::Certificate, &error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| Unusable::new(Part::Key, &error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                Unusable::new(Part::Key, &"it is not that of the client certificate")
            }
            Error::InvalidCertificate(_) => Unusable::new(Part::Certificate, &error),
            _ => Unusable::new(Part::Key, &error),
        })
}

fn store(roots: Option<&[u8]>) -> Result<RootCertStore, Unusable> {
    let Some(pem) = roots else {
        return Ok(crate::system_roots());
    };
    let mut store = RootCertStore::empty();
    let wrong = |error: &dyn fmt::Display| Unusable::new(Part::Roots, error);
    for certificate in certificates(pem).map_err(|error| wrong(&error))? {
        store.add(certificate).map_err(|error| wrong(&error))?;
    }
    Ok(store)
}

/// The certificates in a PEM text; at least one.
///
/// # Errors
/// A damaged block, or no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("it holds no PEM block of a certificate".to_owned());
    }
    Ok(found)
}
