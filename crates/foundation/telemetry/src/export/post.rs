//! HTTP/1.1 POST to a collector.

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Uri};
use outrigger_webclient::{builder, causes, read_body};
use reqwest::Client;
use reqwest::redirect::Policy;
use rustls::RootCertStore;

use super::{CONNECT_LIMIT, ExportError, TracingError};

/// Maximum bytes of an error body in the log.
const ERROR_BODY: usize = 4096;

#[derive(Debug)]
pub(super) struct Poster {
    client: Client,
    uri: Uri,
    headers: HeaderMap,
}

impl Poster {
    /// `roots` are the trusted root certificates.
    pub(super) fn new(
        uri: Uri,
        roots: RootCertStore,
        content_type: &'static str,
        mut headers: HeaderMap,
    ) -> Result<Self, TracingError> {
        headers.remove(HOST);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        let tls = outrigger_tls::verifying(roots, None).map_err(|e| TracingError::Tls(e.to_string()))?;
        let client = builder(tls)
            .redirect(Policy::none())
            .no_proxy()
            .http1_only()
            .connect_timeout(CONNECT_LIMIT)
            .build()
            .map_err(|e| TracingError::Tls(causes(&e)))?;
        Ok(Self { client, uri, headers })
    }

    pub(super) async fn post(&self, body: impl Into<reqwest::Body>) -> Result<(), ExportError> {
        let request = self
            .client
            .post(self.uri.to_string())
            .headers(self.headers.clone());
        let response = request.body(body).send().await;
        let response = response.map_err(|e| ExportError::Unavailable(causes(&e)))?;
        let status = response.status();
        // The connection is reused only if the whole response was read.
        let body = read_body(response, ERROR_BODY).await;
        if status.is_success() {
            return Ok(());
        }
        let text = format!("{status} {}", String::from_utf8_lossy(&body.unwrap_or_default()));
        match status.as_u16() {
            408 | 429 | 502..=504 => Err(ExportError::Unavailable(text)),
            _ => Err(ExportError::Refused(text)),
        }
    }
}
