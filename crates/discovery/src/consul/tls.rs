//! TLS towards a Consul agent.

use std::{fs, path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};

use super::{
    agent::{AgentError, MAX_FILE},
    config::Client,
};

/// The configuration for the client settings; used for `https` only, but always valid.
pub(super) fn client_config(client: &Client) -> Result<ClientConfig, AgentError> {
    let tls = |error: rustls::Error| AgentError::Tls(error.to_string());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(tls)?;
    let verifier: Arc<dyn ServerCertVerifier> = if client.skip_verify {
        tracing::warn!(
            target: "dapr.contrib",
            "hashicorp consul: you are using 'insecureSkipVerify' to skip server config verify which is unsafe!"
        );
        Arc::new(AnyCertificate(provider))
    } else if client.scheme == "https" {
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(client)?), provider)
            .build()
            .map_err(|error| AgentError::Tls(error.to_string()))?;
        match &client.server_name {
            None => inner,
            Some(name) => {
                let name =
                    ServerName::try_from(name.clone()).map_err(|error| AgentError::Tls(error.to_string()))?;
                Arc::new(OtherName { inner, name })
            }
        }
    } else {
        // Plain HTTP: nothing is ever verified, so do not read the system's roots.
        return Ok(builder
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth());
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    match (&client.cert_file, &client.key_file) {
        (Some(cert), Some(key)) => {
            let chain = certificates(Path::new(cert))?;
            let key = PrivateKeyDer::from_pem_slice(&contents(Path::new(key))?)
                .map_err(|error| file_error(key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(tls)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn roots(client: &Client) -> Result<RootCertStore, AgentError> {
    let mut roots = RootCertStore::empty();
    let mut found = Vec::new();
    if let Some(file) = &client.ca_file {
        found.extend(certificates(Path::new(file))?);
    }
    if let Some(folder) = &client.ca_path {
        let entries = fs::read_dir(folder).map_err(|error| file_error(folder, error))?;
        for entry in entries {
            let path = entry.map_err(|error| file_error(folder, error))?.path();
            if path.is_file() {
                found.extend(certificates(&path)?);
            }
        }
    }
    if client.ca_file.is_none() && client.ca_path.is_none() {
        found = rustls_native_certs::load_native_certs().certs;
    }
    roots.add_parsable_certificates(found);
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AgentError> {
    let failed = |error| file_error(&path.display().to_string(), error);
    CertificateDer::pem_slice_iter(&contents(path)?)
        .collect::<Result<_, _>>()
        .map_err(failed)
}

fn contents(path: &Path) -> Result<Vec<u8>, AgentError> {
    outrigger_files::read(path, MAX_FILE).map_err(|error| file_error(&path.display().to_string(), error))
}

fn file_error(path: &str, error: impl ToString) -> AgentError {
    AgentError::File {
        path: path.to_owned(),
        cause: error.to_string(),
    }
}

/// `insecureSkipVerify`: the user asked for it.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate must be for another name than the one in the URL.
#[derive(Debug)]
struct OtherName {
    inner: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
}

impl ServerCertVerifier for OtherName {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner.verify_server_cert(cert, chain, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
