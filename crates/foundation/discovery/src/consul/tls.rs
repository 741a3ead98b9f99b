//! TLS for the connection to a Consul agent.

use std::{fs, path::Path, sync::Arc};

use outrigger_tls::{AnyCertificate, NameCheck, Verifier, WithName};
use rustls::{
    ClientConfig, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::aws_lc_rs,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};

use super::{agent::AgentError, config::Client};

/// TLS configuration from the client settings. Used only for `https`, but always valid.
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
        Arc::new(Verifier::new(AnyCertificate, &provider))
    } else if client.scheme == "https" {
        let inner =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots(client)?), Arc::clone(&provider))
                .build()
                .map_err(|error| AgentError::Tls(error.to_string()))?;
        match &client.server_name {
            None => inner,
            Some(name) => {
                let name =
                    ServerName::try_from(name.clone()).map_err(|error| AgentError::Tls(error.to_string()))?;
                Arc::new(Verifier::new(WithName(inner, NameCheck::Expect(name)), &provider))
            }
        }
    } else {
        // Plain HTTP verifies nothing, so the system's roots are not loaded.
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
        return Ok(outrigger_tls::system_roots());
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
    outrigger_files::read(path).map_err(|error| file_error(&path.display().to_string(), error))
}

fn file_error(path: &str, error: impl ToString) -> AgentError {
    AgentError::File {
        path: path.to_owned(),
        cause: error.to_string(),
    }
}
