//! The HTTP client of components that call services on the web.

use std::{error::Error as _, sync::Arc, time::Duration};

use outrigger_component::{Error, Kind, Result};
use reqwest::{Client, Url};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(30);

/// A client for `url`: TLS 1.2 at least with the system's roots, proxies as the environment says.
///
/// # Errors
/// Kind `Configuration`.
pub(crate) fn client(url: &Url) -> Result<Client> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(
            Kind::Configuration,
            format!("cannot set up HTTPS for {url}: {error}"),
        )
    };
    // The system's certificates take time and memory.
    let roots = if url.scheme() == "https" {
        let roots = crate::roots::system();
        if roots.is_empty() {
            return Err(failed(
                &"the system has no root certificates; install ca-certificates",
            ));
        }
        roots
    } else {
        rustls::RootCertStore::empty()
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(CONNECT)
        .build()
        .map_err(|error| failed(&causes(&error)))
}

/// What went wrong, with its causes: reqwest's own text leaves them out. Without the URL, which may have secrets.
pub(crate) fn causes(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "timed out".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else {
        "the request failed".to_owned()
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
