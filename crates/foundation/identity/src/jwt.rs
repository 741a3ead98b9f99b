//! The JWT that an authority may issue with the certificate.
//!
//! Its signature is not checked, because it arrives over a connection to the authority itself.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Tolerated clock skew.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Why a JWT was rejected.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// Not a JWT, or a claim is missing or wrong.
    #[error("error parsing JWT: {0}")]
    Parse(String),
    /// The audience does not include the trust domain of the identity.
    #[error("JWT audience {found:?} does not contain the trust domain {expected:?}")]
    NotOfTrustDomain {
        /// Audience of the token.
        found: Vec<String>,
        /// The trust domain.
        expected: String,
    },
    /// A token for one audience has another one, or further ones.
    #[error("JWT audience mismatch: {found:?} is not exactly {expected:?}")]
    Mismatch {
        /// Audience of the token.
        found: Vec<String>,
        /// The audience of the token's entry.
        expected: String,
    },
}

/// A JWT, its audiences and its expiry.
#[derive(Clone)]
pub struct JwtSvid {
    token: String,
    audiences: Vec<String>,
    expires: Timestamp,
}

impl JwtSvid {
    /// Parses `token`, which must be valid at `now`.
    ///
    /// # Errors
    /// [`JwtError::Parse`].
    pub fn parse(token: &str, now: Timestamp) -> Result<Self, JwtError> {
        let claims = claims(token)?;
        let expires = time_claim(&claims, "exp")?.ok_or_else(|| parse_error("the claim exp is missing"))?;
        if expires + SKEW <= now {
            return Err(JwtError::Parse(format!("the token expired at {expires}")));
        }
        for claim in ["nbf", "iat"] {
            if time_claim(&claims, claim)?.is_some_and(|from| from - SKEW > now) {
                return Err(JwtError::Parse(format!("the claim {claim} is in the future")));
            }
        }
        Ok(Self {
            token: token.to_owned(),
            audiences: audiences(&claims),
            expires,
        })
    }

    /// Requires that the audiences include `trust_domain`.
    pub(crate) fn of_trust_domain(self, trust_domain: &str) -> Result<Self, JwtError> {
        match self.is_for(trust_domain) {
            true => Ok(self),
            false => Err(JwtError::NotOfTrustDomain {
                found: self.audiences,
                expected: trust_domain.to_owned(),
            }),
        }
    }

    /// Requires that `audience` is the only audience.
    pub(crate) fn of_one_audience(self, audience: &str) -> Result<Self, JwtError> {
        match self.audiences == [audience] {
            true => Ok(self),
            false => Err(JwtError::Mismatch {
                found: self.audiences,
                expected: audience.to_owned(),
            }),
        }
    }

    /// The audiences, from the claim `aud`.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// Whether `audience` is one of the audiences.
    pub(crate) fn is_for(&self, audience: &str) -> bool {
        self.audiences.iter().any(|of| of == audience)
    }

    /// The compact form of the token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The expiry, from the claim `exp`.
    pub fn expires(&self) -> Timestamp {
        self.expires
    }
}

impl fmt::Debug for JwtSvid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtSvid")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

fn claims(token: &str) -> Result<Value, JwtError> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, _signature] = parts.as_slice() else {
        return Err(parse_error("it does not have three parts"));
    };
    let decode = |part: &str| {
        let bytes = URL_SAFE_NO_PAD
            .decode(part)
            .map_err(|error| parse_error(&error.to_string()))?;
        serde_json::from_slice::<Value>(&bytes).map_err(|error| parse_error(&error.to_string()))
    };
    decode(header)?;
    match decode(payload)? {
        claims @ Value::Object(_) => Ok(claims),
        _ => Err(parse_error("the claims are not an object")),
    }
}

