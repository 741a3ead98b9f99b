//! The certificate of the OIDC server, from files that may appear late and change.

use std::{path::Path, sync::Arc, time::Duration};

use outrigger_identity::pem;
use rustls::{ServerConfig, sign::CertifiedKey};

use crate::{config::TlsFiles, own_certificate::CurrentCertificate};

/// Interval of checks for the files.
const POLL: Duration = Duration::from_secs(5);

/// Loads the files and presents the certificate.
#[derive(Debug)]
pub(crate) struct OidcTls {
    files: TlsFiles,
    current: Arc<CurrentCertificate>,
}

impl OidcTls {
    pub(super) fn new(files: TlsFiles) -> Self {
        Self {
            files,
            current: Arc::default(),
        }
    }

    /// Waits until both files exist, then loads them.
    pub(super) async fn wait(&self) -> Result<(), String> {
        while !(self.files.certificate.exists() && self.files.key.exists()) {
            tracing::warn!(
                target: super::LOG,
                "Waiting for TLS certificate and key files to be available: {}, {}",
                self.files.certificate.display(),
                self.files.key.display()
            );
            tokio::time::sleep(POLL).await;
        }
        self.load()
    }

    /// Reloads the files. On error the current certificate stays in use.
    pub(crate) fn load(&self) -> Result<(), String> {
        let chain = pem::parse_certificates(&read(&self.files.certificate)?)
            .map_err(|error| format!("{}: {error}", self.files.certificate.display()))?;
        let key_error = |error: &dyn std::fmt::Display| format!("{}: {error}", self.files.key.display());
        let key = pem::parse_private_key(&read(&self.files.key)?).map_err(|error| key_error(&error))?;
        if !pem::key_matches(&key, &chain[0]).map_err(|error| key_error(&error))? {
            return Err(key_error(&"the key does not belong to the certificate"));
        }
        let signer =
            rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).map_err(|error| key_error(&error))?;
        self.current.set(CertifiedKey::new(chain, signer));
        Ok(())
    }

    pub(super) fn server_config(&self) -> Result<Arc<ServerConfig>, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(self.current.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    outrigger_files::read(path).map_err(|error| format!("{}: {error}", path.display()))
}
