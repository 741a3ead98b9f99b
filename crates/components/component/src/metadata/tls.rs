//! TLS to a server, from the properties that components have for it: `caCert`, `clientCert` and `clientKey`.

use rustls::ClientConfig;

use super::{Metadata, MetadataError};

impl Metadata {
    /// As [`Metadata::filled`], for text in PEM.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn pem(&self, name: &str) -> Result<Option<&str>, MetadataError> {
        match self.filled(&[name]) {
            Some(text) if !text.contains("-----BEGIN ") => Err(self.wrong(&[name], "PEM text is expected")),
            other => Ok(other),
        }
    }

    /// The certificate of a client and its key, from `clientCert` and `clientKey`: both or none.
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

    /// Trusts `caCert`, or the system's authorities without it, and shows [`Metadata::client_identity`].
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn client_tls(&self) -> Result<ClientConfig, MetadataError> {
        let roots = self.pem("caCert")?;
        self.client_tls_of(roots, self.client_identity()?)
    }

    /// The same of what was read from the properties before: for components that do not use all of them always.
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
