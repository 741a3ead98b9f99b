//! The HTTP client of components that call services on the web.

use std::time::Duration;

use outrigger_component::{Error, Kind, Result};
use outrigger_webclient::{builder, causes, shown};
use reqwest::{Client, Url};

use crate::{roots, tls};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(30);

/// A client for `url`: TLS 1.2 at least with the system's roots, proxies as the environment says.
///
/// # Errors
/// Kind `Configuration`.
pub(crate) fn client(url: &Url) -> Result<Client> {
    let failed = |error: String| {
        let text = format!("cannot set up HTTPS for {}: {error}", shown(url));
        Error::new(Kind::Configuration, text)
    };
    // The system's certificates take time and memory.
    let roots = if url.scheme() == "https" {
        roots::system()
    } else {
        rustls::RootCertStore::empty()
    };
    if url.scheme() == "https" && roots.is_empty() {
        let text = "the system has no root certificates; install ca-certificates";
        return Err(failed(text.to_owned()));
    }
    let tls = tls::verifying(roots, None).map_err(failed)?;
    let client = builder(tls).connect_timeout(CONNECT).build();
    client.map_err(|error| failed(causes(&error)))
}
