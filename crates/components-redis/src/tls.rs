use ::redis::{ClientTlsConfig, TlsCertificates};
use outrigger_component::{Metadata, MetadataError};

/// What the properties say about TLS; `None` where it is off.
pub(super) fn read(metadata: &Metadata) -> Result<Option<TlsCertificates>, MetadataError> {
    if !metadata.flag(&["enableTLS"], false) {
        return Ok(None);
    }
    let (roots, identity) = (metadata.pem("caCert")?, metadata.client_identity()?);
    // The driver reads them when it connects, and takes a text without any certificate for a list of none; what is
    // wrong with them is to be told before.
    if roots.is_some() || identity.is_some() {
        metadata.client_tls_of(roots, identity)?;
    }
    let owned = |text: &str| text.as_bytes().to_vec();
    Ok(Some(TlsCertificates {
        client_tls: identity.map(|(certificate, key)| ClientTlsConfig {
            client_cert: owned(certificate),
            client_key: owned(key),
        }),
        root_cert: roots.map(owned),
    }))
}

#[cfg(test)]
mod tests {
    use std::io;

    use ::redis::RedisError;
    use outrigger_components_testing::tls::Certificates;

    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Result<Option<TlsCertificates>, MetadataError> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        read(&Metadata::new("store", owned).unwrap())
    }

    #[test]
    fn what_is_no_pem_is_refused_without_showing_it() {
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
        assert!(nothing.root_cert.is_none() && nothing.client_tls.is_none());
    }

    #[test]
    fn a_certificate_and_its_key_belong_together() {
        let (of, other) = (Certificates::new(), Certificates::new());
        let on = ("enableTLS", "true");
        let (certificate, key) = (("clientCert", &*of.client), ("clientKey", &*of.client_key));
        let known = settings(&[on, certificate, key]).unwrap().unwrap();
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
    fn errors_of_tls_are_told_from_others() {
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
