//! Tokens of OAuth 2.0 by the client credentials grant (RFC 6749, section 4.4).

use std::{fmt, time::Duration};

use reqwest::{Client, Url};
use rustls::ClientConfig;
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

use crate::{builder, causes, read_body, shown};

/// How long the issuer may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer of the issuer, bytes.
const ANSWER: usize = 256 * 1024;

/// An issuer of tokens.
pub struct ClientCredentials {
    client: Client,
    endpoint: Url,
}

/// What an issuer gave.
pub struct Token {
    /// The token, not empty.
    pub access_token: String,
    /// How long it is valid from now on, where the issuer says so.
    pub valid: Option<Duration>,
}

/// Why there is no token.
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
    /// A number of seconds; some issuers write it as a string.
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
    /// Whether the issuer cannot be reached, or fails itself. If not, it refuses, or gives no token.
    pub fn is_unavailable(&self) -> bool {
        self.unavailable
    }
}

impl ClientCredentials {
    /// The issuer at `endpoint`; TLS as `tls` says.
    ///
    /// # Errors
    /// The client cannot be set up.
    pub fn new(endpoint: Url, tls: ClientConfig) -> Result<Self, reqwest::Error> {
        let client = builder(tls).timeout(TOKEN_TIMEOUT).build()?;
        Ok(Self { client, endpoint })
    }

    /// A URL that an issuer may have: of HTTP or HTTPS, with a host.
    pub fn endpoint_of(text: &str) -> Option<Url> {
        let url = Url::parse(text).ok()?;
        (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
    }

    /// Where tokens are asked for.
    pub fn endpoint(&self) -> &Url {
        &self.endpoint
    }

    /// That there is no token for a reason of this side.
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

    /// Asks for a token with the fields of `form` behind the type of the grant, as the `account` of an id and a secret
    /// where there is one.
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
            // Encoded before they are joined (RFC 6749, section 2.3.1).
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
