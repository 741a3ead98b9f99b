//! TLS of PostgreSQL connections.

use std::sync::Arc;

use outrigger_tls::{AnyCertificate, NameCheck, Verifier, WithName};
use rustls::{
    ClientConfig, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// TLS settings; files are paths.
#[derive(Debug)]
pub struct Tls {
    /// Whether TLS is required.
    pub mode: SslMode,
    pub(super) trust: Trust,
    /// Root certificates; `None` uses the system's.
    pub(super) root: Option<String>,
    /// Whether to send the server name (SNI).
    pub(super) name_server: bool,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

/// Verification of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// None: protects against eavesdropping, not against impostors.
    Anything,
    /// The certificate must be signed by a trusted authority.
    Authority,
    /// The certificate must also match the host name.
    AuthorityAndName,
}

/// An invalid TLS setting.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct TlsError {
    /// The setting and its file.
    pub what: String,
    /// The reason.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

type Result<T, E = TlsError> = std::result::Result<T, E>;

fn failed(what: String, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TlsError {
    let cause = cause.into();
    TlsError { what, cause }
}

impl Tls {
    /// The TLS connector. Reads the files of certificates and keys.
    ///
    /// # Errors
    /// An unusable file.
    pub fn connector(&self) -> Result<MakeRustlsConnect> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match self.trust {
            Trust::Anything => Arc::new(Verifier::new(AnyCertificate, &provider)),
            trust => {
                let roots = Arc::new(self.roots()?);
                let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(|error| failed("sslrootcert".to_owned(), error))?;
                if trust == Trust::Authority {
                    Arc::new(Verifier::new(WithName(inner, NameCheck::Skip), &provider))
                } else {
                    inner
                }
            }
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("TLS".to_owned(), error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = CertificateDer::pem_slice_iter(&contents("sslcert", certificate)?)
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|error| failed(format!("sslcert {certificate}"), error))?;
                let key = PrivateKeyDer::from_pem_slice(&contents("sslkey", key)?)
                    .map_err(|error| failed(format!("sslkey {key}"), error))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| failed("sslcert and sslkey".to_owned(), error))?
            }
            _ => config.with_no_client_auth(),
        };
        config.enable_sni = self.name_server;
        Ok(MakeRustlsConnect::new(config))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let Some(path) = &self.root else {
            return Ok(outrigger_tls::system_roots());
        };
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(&contents("sslrootcert", path)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| failed(format!("sslrootcert {path}"), error))?;
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| failed(format!("sslrootcert {path}"), error))?;
        }
        Ok(roots)
    }
}

fn contents(name: &str, path: &str) -> Result<Vec<u8>> {
    outrigger_files::read(path.as_ref()).map_err(|error| failed(format!("{name} {path}"), error))
}
