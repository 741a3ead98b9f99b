//! Tokens for SASL OAUTHBEARER from an OpenID Connect issuer: the client credentials grant (RFC 6749), with a
//! secret or a signed assertion (RFC 7523).

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use krafka::{
    KrafkaError,
    auth::{CredentialProvider, OAuthBearerToken},
};
use outrigger_component::{Metadata, MetadataError, Result};
use outrigger_webclient::{ClientCredentials, TokenError, causes};
use serde::Serialize;

/// Validity of an assertion in seconds.
const ASSERTION_TTL: u64 = 60;
const ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A token source.
#[derive(Clone)]
pub(super) struct Tokens(Arc<Issuer>);

struct Issuer {
    grant: ClientCredentials,
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

impl Tokens {
    pub(super) fn read(metadata: &Metadata, trust: rustls::ClientConfig) -> Result<Self> {
        let endpoint = metadata.required(&["oidcTokenEndpoint"])?;
        let endpoint = ClientCredentials::endpoint_of(endpoint).ok_or_else(|| {
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
        let grant = ClientCredentials::new(endpoint, trust)
            .map_err(|error| metadata.wrong(&["oidcTokenEndpoint"], &causes(&error)))?;
        Ok(Self(Arc::new(Issuer {
            grant,
            id,
            credential,
            scope,
            extensions,
        })))
    }
}

fn assertion(metadata: &Metadata) -> Result<Credential, MetadataError> {
    // The issuer identifies the key by the certificate.
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
    fn form(&self) -> Result<Vec<(&'static str, String)>, TokenError> {
        let mut form = vec![("scope", self.scope.clone())];
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
            let endpoint = self.grant.endpoint().as_str();
            let claims = Claims {
                iss: &self.id,
                sub: &self.id,
                aud: audience.as_deref().unwrap_or(endpoint),
                iat: now.as_secs(),
                nbf: now.as_secs(),
                exp: now.as_secs() + ASSERTION_TTL,
                jti: uuid::Uuid::new_v4().to_string(),
            };
            let signed = encode(&header, &claims, key);
            let signed = signed.map_err(|error| self.grant.failed(format_args!("the assertion: {error}")))?;
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

    async fn token(&self) -> Result<OAuthBearerToken, TokenError> {
        let account = match &self.credential {
            Credential::Secret(secret) => Some((self.id.as_str(), secret.as_str())),
            Credential::Assertion { .. } => None,
        };
        let given = self.grant.token(&self.form()?, account).await?;
        let mut token = OAuthBearerToken::new(given.access_token);
        if let Some(valid) = given.valid {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let until = now.saturating_add(valid).as_millis();
            token = token.with_lifetime_ms(i64::try_from(until).unwrap_or(i64::MAX));
        }
        for (name, value) in &self.extensions {
            token = token.with_extension(name, value);
        }
        Ok(token)
    }
}

impl CredentialProvider<OAuthBearerToken> for Tokens {
    async fn credentials(&self) -> krafka::Result<OAuthBearerToken> {
        let token = self.0.token().await;
        token.map_err(|error| KrafkaError::auth(error.to_string()))
    }
}
