//! HTTP clients for servers outside: providers of models and keys, issuers of tokens, web services, Consul.
//!
//! Requests to them carry credentials, in whatever header the server wants. Clients therefore never follow a redirect
//! to another origin, nor from HTTPS to HTTP, and errors tell neither secrets nor the parts of a URL that may hold one.

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

/// The builder of every client: TLS as `tls` says; redirects inside of the origin only, [`MAX_REDIRECTS`] at most.
pub fn builder(tls: ClientConfig) -> ClientBuilder {
    #[expect(clippy::disallowed_methods, reason = "this is the one that others use")]
    let builder = Client::builder();
    builder
        .tls_backend_preconfigured(tls)
        .redirect(redirect::same_origin_policy())
}

/// A URL for error texts: without account, query and fragment, which may be secrets.
pub fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{}", url.scheme(), url.path())
}

/// What went wrong, with its causes: reqwest's own text leaves them out. Without the URL.
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

/// Why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection broke, or the time was up.
    #[error("{}", causes(.0))]
    Http(#[from] reqwest::Error),
    /// The server sent more than is taken; the limit, bytes.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// A body of at most `limit` bytes.
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
