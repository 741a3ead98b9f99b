use std::sync::Arc;

use ::redis::{ClientTlsConfig, TlsCertificates};
use outrigger_component::{Metadata, MetadataError};
use outrigger_tls::{AnyCertificate, Verifier};
use rustls::ClientConfig;

/// TLS settings.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    /// For the driver, which opens cluster connections itself.
    pub(super) certificates: TlsCertificates,
    /// For other connections.
    pub(super) config: Arc<ClientConfig>,
}

/// The TLS settings; `None` if disabled. Without `caCert` certificates are not verified, as in Dapr.
pub(super) fn read(metadata: &Metadata) -> Result<Option<Tls>, MetadataError> {
    if !metadata.flag(&["enableTLS"], false) {
        return Ok(None);
    }
    let (roots, identity) = (metadata.pem("caCert")?, metadata.client_identity()?);
    // Validates certificates early: the driver reads them only when connecting, and treats text without
    // certificates as an empty list.
    let mut config = metadata.client_tls_of(roots, identity)?;
    if roots.is_none() {
        let verifier = Verifier::new(AnyCertificate, config.crypto_provider());
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
    let owned = |text: &str| text.as_bytes().to_vec();
    let certificates = TlsCertificates {
        client_tls: identity.map(|(certificate, key)| ClientTlsConfig {
            client_cert: owned(certificate),
            client_key: owned(key),
        }),
        root_cert: roots.map(owned),
    };
    let config = Arc::new(config);
    Ok(Some(Tls { certificates, config }))
}

#[cfg(test)]
mod tests {
    use std::io;

    use ::redis::RedisError;
    use outrigger_components_testing::tls::Certificates;

    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Result<Option<Tls>, MetadataError> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        read(&Metadata::new("store", owned).unwrap())
    }

    #[test]
    fn rejects_and_hides_invalid_pem() {
        for name in ["caCert", "clientCert", "clientKey"] {
            let on = ("enableTLS", "true");
            let error = settings(&[on, (name, "hush")]).map(drop).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("PEM"), "{error}");
            assert!(name != "clientKey" || !error.contains("hush"), "{error}");
            assert!(settings(&[(name, "hush")]).unwrap().is_none());
        }
        let nothing = settings(&[("enableTLS", "true"), ("caCert", "")])
            .unwrap()
            .unwrap();
        let nothing = nothing.certificates;
        assert!(nothing.root_cert.is_none() && nothing.client_tls.is_none());
    }

    #[test]
    fn rejects_mismatched_certificate_and_key() {
        let (of, other) = (Certificates::new(), Certificates::new());
        let on = ("enableTLS", "true");
        let (certificate, key) = (("clientCert", &*of.client), ("clientKey", &*of.client_key));
        let known = settings(&[on, certificate, key]).unwrap().unwrap();
        let known = known.certificates;
        assert!(known.client_tls.is_some() && known.root_cert.is_none());
        for (properties, blamed, why) in [
            (vec![on, certificate], "clientKey", "clientCert needs it"),
            (vec![on, key], "clientCert", "clientKey needs it"),
            (
                vec![on, certificate, ("clientKey", &*other.client_key)],
                "clientKey",
                "it is not that of the client certificate",
            ),
        ] {
            let error = settings(&properties).map(drop).unwrap_err();
            assert_eq!(error.property(), blamed, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn recognises_tls_errors() {
        let refused = |error| outrigger_tls::refused(&RedisError::from(error));
        let kind = io::ErrorKind::InvalidData;
        assert!(refused(io::Error::new(
            kind,
            rustls::Error::NoCertificatesPresented
        )));
        assert!(!refused(io::Error::from(kind)));
        assert!(!refused(io::Error::new(kind, "wrong")));
    }
}