fn time_claim(claims: &Value, name: &str) -> Result<Option<Timestamp>, JwtError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    // Fractions of a second are ignored.
    let seconds = value
        .as_i64()
        .or_else(|| value.as_f64().map(|seconds| seconds as i64));
    seconds
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        // Leaves room to add and subtract the tolerance.
        .filter(|time| time.checked_add(SKEW).is_ok() && time.checked_sub(SKEW).is_ok())
        .map(Some)
        .ok_or_else(|| parse_error(&format!("the claim {name} is not a time")))
}

/// The claim `aud` is a string or a list of strings.
fn audiences(claims: &Value) -> Vec<String> {
    match claims.get("aud") {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(many)) => many
            .iter()
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect(),
        _ => Vec::new(),
    }
}

fn parse_error(cause: &str) -> JwtError {
    JwtError::Parse(cause.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: i64 = 1_750_000_000;

    fn token(claims: &Value) -> String {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","typ":"JWT"}"#);
        format!("{header}.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    fn parse(claims: &Value) -> Result<JwtSvid, JwtError> {
        JwtSvid::parse(&token(claims), Timestamp::from_second(NOW).unwrap())?.of_trust_domain("public")
    }

    #[test]
    fn accepts_valid_token() {
        for audience in [json!("public"), json!(["other", "public"])] {
            let svid =
                parse(&json!({"aud": audience, "exp": NOW + 60, "nbf": NOW - 60, "iat": NOW})).unwrap();
            assert_eq!(svid.expires().as_second(), NOW + 60);
        }
    }

    #[test]
    fn requires_trust_domain_in_audience() {
        for audience in [
            json!(null),
            json!([]),
            json!(["other"]),
            json!("public2"),
            json!(7),
        ] {
            let error = parse(&json!({"aud": audience, "exp": NOW + 60})).unwrap_err();
            let refused = matches!(error, JwtError::NotOfTrustDomain { .. });
            assert!(refused, "{audience}: {error}");
        }
        assert!(matches!(
            parse(&json!({"exp": NOW + 60})),
            Err(JwtError::NotOfTrustDomain { .. })
        ));
    }

    #[test]
    fn requires_exactly_one_audience() {
        let exact = |audience: Value| {
            let token = token(&json!({"aud": audience, "exp": NOW + 60}));
            let jwt = JwtSvid::parse(&token, Timestamp::from_second(NOW).unwrap()).unwrap();
            jwt.of_one_audience("bank")
        };
        exact(json!("bank")).unwrap();
        assert_eq!(exact(json!(["bank"])).unwrap().audiences(), ["bank"]);
        for audience in [
            json!(["bank", "public"]),
            json!(["bank", "bank"]),
            json!("public"),
            json!(null),
        ] {
            let refused = exact(audience.clone());
            assert!(matches!(refused, Err(JwtError::Mismatch { .. })), "{audience}");
        }
    }

    #[test]
    fn tolerates_five_minutes_of_skew() {
        let at = |exp: i64, nbf: i64| parse(&json!({"aud": "public", "exp": exp, "nbf": nbf})).is_ok();
        assert!(at(NOW - 299, NOW + 300));
        assert!(!at(NOW - 300, NOW));
        assert!(!at(NOW + 60, NOW + 301));
    }

    #[test]
    fn broken_tokens() {
        let now = Timestamp::from_second(NOW).unwrap();
        for text in ["", "a.b", "a.b.c", "..", "eyJ9.eyJ9.x", "a.b.c.d"] {
            assert!(
                matches!(JwtSvid::parse(text, now), Err(JwtError::Parse(_))),
                "{text}"
            );
        }
        for claims in [
            json!([]),
            json!({"aud": "public"}),
            json!({"aud": "public", "exp": "soon"}),
        ] {
            assert!(matches!(parse(&claims), Err(JwtError::Parse(_))), "{claims}");
        }
        for exp in [json!(i64::MAX), json!(1e300), json!(i64::MIN)] {
            assert!(parse(&json!({"aud": "public", "exp": exp})).is_err(), "{exp}");
        }
    }
}
