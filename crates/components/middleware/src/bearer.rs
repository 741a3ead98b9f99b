//! `middleware.http.bearer`: passes only requests with a token of an OpenID Connect issuer.

mod keys;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, StatusCode};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use outrigger_component::middleware::{Body, Next, Outcome, answer};
use outrigger_component::{Catalog, Entry, Middleware, Setup, catalog::Version};
use serde_json::Value;
use url::Url;

use keys::{KeyCache, Keys};

const LOG: &str = "dapr.contrib";
const ISSUER: &[&str] = &["issuer", "issuerURL"];
const JWKS_URL: &[&str] = &["jwksURL"];
const PREFIX: &str = "bearer ";
/// Shorter texts cannot be tokens.
const MIN_TOKEN_LENGTH: usize = 10;
/// Tolerated clock skew in seconds.
const CLOCK_SKEW: u64 = 5 * 60;
/// Larger Unix times overflow in Dapr, which treats them as past.
const MAX_UNIX_TIME: f64 = 9.22e18;

pub(super) fn add(catalog: &mut Catalog) {
    catalog.middleware.add(Entry::new(
        &["bearer"],
        Version::Only,
        |setup: Setup| async move {
            let metadata = &setup.metadata;
            let rules = Rules {
                issuer: metadata.required(ISSUER)?.to_owned(),
                audience: metadata.required(&["audience", "clientID"])?.to_owned(),
            };
            let url = metadata.filled(JWKS_URL);
            // If the URL is invalid, do not fall back to the issuer's discovery.
            let (names, asked) = if metadata.is_given(JWKS_URL) {
                (JWKS_URL, url.unwrap_or_default())
            } else {
                (ISSUER, &*rules.issuer)
            };
            if !is_web(asked) {
                return Err(metadata.wrong(names, "it must be an http or https URL").into());
            }
            let keys = KeyCache::start(&rules.issuer, url).await?;
            Ok(Arc::new(Bearer { rules, keys }) as Arc<dyn Middleware>)
        },
    ));
}

fn is_web(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
}

struct Bearer {
    rules: Rules,
    keys: KeyCache,
}

/// Requirements for a token.
struct Rules {
    issuer: String,
    audience: String,
}

#[async_trait]
impl Middleware for Bearer {
    async fn handle(&self, request: Request<Body>, next: Next<'_>) -> Outcome {
        let Some(token) = token(request.headers()) else {
            return Ok(answer(StatusCode::UNAUTHORIZED, None));
        };
        let keys = match self.keys.current() {
            Ok(keys) => keys,
            Err(error) => {
                tracing::error!(target: LOG, "Failed to retrieve JWKS cache: {error}");
                return Ok(answer(StatusCode::INTERNAL_SERVER_ERROR, None));
            }
        };
        match self.rules.check(token, &keys) {
            Ok(()) => next.run(request).await,
            Err(error) => {
                tracing::debug!(target: LOG, "bearer token refused: {error}");
                Ok(answer(StatusCode::UNAUTHORIZED, None))
            }
        }
    }

    async fn close(&self) {
        self.keys.close().await;
    }
}

/// The header's token, if it can be one.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (prefix, token) = value.split_at_checked(PREFIX.len())?;
    (prefix.eq_ignore_ascii_case(PREFIX) && token.len() >= MIN_TOKEN_LENGTH).then_some(token)
}

