//! HTTP clients for external servers: providers of models and keys, token issuers, web services, Consul.
//!
//! Requests carry credentials in various headers. Therefore clients never follow a redirect to another
//! origin, nor from HTTPS to HTTP, and errors contain neither secrets nor the parts of a URL that may hold
//! them.

mod client_credentials;
mod public;
mod redirect;

use std::error::Error as _;

use reqwest::{Client, ClientBuilder, Response, Url};
use rustls::ClientConfig;

pub use client_credentials::{ClientCredentials, Token, TokenError};
pub use outrigger_redact::Secrets;
pub use public::{SetupError, client};
pub use redirect::{MAX_REDIRECTS, RedirectError, within};

/// The base of all clients: TLS settings `tls`; redirects within the origin only, at most
/// [`MAX_REDIRECTS`].
pub fn builder(tls: ClientConfig) -> ClientBuilder {
    #[expect(clippy::disallowed_methods, reason = "the base of all other clients")]
    let builder = Client::builder();
    builder
        .tls_backend_preconfigured(tls)
        .redirect(redirect::same_origin_policy())
}

/// A URL for error texts, without account, query and fragment, which may contain secrets.
pub fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

/// An error with its causes, which reqwest's own text omits. Does not contain the URL.
pub fn causes(error: &reqwest::Error) -> String {
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

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Connection failure or timeout.
    #[error("{}", causes(.0))]
    Http(#[from] reqwest::Error),
    /// The body exceeds this limit in bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// Reads a body of at most `limit` bytes.
///
/// # Errors
/// [`BodyError`].
pub async fn read_body(mut response: Response, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut contents = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if contents.len() + chunk.len() > limit {
            return Err(BodyError::TooLarge(limit));
        }
        contents.extend_from_slice(&chunk);
    }
    Ok(contents)
}
