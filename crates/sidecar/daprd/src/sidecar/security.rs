//! The identity of this sidecar: its certificate and the metrics about it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_identity::{
    AnchorsSource, CaConfig, Identity, IdentityEvent, Mode as IdentityMode, SecurityConfig, SpiffeId,
};
use outrigger_telemetry::metrics::Metrics;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{Env, LOG, Secured, SidecarError, resources};
use crate::config::{Config, Mode};

/// Counts identity events before the metrics exist: in Kubernetes the metrics settings can be read only with
/// an identity.
#[derive(Clone, Default)]
pub(super) struct IdentityCounts(Arc<Mutex<Counting>>);

enum Counting {
    Waiting(Vec<IdentityEvent>),
    Ready(Arc<Metrics>),
}

impl Default for Counting {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl IdentityCounts {
    pub(super) fn start(&self, metrics: &Arc<Metrics>) {
        let before = std::mem::replace(&mut *self.lock(), Counting::Ready(Arc::clone(metrics)));
        if let Counting::Waiting(events) = before {
            events.into_iter().for_each(|event| self.count(event));
        }
    }

    fn count(&self, event: IdentityEvent) {
        let metrics = match &mut *self.lock() {
            Counting::Waiting(events) => return events.push(event),
            Counting::Ready(metrics) => Arc::clone(metrics),
        };
        match event {
            IdentityEvent::InitOk => metrics.runtime.mtls_initialized(),
            IdentityEvent::InitFailed(reason) => metrics.runtime.mtls_init_failed(reason),
            IdentityEvent::Rotated => metrics.runtime.certificate_rotated(),
            IdentityEvent::RotateFailed(reason) => metrics.runtime.certificate_rotation_failed(reason),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This sidecar's identity towards a control plane service, and the identity that the service must prove.
///
/// # Errors
/// [`SidecarError::Security`] if the control plane's names are not valid.
pub(super) fn service_identity(
    config: &Config,
    identity: Option<&Identity>,
    app_id: &str,
) -> Result<Option<(Identity, SpiffeId)>, SidecarError> {
    let Some(identity) = identity else {
        return Ok(None);
    };
    Ok(Some((identity.clone(), resources::service_id(config, app_id)?)))
}

/// Obtains the identity from the CA; `None` without mTLS.
///
/// # Errors
/// [`SidecarError::Security`] if the CA refuses.
pub(super) async fn secure(
    config: &Config,
    env: &Env,
    control: &Handle,
    counts: &IdentityCounts,
) -> Result<Secured, SidecarError> {
    let security = &config.security;
    let mode = match config.mode {
        Mode::Standalone => IdentityMode::Standalone,
        Mode::Kubernetes => IdentityMode::Kubernetes,
    };
    if !security.mtls && config.mode == Mode::Standalone {
        tracing::info!(target: LOG, "mTLS is disabled. Skipping certificate request and tls validation");
        return Ok(Secured {
            identity: None,
            renewal: None,
        });
    }
    let counts = counts.clone();
    let events = Arc::new(move |event| counts.count(event));
    let control_plane_trust_domain = resources::control_plane(config)?;
    let anchors = AnchorsSource::Pem(security.trust_anchors.clone().unwrap_or_default());
    let request = SecurityConfig {
        ca: CaConfig {
            sentry_address: security.sentry_address.clone(),
            control_plane_trust_domain,
            control_plane_namespace: security.control_plane_namespace.clone(),
            app_id: config.app_id.clone(),
            namespace: config.workload.namespace.clone().filter(|ns| !ns.is_empty()),
            jwt_audiences: security.jwt_audiences.clone(),
            mode,
            token_file: None,
            env: Arc::clone(env),
        },
        anchors,
        directory: None,
        events,
    };
    let cancel = CancellationToken::new();
    let fetched = control
        .spawn(async move { outrigger_identity::start(request, &cancel).await })
        .await;
    let fetched = fetched.map_err(|e| SidecarError::Security(e.to_string()))?;
    let (identity, renewal) =
        fetched.map_err(|e| SidecarError::Security(outrigger_transport::error::chain(&e)))?;
    Ok(Secured {
        identity: Some(identity),
        renewal: Some(renewal),
    })
}
