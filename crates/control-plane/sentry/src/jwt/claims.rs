//! The claims of a token that sentry checks.

use std::time::Duration;

use serde_json::{Map, Value};

use super::verify::Rejected;

/// A token's claims.
#[derive(Debug)]
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok().map(Self)
    }

    /// Checks the times, in seconds since 1970, with tolerance `skew`. A missing claim passes.
    pub(super) fn check_times(&self, now: f64, skew: Duration) -> Result<(), Rejected> {
        let skew = skew.as_secs_f64();
        if self.time("iat")?.is_some_and(|issued| issued > now + skew) {
            return Err(Rejected::Claim("iat", "the token was issued in the future"));
        }
        if self.time("exp")?.is_some_and(|expiry| now >= expiry + skew) {
            return Err(Rejected::Claim("exp", "the token has expired"));
        }
        if self.time("nbf")?.is_some_and(|start| now < start - skew) {
            return Err(Rejected::Claim("nbf", "the token is not valid yet"));
        }
        Ok(())
    }

    pub(super) fn check_audience(&self, want: &str) -> Result<(), Rejected> {
        let found = match self.0.get("aud") {
            Some(Value::String(audience)) => audience == want,
            Some(Value::Array(audiences)) => audiences.iter().any(|audience| audience.as_str() == Some(want)),
            _ => false,
        };
        if found {
            Ok(())
        } else {
            Err(Rejected::Claim(
                "aud",
                "the token is not meant for this authority",
            ))
        }
    }

    pub(super) fn check_subject(&self, want: &str) -> Result<(), Rejected> {
        if self.0.get("sub").and_then(Value::as_str) == Some(want) {
            Ok(())
        } else {
            Err(Rejected::Claim("sub", "the token is for another identity"))
        }
    }

    fn time(&self, name: &'static str) -> Result<Option<f64>, Rejected> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(seconds) => Ok(Some(seconds)),
                None => Err(Rejected::Claim(name, "not a number of seconds")),
            },
        }
    }
}