#[derive(Debug, thiserror::Error)]
enum TokenError {
    #[error("its header has no kid")]
    NoKeyId,
    #[error("its header has a crit, and no extension is supported")]
    Critical,
    #[error("its header has a b64 other than true")]
    Unencoded,
    #[error("the claim {0} has a wrong value")]
    Claim(&'static str),
    #[error("the issuer has no signature key with the id {0:?} and an algorithm for {1:?}")]
    NoKey(String, Algorithm),
    #[error(transparent)]
    Invalid(#[from] jsonwebtoken::errors::Error),
}

impl Rules {
    /// Checks signature, issuer, audience and validity of a token.
    fn check(&self, token: &str, keys: &Keys) -> Result<(), TokenError> {
        let header = decode_header(token)?;
        // An empty id names no key, even if a key has an empty id.
        let Some(id) = header.kid.filter(|id| !id.is_empty()) else {
            return Err(TokenError::NoKeyId);
        };
        check_extensions(token)?;
        let validation = self.validation(header.alg);
        let fitting = |key: &&Jwk| {
            let named = key.common.key_id.as_ref() == Some(&id);
            named && is_for_signatures(key) && algorithms(key).contains(&header.alg)
        };
        let mut result = Err(TokenError::NoKey(id.clone(), header.alg));
        for key in keys.iter().filter(fitting) {
            let checked =
                DecodingKey::from_jwk(key).and_then(|key| decode::<Value>(token, &key, &validation));
            match checked {
                Ok(token) => return self.check_claims(&token.claims),
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }

    /// Checks that the library omits: types of claims, and tokens issued in the future.
    fn check_claims(&self, claims: &Value) -> Result<(), TokenError> {
        if claims["iss"].as_str() != Some(&self.issuer) {
            return Err(TokenError::Claim("iss"));
        }
        for name in ["exp", "nbf", "iat"] {
            let is_time = |value: &Value| value.as_f64().is_some_and(|time| time < MAX_UNIX_TIME);
            if claims.get(name).is_some_and(|value| !is_time(value)) {
                return Err(TokenError::Claim(name));
            }
        }
        for name in ["sub", "jti"] {
            if !claims[name].is_string() && !claims[name].is_null() {
                return Err(TokenError::Claim(name));
            }
        }
        let latest = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
            + Duration::from_secs(CLOCK_SKEW).as_secs_f64();
        match claims["iat"].as_f64() {
            Some(issued) if issued > latest => Err(TokenError::Claim("iat")),
            _ => Ok(()),
        }
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = CLOCK_SKEW;
        validation.validate_nbf = true;
        // A token without expiry is valid as long as its key; issuer and audience are required.
        validation.set_required_spec_claims(&["iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation
    }
}

/// Rejects headers with critical extensions, because none is supported, and headers that say the claims are
/// not in Base64, even without `crit`.
fn check_extensions(token: &str) -> Result<(), TokenError> {
    let header = token
        .split('.')
        .next()
        .and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let header = header.and_then(|json| serde_json::from_slice::<Value>(&json).ok());
    let header = header.unwrap_or_default();
    if header.is_null() || header.get("crit").is_some() {
        return Err(TokenError::Critical);
    }
    match header.get("b64") {
        None | Some(Value::Bool(true)) => Ok(()),
        Some(_) => Err(TokenError::Unencoded),
    }
}

/// Whether a key may verify signatures, rather than encrypt.
fn is_for_signatures(key: &Jwk) -> bool {
    let for_it = key.common.public_key_use.as_ref();
    let for_it = for_it.is_none_or(|for_what| *for_what == PublicKeyUse::Signature);
    let operations = key.common.key_operations.as_ref();
    for_it && operations.is_none_or(|listed| listed.contains(&KeyOperations::Verify))
}

/// Algorithms a key can verify: the declared one, or all of its type. Shared secrets are excluded, because
/// anyone with the secret could sign.
fn algorithms(key: &Jwk) -> Vec<Algorithm> {
    let possible = match &key.algorithm {
        AlgorithmParameters::RSA(_) => &[
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ][..],
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => &[Algorithm::ES256][..],
            EllipticCurve::P384 => &[Algorithm::ES384][..],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(_) => &[Algorithm::EdDSA][..],
        _ => &[],
    };
    let said = key.common.key_algorithm.map(|said| said.to_string());
    let allowed = |algorithm: &&Algorithm| said.as_ref().is_none_or(|said| *said == format!("{algorithm:?}"));
    possible.iter().filter(allowed).copied().collect()
}

#[cfg(test)]
mod tests;
