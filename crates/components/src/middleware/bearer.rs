//! `middleware.http.bearer`: only requests with a token of an OpenID Connect issuer are let through.

mod keys;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, StatusCode};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use outrigger_component::middleware::{Body, Next, Outcome, answer};
use outrigger_component::{Catalog, Entry, Middleware, Setup, catalog::Version};
use url::Url;

use keys::{KeyCache, Keys};

const LOG: &str = "dapr.contrib";
const PREFIX: &str = "bearer ";
/// What is shorter cannot be a token.
const SHORTEST: usize = 10;
/// How far clocks may be apart, seconds.
const CLOCK_SKEW: u64 = 5 * 60;

pub(super) fn add(catalog: &mut Catalog) {
    catalog.middleware.add(Entry::new(
        &["bearer"],
        Version::Only,
        |setup: Setup| async move {
            let metadata = &setup.metadata;
            let rules = Rules {
                issuer: metadata.required(&["issuer", "issuerURL"])?.to_owned(),
                audience: metadata.required(&["audience", "clientID"])?.to_owned(),
            };
            let url = metadata.filled(&["jwksURL"]);
            let (name, asked) = url.map_or((["issuer", "issuerURL"], &*rules.issuer), |url| {
                (["jwksURL"; 2], url)
            });
            if !is_web(asked) {
                return Err(metadata.wrong(&name, "it must be an http or https URL").into());
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

/// What a token must say.
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

/// The token in the header, if there can be one.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (prefix, token) = value.split_at_checked(PREFIX.len())?;
    (prefix.eq_ignore_ascii_case(PREFIX) && token.len() >= SHORTEST).then_some(token)
}

#[derive(Debug, thiserror::Error)]
enum TokenError {
    #[error("no key of the issuer has the id {0:?}, and an algorithm for {1:?}")]
    NoKey(Option<String>, Algorithm),
    #[error(transparent)]
    Invalid(#[from] jsonwebtoken::errors::Error),
}

impl Rules {
    /// Whether a token is signed with one of `keys`, is of this issuer, for this audience, and valid now.
    fn check(&self, token: &str, keys: &Keys) -> Result<(), TokenError> {
        let header = decode_header(token)?;
        let validation = self.validation(header.alg);
        let fitting = |key: &&Jwk| {
            let named = header.kid.is_none() || key.common.key_id == header.kid;
            named && algorithms(key).contains(&header.alg)
        };
        let mut result = Err(TokenError::NoKey(header.kid.clone(), header.alg));
        for key in keys.iter().filter(fitting) {
            let checked = DecodingKey::from_jwk(key)
                .and_then(|key| decode::<serde_json::Value>(token, &key, &validation));
            match checked {
                Ok(_) => return Ok(()),
                Err(error) => result = Err(error.into()),
            }
        }
        result
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.leeway = CLOCK_SKEW;
        validation.validate_nbf = true;
        // A token without end is as valid as its key; these two are what it is for.
        validation.set_required_spec_claims(&["iss", "aud"]);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation
    }
}

/// What a key can verify: what it says, else everything its kind can. Shared secrets verify nothing: whoever knows
/// one could sign with it.
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
