use ::redis::{ClientTlsConfig, TlsCertificates};
use outrigger_component::{Metadata, MetadataError};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// What the properties say about TLS; `None` where it is off.
pub(super) fn read(metadata: &Metadata) -> Result<Option<TlsCertificates>, MetadataError> {
    if !metadata.flag(&["enableTLS"], false) {
        return Ok(None);
    }
    let client_tls = match (certificates(metadata, "clientCert")?, key(metadata)?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
            client_cert,
            client_key,
        }),
        _ => None,
    };
    Ok(Some(TlsCertificates {
        client_tls,
        root_cert: certificates(metadata, "caCert")?,
    }))
}

/// The driver takes a text without any certificate for a list of none.
fn certificates(metadata: &Metadata, name: &str) -> Result<Option<Vec<u8>>, MetadataError> {
    let Some(text) = metadata.filled(&[name]) else {
        return Ok(None);
    };
    let mut found = CertificateDer::pem_slice_iter(text.as_bytes()).peekable();
    if found.peek().is_none() || found.any(|certificate| certificate.is_err()) {
        return Err(metadata.wrong(&[name], "it must be one or more certificates in PEM"));
    }
    Ok(Some(text.as_bytes().to_vec()))
}

fn key(metadata: &Metadata) -> Result<Option<Vec<u8>>, MetadataError> {
    let name = "clientKey";
    let Some(text) = metadata.filled(&[name]) else {
        return Ok(None);
    };
    if PrivateKeyDer::from_pem_slice(text.as_bytes()).is_err() {
        return Err(metadata.wrong(&[name], "it must be a private key in PEM"));
    }
    Ok(Some(text.as_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use std::io;

    use ::redis::RedisError;

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
