//! Deciding whether a caller may have the identity it asks for.

mod jwks;

use outrigger_identity::{DEFAULT_TRUST_DOMAIN, SpiffeId, TrustDomain};
use outrigger_wire::sentry::v1::{SignCertificateRequest, sign_certificate_request::TokenValidator};

pub use jwks::JwksError;
pub(crate) use jwks::JwksValidator;

/// Longest app id, in bytes.
const MAX_APP_ID: usize = 64;

/// The validators of this sentry, and the one used when a request names none.
#[derive(Debug)]
pub(crate) struct Validators {
    /// Absent when callers have to prove who they are.
    insecure: bool,
    jwks: Option<JwksValidator>,
}

/// Why a request was turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("a validator name must be specified in this environment")]
    NoValidator,
    #[error("the requested validator is not enabled")]
    NotEnabled,
    #[error("{0}")]
    Denied(String),
}

impl Validators {
    /// Without a JWKS validator every caller is believed.
    pub(crate) fn new(jwks: Option<JwksValidator>) -> Self {
        Self {
            insecure: jwks.is_none(),
            jwks,
        }
    }

    pub(crate) fn jwks(&self) -> Option<&JwksValidator> {
        self.jwks.as_ref()
    }

    /// The identity the caller may have.
    pub(crate) fn validate(&self, request: &SignCertificateRequest) -> Result<SpiffeId, Refusal> {
        let asked = match request.token_validator {
            0 if self.insecure => TokenValidator::Insecure,
            0 => return Err(Refusal::NoValidator),
            other => TokenValidator::try_from(other).map_err(|_| Refusal::NotEnabled)?,
        };
        match (asked, &self.jwks) {
            (TokenValidator::Insecure, _) if self.insecure => check_common(request),
            (TokenValidator::Jwks, Some(jwks)) => jwks.validate(request),
            _ => return Err(Refusal::NotEnabled),
        }
        .map_err(Refusal::Denied)
    }
}

/// What every validator asks of a request.
fn check_common(request: &SignCertificateRequest) -> Result<SpiffeId, String> {
    let mut problems = Vec::new();
    if request.id.is_empty() {
        problems.push("parameter app-id cannot be empty");
    }
    if request.id.contains('.') {
        problems.push("parameter app-id cannot contain dots");
    }
    if request.id.len() > MAX_APP_ID {
        problems.push("app ID must be 64 characters or less");
    }
    if request.certificate_signing_request.is_empty() {
        problems.push("CSR is required");
    }
    if request.namespace.is_empty() {
        problems.push("namespace is required");
    }
    if !problems.is_empty() {
        return Err(format!("invalid request: {}", problems.join("\n")));
    }
    let trust_domain = if request.trust_domain.is_empty() {
        DEFAULT_TRUST_DOMAIN
    } else {
        &request.trust_domain
    };
    let trust_domain: TrustDomain = trust_domain.parse().map_err(|error| format!("{error}"))?;
    SpiffeId::new(&trust_domain, &request.namespace, &request.id)
        .map_err(|error| format!("failed to construct SPIFFE ID for requestor: {error}"))
}

#[cfg(test)]
mod tests;
