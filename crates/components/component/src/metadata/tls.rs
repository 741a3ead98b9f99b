//! TLS settings from the properties `caCert`, `clientCert` and `clientKey`.

use rustls::ClientConfig;

use super::{Metadata, MetadataError};

impl Metadata {
    /// Like [`Metadata::filled`], for PEM text.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn pem(&self, name: &str) -> Result<Option<&str>, MetadataError> {
        match self.filled(&[name]) {
            Some(text) if !text.contains("-----BEGIN ") => Err(self.wrong(&[name], "PEM text is expected")),
            other => Ok(other),
        }
    }

    /// The client certificate and key from `clientCert` and `clientKey`: both or none.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn client_identity(&self) -> Result<Option<(&str, &str)>, MetadataError> {
        match (self.pem("clientCert")?, self.pem("clientKey")?) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.wrong(&["clientKey"], "clientCert needs it")),
            (None, Some(_)) => Err(self.wrong(&["clientCert"], "clientKey needs it")),
        }
    }

    /// Trusts `caCert`, or the system's authorities without it, and presents [`Metadata::client_identity`].
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn client_tls(&self) -> Result<ClientConfig, MetadataError> {
        let roots = self.pem("caCert")?;
        self.client_tls_of(roots, self.client_identity()?)
    }

    /// Like [`Metadata::client_tls`], from values already read, for components that use the properties
    /// conditionally.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn client_tls_of(
        &self,
        roots: Option<&str>,
        identity: Option<(&str, &str)>,
    ) -> Result<ClientConfig, MetadataError> {
        let identity = identity.map(|(certificate, key)| (certificate.as_bytes(), key.as_bytes()));
        outrigger_tls::client_config(roots.map(str::as_bytes), identity).map_err(|error| {
            let property = error.among("caCert", "clientCert", "clientKey");
            self.wrong(&[property], &error.to_string())
        })
    }
}
