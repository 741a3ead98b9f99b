//! The client for public web services.

use std::time::Duration;

use reqwest::{Client, Url};

use crate::{builder, causes, shown};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(30);

/// Why the client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up HTTPS for {url}: {cause}")]
pub struct SetupError {
    /// As [`shown`] writes it.
    url: String,
    cause: String,
}

/// A client for `url`: at least TLS 1.2 with the system's roots, and proxies from the environment.
///
/// # Errors
/// The system has no roots, or TLS cannot be set up.
pub fn client(url: &Url) -> Result<Client, SetupError> {
    let failed = |cause: String| SetupError {
        url: shown(url),
        cause,
    };
    // Only if needed: loading the system's certificates takes time and memory.
    let roots = if url.scheme() == "https" {
        outrigger_tls::system_roots()
    } else {
        rustls::RootCertStore::empty()
    };
    if url.scheme() == "https" && roots.is_empty() {
        let text = "the system has no root certificates; install ca-certificates";
        return Err(failed(text.to_owned()));
    }
    let tls = outrigger_tls::verifying(roots, None).map_err(|error| failed(error.to_string()))?;
    let client = builder(tls).connect_timeout(CONNECT).build();
    client.map_err(|error| failed(causes(&error)))
}
