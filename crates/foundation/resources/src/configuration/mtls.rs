//! `mtls`: settings of the CA.

use std::collections::BTreeMap;

use serde::Deserialize;

/// `mtls` as written. Texts are not parsed here: the CA reports invalid ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mtls {
    /// mTLS between sidecars.
    pub enabled: bool,
    /// Lifetime of workload certificates, a Go duration; empty means 24h.
    pub workload_cert_ttl: String,
    /// Offset of NotBefore into the past, a Go duration; empty means 15m.
    pub allowed_clock_skew: String,
    /// Address of the CA.
    pub sentry_address: String,
    /// Trust domain of the control plane.
    pub control_plane_trust_domain: String,
    /// Validators for the tokens of certificate requests.
    pub token_validators: Vec<TokenValidator>,
}

/// One entry of `tokenValidators`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenValidator {
    /// Name, compared ignoring case.
    pub name: String,
    /// Options; other values than texts as JSON.
    pub options: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    enabled: bool,
    #[serde(rename = "workloadCertTTL")]
    workload_cert_ttl: String,
    allowed_clock_skew: String,
    sentry_address: String,
    control_plane_trust_domain: String,
    token_validators: Vec<RawValidator>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawValidator {
    name: String,
    options: serde_json::Value,
}

impl From<Raw> for Mtls {
    fn from(raw: Raw) -> Mtls {
        Mtls {
            enabled: raw.enabled,
            workload_cert_ttl: raw.workload_cert_ttl,
            allowed_clock_skew: raw.allowed_clock_skew,
            sentry_address: raw.sentry_address,
            control_plane_trust_domain: raw.control_plane_trust_domain,
            token_validators: raw.token_validators.into_iter().map(validator).collect(),
        }
    }
}

fn validator(raw: RawValidator) -> TokenValidator {
    let options = match raw.options {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    TokenValidator {
        name: raw.name,
        options: options.into_iter().map(|(k, v)| (k, text(v))).collect(),
    }
}
