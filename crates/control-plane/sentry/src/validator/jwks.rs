//! Requires a JWT signed by a key of a JWK set.

mod source;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use outrigger_identity::SpiffeId;
use outrigger_wire::sentry::v1::SignCertificateRequest;
use tokio_util::sync::CancellationToken;

use crate::{
    jwt::{self, Expected, KeySet},
    settings::JwksOptions,
};
use source::Source;

pub use source::JwksError;

/// Tolerance for times in tokens.
const SKEW: Duration = Duration::from_secs(5 * 60);

/// Verifies callers' tokens. Clones share the key set.
#[derive(Debug, Clone)]
pub(crate) struct JwksValidator {
    /// SPIFFE id of this sentry, the required audience.
    audience: SpiffeId,
    keys: Arc<ArcSwap<KeySet>>,
    source: Arc<Source>,
}

impl JwksValidator {
    /// Loads the key set for the first time.
    pub(crate) async fn new(options: &JwksOptions, sentry: SpiffeId) -> Result<Self, JwksError> {
        let source = Source::new(options)?;
        let keys = source.load().await?;
        Ok(Self {
            audience: sentry,
            keys: Arc::new(ArcSwap::from_pointee(keys)),
            source: Arc::new(source),
        })
    }

    /// Refreshes the key set until stopped. If loading fails, the current set stays in use.
    pub(crate) async fn refresh(&self, drain: CancellationToken) -> Result<(), JwksError> {
        let mut changes = self.source.changes()?;
        loop {
            tokio::select! {
                () = drain.cancelled() => return Ok(()),
                () = changes.next() => {}
            }
            match self.source.load().await {
                Ok(keys) => {
                    tracing::debug!(target: "dapr.sentry.validator.jwks", "loaded {} keys", keys.len());
                    self.keys.store(Arc::new(keys));
                }
                Err(error) => tracing::error!(
                    target: "dapr.sentry.validator.jwks",
                    "keeping the JWKS in use: {}", outrigger_controlplane::chain(&error)
                ),
            }
        }
    }

    pub(super) fn validate(&self, request: &SignCertificateRequest) -> Result<SpiffeId, String> {
        if request.token.is_empty() {
            return Err("the request does not contain a token".to_owned());
        }
        let id = super::check_common(request)?;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let expected = Expected {
            audience: self.audience.as_str(),
            subject: id.as_str(),
            skew: SKEW,
            now: now.as_secs_f64(),
        };
        jwt::verify(&request.token, &self.keys.load(), &expected)
            .map_err(|error| format!("token validation failed: {error}"))?;
        Ok(id)
    }
}
