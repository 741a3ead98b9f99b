//! Tokens for SASL OAUTHBEARER, from an issuer of OpenID Connect: the client credentials grant (RFC 6749), by a secret or
//! by a signed assertion (RFC 7523).

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use krafka::{
    KrafkaError,
    auth::{CredentialProvider, OAuthBearerToken},
};
use outrigger_component::{Metadata, MetadataError, Result};
use outrigger_webclient::{causes, read_body, shown};
use reqwest::Client;
use serde::{Deserialize, Serialize};
use url::Url;

/// How long the issuer may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer of the issuer, bytes.
const ANSWER: usize = 256 * 1024;
/// How long an assertion is valid, seconds.
const VALID: u64 = 60;
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Where tokens come from.
#[derive(Clone)]
pub(super) struct Tokens(Arc<Issuer>);

struct Issuer {
    client: Client,
    endpoint: Url,
    id: String,
    credential: Credential,
    scope: String,
    extensions: Vec<(String, String)>,
}

enum Credential {
    Secret(String),
    Assertion {
        key: EncodingKey,
        key_id: Option<String>,
        audience: Option<String>,
        resource: Option<String>,
    },
}

#[derive(Serialize)]
struct Claims<'a> {
    iss: &'a str,
    sub: &'a str,
    aud: &'a str,
    iat: u64,
    nbf: u64,
    exp: u64,
    jti: String,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    expires_in: Option<i64>,
}

impl Tokens {
    pub(super) fn read(metadata: &Metadata, trust: rustls::ClientConfig) -> Result<Self> {
        let endpoint = metadata.required(&["oidcTokenEndpoint"])?;
        let endpoint = Url::parse(endpoint)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| {
                metadata.wrong(&["oidcTokenEndpoint"], "an http:// or https:// URL is expected")
            })?;
        let id = metadata.required(&["oidcClientID"])?.to_owned();
        let scopes = metadata.filled(&["oidcScopes"]).unwrap_or("openid");
        let scope = scopes.split(',').collect::<Vec<_>>().join(" ");
        let extensions = extensions(metadata)?;
        let by_key = metadata
            .filled(&["authType"])
            .is_some_and(|kind| kind.eq_ignore_ascii_case("oidc_private_key_jwt"));
        let credential = if by_key {
            assertion(metadata)?
        } else {
            Credential::Secret(metadata.required(&["oidcClientSecret"])?.to_owned())
        };
        let client = outrigger_webclient::builder(trust)
            .timeout(TOKEN_TIMEOUT)
            .build()
            .map_err(|error| metadata.wrong(&["oidcTokenEndpoint"], &causes(&error)))?;
        Ok(Self(Arc::new(Issuer {
            client,
            endpoint,
            id,
            credential,
            scope,
            extensions,
        })))
    }
}

fn assertion(metadata: &Metadata) -> Result<Credential, MetadataError> {
    // The certificate is what the issuer knows the key by.
    metadata.required(&["oidcClientAssertionCert"])?;
    let key = metadata.required(&["oidcClientAssertionKey"])?;
    let owned = |name: &str| metadata.filled(&[name]).map(str::to_owned);
    let (key_id, audience, resource) = (owned("oidcKid"), owned("oidcAudience"), owned("oidcResource"));
    let key = EncodingKey::from_rsa_pem(key.as_bytes()).map_err(|error| {
        metadata.wrong(
            &["oidcClientAssertionKey"],
            &format!("an RSA key in PEM is expected: {error}"),
        )
    })?;
    Ok(Credential::Assertion {
        key,
        key_id,
        audience,
        resource,
    })
}

fn extensions(metadata: &Metadata) -> Result<Vec<(String, String)>, MetadataError> {
    let Some(text) = metadata.filled(&["oidcExtensions"]) else {
        return Ok(Vec::new());
    };
    let parsed: Result<std::collections::BTreeMap<String, String>, _> = serde_json::from_str(text);
    match parsed {
        Ok(pairs) if !pairs.is_empty() => Ok(pairs.into_iter().collect()),
        _ => Err(metadata.wrong(&["oidcExtensions"], "a JSON object of texts is expected")),
    }
}

impl Issuer {
    fn failed(&self, why: &str) -> KrafkaError {
        KrafkaError::auth(format!(
            "the issuer of tokens at {}: {why}",
            shown(&self.endpoint)
        ))
    }

    fn form(&self) -> Result<Vec<(&str, String)>, KrafkaError> {
        let mut form = vec![
            ("grant_type", "client_credentials".to_owned()),
            ("scope", self.scope.clone()),
        ];
        if let Credential::Assertion {
            key,
            key_id,
            audience,
            resource,
        } = &self.credential
        {
            let mut header = Header::new(Algorithm::RS256);
            header.kid.clone_from(key_id);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let claims = Claims {
                iss: &self.id,
                sub: &self.id,
                aud: audience.as_deref().unwrap_or(self.endpoint.as_str()),
                iat: now.as_secs(),
                nbf: now.as_secs(),
                exp: now.as_secs() + VALID,
                jti: uuid::Uuid::new_v4().to_string(),
            };
            let signed = encode(&header, &claims, key);
            let signed = signed.map_err(|error| self.failed(&format!("the assertion: {error}")))?;
            form.push(("client_id", self.id.clone()));
            form.push(("client_assertion_type", ASSERTION.to_owned()));
            form.push(("client_assertion", signed));
            for (name, value) in [("audience", audience), ("resource", resource)] {
                if let Some(value) = value {
                    form.push((name, value.clone()));
                }
            }
        }
        Ok(form)
    }

    async fn token(&self) -> Result<OAuthBearerToken, KrafkaError> {
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(self.form()?)
            .finish();
        let mut request = self
            .client
            .post(self.endpoint.clone())
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        if let Credential::Secret(secret) = &self.credential {
            // Encoded before they are joined (RFC 6749, section 2.3.1).
            let encoded =
                |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encoded(&self.id), Some(encoded(secret)));
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.failed(&causes(&error)))?;
        let status = response.status();
        let body = read_body(response, ANSWER)
            .await
            .map_err(|error| self.failed(&error.to_string()))?;
        if !status.is_success() {
            return Err(self.failed(&format!("it answered {status}")));
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| self.failed("its answer has no access_token"))?;
        if answer.access_token.is_empty() {
            return Err(self.failed("its answer has no access_token"));
        }
        let mut token = OAuthBearerToken::new(answer.access_token);
        if let Some(seconds) = answer.expires_in.filter(|seconds| *seconds > 0) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
            token = token.with_lifetime_ms(now.saturating_add(seconds.saturating_mul(1000)));
        }
        for (name, value) in &self.extensions {
            token = token.with_extension(name, value);
        }
        Ok(token)
    }
}

impl CredentialProvider<OAuthBearerToken> for Tokens {
    async fn credentials(&self) -> krafka::Result<OAuthBearerToken> {
        self.0.token().await
    }
}
