//! Verifies a token against a key set.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::{Algorithm, KeySet, claims::Claims, decode_segment, key_set::Jwk};

/// The required claims of a token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected<'a> {
    /// Must be among the token's audiences.
    pub audience: &'a str,
    /// `sub`: the SPIFFE id.
    pub subject: &'a str,
    /// Tolerance for times.
    pub skew: Duration,
    /// Seconds since 1970.
    pub now: f64,
}

/// Why a token was refused. The texts are Dapr's, with claims in quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    #[error("the token is not a signed JWT in compact form")]
    Syntax,
    #[error("the token's header has no \"kid\"")]
    NoKeyId,
    #[error("the token's header has critical extensions (\"crit\"), which are not supported")]
    Critical,
    #[error("could not verify message using any of the signatures or keys: {0}")]
    Signature(&'static str),
    #[error("\"{0}\" not satisfied: {1}")]
    Claim(&'static str, &'static str),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
}

/// Checks signature, times, audience and subject, in this order.
pub(crate) fn verify(token: &str, keys: &KeySet, expected: &Expected<'_>) -> Result<(), Rejected> {
    let (message, signature) = token.trim().rsplit_once('.').ok_or(Rejected::Syntax)?;
    let (header, claims) = message.split_once('.').ok_or(Rejected::Syntax)?;
    let header = decode_segment(header).ok_or(Rejected::Syntax)?;
    let header: Value = serde_json::from_slice(&header).map_err(|_| Rejected::Syntax)?;
    if header.get("crit").is_some() {
        return Err(Rejected::Critical);
    }
    let header = Header::deserialize(header).map_err(|_| Rejected::Syntax)?;
    let claims = decode_segment(claims).ok_or(Rejected::Syntax)?;
    let signature = decode_segment(signature).ok_or(Rejected::Syntax)?;

    check_signature(&header, message.as_bytes(), &signature, keys)?;
    let claims = Claims::parse(&claims).ok_or(Rejected::Syntax)?;
    claims.check_times(expected.now, expected.skew)?;
    claims.check_audience(expected.audience)?;
    claims.check_subject(expected.subject)
}

fn check_signature(header: &Header, message: &[u8], signature: &[u8], keys: &KeySet) -> Result<(), Rejected> {
    let kid = header
        .kid
        .as_deref()
        .filter(|kid| !kid.is_empty())
        .ok_or(Rejected::NoKeyId)?;
    let mut named = keys
        .keys
        .iter()
        .filter(|key| key.kid.as_deref() == Some(kid))
        .peekable();
    if named.peek().is_none() {
        return Err(Rejected::Signature("the key set has no key with this id"));
    }
    let algorithm: Algorithm = header
        .alg
        .parse()
        .map_err(|_| Rejected::Signature("the algorithm is not supported"))?;
    if named.any(|key| key.accepts(algorithm, message, signature)) {
        Ok(())
    } else {
        Err(Rejected::Signature("the signature matches no key with this id"))
    }
}

impl Jwk {
    /// The key determines the permitted algorithms, never the token.
    fn accepts(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        self.is_for_signatures()
            && self.alg.as_deref().is_none_or(|alg| alg == algorithm.as_str())
            && self
                .key
                .as_ref()
                .is_some_and(|key| key.verifies(algorithm, message, signature))
    }
}
