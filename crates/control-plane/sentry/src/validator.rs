//! Decides whether a caller may have the requested identity.

mod jwks;
mod kubernetes;

use std::str::FromStr;

use outrigger_controlplane::config::unknown;
use outrigger_identity::{DEFAULT_TRUST_DOMAIN, SENTRY_APP_ID, SpiffeId, TrustDomain, is_control_plane};
use outrigger_wire::sentry::v1::{SignCertificateRequest, sign_certificate_request::TokenValidator};

pub use jwks::JwksError;
pub(crate) use jwks::JwksValidator;
pub(crate) use kubernetes::KubernetesValidator;

/// Maximum length of an app id in bytes.
const MAX_APP_ID: usize = 64;

/// The validators of this sentry, and the default for requests that name none.
#[derive(Debug)]
pub(crate) struct Validators {
    /// Whether callers without proof of identity are accepted.
    insecure: bool,
    jwks: Option<JwksValidator>,
    /// Set in a cluster, whose pods have tokens.
    kubernetes: Option<KubernetesValidator>,
    /// Namespace of the control plane, which is sentry's.
    namespace: String,
    /// Which callers get control plane identities without a token.
    control_plane: ControlPlane,
}

/// Which callers the validator "insecure" gives control plane identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlPlane {
    /// Local processes of sentry's user or of root, which can read the authority's key anyway.
    SameUser,
    /// None.
    Nobody,
}

impl FromStr for ControlPlane {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same-user" => Ok(Self::SameUser),
            "nobody" => Ok(Self::Nobody),
            other => Err(unknown(other, &["same-user", "nobody"])),
        }
    }
}

/// Why a request was refused.
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
    /// Without a JWKS validator every caller is accepted; `control_plane` restricts control plane identities.
    /// `namespace` is that of the control plane.
    pub(crate) fn new(jwks: Option<JwksValidator>, namespace: &str, control_plane: ControlPlane) -> Self {
        Self {
            insecure: jwks.is_none(),
            jwks,
            kubernetes: None,
            namespace: namespace.to_owned(),
            control_plane,
        }
    }

    /// Adds the validator of a cluster, which becomes the default.
    pub(crate) fn with_kubernetes(mut self, kubernetes: KubernetesValidator) -> Self {
        self.insecure = false;
        self.kubernetes = Some(kubernetes);
        self
    }

    /// Whether the owner of the calling process matters: a caller without token requests a control plane
    /// identity.
    pub(crate) fn asks_for_control_plane(&self, request: &SignCertificateRequest) -> bool {
        self.insecure && self.is_control_plane(&request.namespace, &request.id)
    }

    fn is_control_plane(&self, namespace: &str, app_id: &str) -> bool {
        is_control_plane(app_id) && namespace == self.namespace
    }

    pub(crate) fn jwks(&self) -> Option<&JwksValidator> {
        self.jwks.as_ref()
    }

    /// The identity that the caller may have; calls the cluster if its validator applies.
    pub(crate) async fn check(
        &self,
        request: &SignCertificateRequest,
        is_own_user: bool,
    ) -> Result<SpiffeId, Refusal> {
        let asked = [TokenValidator::Unknown, TokenValidator::Kubernetes].map(i32::from);
        match &self.kubernetes {
            Some(kubernetes) if asked.contains(&request.token_validator) => {
                let id = kubernetes.validate(request).await.map_err(Refusal::Denied)?;
                self.check_own(&id).map_err(Refusal::Denied)?;
                Ok(id)
            }
            _ => self.validate(request, is_own_user),
        }
    }

    /// The identity that the caller may have. `is_own_user` tells whether it is a local process of sentry's
    /// user or of root.
    pub(crate) fn validate(
        &self,
        request: &SignCertificateRequest,
        is_own_user: bool,
    ) -> Result<SpiffeId, Refusal> {
        let asked = match request.token_validator {
            0 if self.insecure => TokenValidator::Insecure,
            0 => return Err(Refusal::NoValidator),
            other => TokenValidator::try_from(other).map_err(|_| Refusal::NotEnabled)?,
        };
        let id = match (asked, &self.jwks) {
            (TokenValidator::Insecure, _) if self.insecure => check_common(request),
            (TokenValidator::Jwks, Some(jwks)) => jwks.validate(request),
            _ => return Err(Refusal::NotEnabled),
        }
        .map_err(Refusal::Denied)?;
        self.check_own(&id).map_err(Refusal::Denied)?;
        if asked == TokenValidator::Insecure {
            self.check_control_plane(&id, is_own_user)
                .map_err(Refusal::Denied)?;
        }
        Ok(id)
    }

    /// Refuses sentry's own identity: sentry signs its certificate in memory, so no request for it is
    /// legitimate.
    fn check_own(&self, id: &SpiffeId) -> Result<(), String> {
        if id.app_id() == SENTRY_APP_ID && id.namespace() == self.namespace {
            return Err(format!(
                "sentry's own identity (\"{SENTRY_APP_ID}\" in namespace \"{}\") is reserved; choose another app id",
                self.namespace
            ));
        }
        Ok(())
    }

    /// Sidecars trust control plane identities fully. Without proof they are given only to processes that can
    /// read the authority's key anyway. The trust domain is irrelevant, because the names also determine DNS
    /// names.
    fn check_control_plane(&self, id: &SpiffeId, is_own_user: bool) -> Result<(), String> {
        if !self.is_control_plane(id.namespace(), id.app_id()) {
            return Ok(());
        }
        let who = match self.control_plane {
            ControlPlane::SameUser if is_own_user => return Ok(()),
            ControlPlane::SameUser => "only to local processes of sentry's user or of root",
            ControlPlane::Nobody => "to nobody (--insecure-control-plane=nobody)",
        };
        Err(format!(
            "\"{}\" in namespace \"{}\" belongs to the control plane, and the validator \"insecure\" gives such \
             an identity {who}; run this process as the user of sentry, configure a jwks validator \
             (spec.mtls.tokenValidators of sentry's Configuration), or choose another app id",
            id.app_id(),
            self.namespace
        ))
    }
}

/// The checks that all validators share.
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
