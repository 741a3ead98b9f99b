//! OAuth 2.0 tokens by the client credentials grant (RFC 6749, section 4.4).

use std::{fmt, time::Duration};

use reqwest::{Client, Url};
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::{builder, causes, read_body, shown};

/// Timeout of a token request.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the issuer's response in bytes.
const ANSWER: usize = 256 * 1024;

/// A token issuer.
pub struct ClientCredentials {
    client: Client,
    endpoint: Url,
}

/// An issued token.
pub struct Token {
    /// The token; not empty.
    pub access_token: String,
    /// Remaining validity, if the issuer states it.
    pub valid: Option<Duration>,
}

/// Why no token was obtained.
#[derive(Debug, thiserror::Error)]
#[error("the issuer of tokens at {issuer}: {why}")]
pub struct TokenError {
    /// As [`shown`] writes it.
    issuer: String,
    why: String,
    unavailable: bool,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    access_token: String,
    /// Seconds; some issuers send a string.
    #[serde(default)]
    expires_in: Value,
}

impl Answer {
    fn valid(&self) -> Option<Duration> {
        let seconds = match &self.expires_in {
            Value::String(text) => text.trim().parse().ok(),
            other => other.as_u64(),
        };
        seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

impl TokenError {
    /// Whether the issuer is unreachable or failing, as opposed to rejecting the request.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }
}

impl ClientCredentials {
    /// The issuer at `endpoint`, with TLS settings `tls`.
    ///
    /// # Errors
    /// The client cannot be set up.
    pub fn new(endpoint: Url, tls: ClientConfig) -> Result<Self, reqwest::Error> {
        let client = builder(tls).timeout(TOKEN_TIMEOUT).build()?;
        Ok(Self { client, endpoint })
    }

    /// Parses the URL of an issuer: HTTP or HTTPS, with a host.
    pub fn endpoint_of(text: &str) -> Option<Url> {
        let url = Url::parse(text).ok()?;
        (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
    }

    /// The token endpoint.
    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// An error for a local failure.
    pub fn failed(&self, why: impl fmt::Display) -> TokenError {
        TokenError {
            issuer: shown(&self.endpoint),
            why: why.to_string(),
            unavailable: false,
        }
    }

    fn unavailable(&self, why: impl fmt::Display) -> TokenError {
        TokenError {
            unavailable: true,
            ..self.failed(why)
        }
    }

    /// Requests a token with the fields of `form` in addition to the grant type, authenticated by the ID
    /// and secret in `account` if given.
    ///
    /// # Errors
    /// [`TokenError`].
    pub async fn token(
        &self,
        form: &[(&str, String)],
        account: Option<(&str, &str)>,
    ) -> Result<Token, TokenError> {
        let body = Serializer::new(String::new())
            .append_pair("grant_type", "client_credentials")
            .extend_pairs(form)
            .finish();
        let mut request = self
            .client
            .post(self.endpoint.clone())
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        if let Some((id, secret)) = account {
            // URL-encoded before joining (RFC 6749, section 2.3.1).
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encoded(id), Some(encoded(secret)));
        }
        let response = request.send().await;
        let response = response.map_err(|error| self.unavailable(causes(&error)))?;
        let status = response.status();
        let body = read_body(response, ANSWER).await;
        let body = body.map_err(|error| self.unavailable(error))?;
        if status.is_server_error() {
            return Err(self.unavailable(format_args!("it answered {status}")));
        }
        if !status.is_success() {
            return Err(self.failed(format_args!("it answered {status}")));
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|_| self.failed("its answer is no JSON object with an access_token"))?;
        if answer.access_token.is_empty() {
            return Err(self.failed("its answer has no access_token"));
        }
        Ok(Token {
            valid: answer.valid(),
            access_token: answer.access_token,
        })
    }
}
