//! Access control of callees: which apps may call which operations of this app.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use outrigger_identity::SpiffeId;
use outrigger_policy::access::{AccessControl, CallerId, denial};
use outrigger_runtime::metrics::SidecarMetrics;
use tonic::Status;

/// The access policy of the Configuration, if any, and the counters of its decisions.
pub struct Access {
    control: ArcSwapOption<AccessControl>,
    metrics: Arc<SidecarMetrics>,
}

impl Access {
    /// `None` allows everything.
    pub fn new(control: Option<AccessControl>, metrics: Arc<SidecarMetrics>) -> Self {
        Self {
            control: ArcSwapOption::from_pointee(control),
            metrics,
        }
    }

    /// Replaces the policy from the next call on; `None` allows everything.
    pub fn replace(&self, control: Option<AccessControl>) {
        self.control.store(control.map(Arc::new));
    }

    /// Decides on a call of `peer` (`None` without mTLS) to `operation`: a canonical method path or a full
    /// gRPC method. `verb` is the HTTP verb, or `NONE`.
    ///
    /// # Errors
    /// `PermissionDenied` with the text of the contract.
    pub fn check(&self, peer: Option<&SpiffeId>, operation: &str, verb: &str) -> Result<(), Status> {
        let control = self.control.load();
        let Some(control) = control.as_deref() else {
            return Ok(());
        };
        let caller = peer.map(|id| CallerId {
            trust_domain: id.trust_domain(),
            namespace: id.namespace(),
            app_id: id.app_id(),
        });
        let decision = control.decide(caller, operation, verb);
        self.metrics.access(caller.as_ref(), &decision);
        if decision.allowed {
            return Ok(());
        }
        let id = peer.map_or("", SpiffeId::as_str);
        let text = denial(id, operation, verb, decision.ambiguity.as_ref());
        tracing::debug!(target: "dapr.runtime.acl", "{text}");
        Err(Status::permission_denied(text))
    }
}
