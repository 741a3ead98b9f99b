//! Histories that instances pass on to activities and children, or receive from a parent.

use std::collections::BTreeSet;

use bytes::Bytes;
use outrigger_wire::durabletask::{HistoryPropagationScope, PropagatedHistory};
use outrigger_workflow::Propagation;
use outrigger_workflow::signing::{PropagatedError, sign_chunk, verify_propagated};
use tonic::Status;

use crate::workflow::engine::Engine;
use crate::workflow::error::retry_later;
use crate::workflow::protocol::LOG;

impl Engine {
    /// The history that the instance `from` passes on to its task `id`, described by `to`. If this sidecar signs,
    /// it signs what the instance adds. Received chunks stay as they came: today's certificate may not have been
    /// valid at the time of an earlier chunk of this app.
    pub(crate) fn passed_on(
        &self,
        from: &str,
        propagation: &Propagation<'_>,
        (id, scope): (i32, HistoryPropagationScope),
        to: impl Fn() -> String,
    ) -> Result<Option<PropagatedHistory>, Status> {
        let Some(mut passed) = propagation.of(id, scope) else {
            return Ok(None);
        };
        let Some(svid) = self.svid() else {
            let to = to();
            tracing::warn!(
                target: LOG,
                "Workflow actor '{from}': propagating unsigned workflow history to {to} (signing is not configured; \
                 chunks cannot be cryptographically verified by the receiver)"
            );
            return Ok(Some(passed));
        };
        for chunk in &mut passed.chunks {
            if chunk.raw_signatures.is_empty() && *chunk.app_id == *self.app_id {
                sign_chunk(&svid, chunk).map_err(|error| {
                    retry_later(format!("the history for {} was not signed: {error}", to()))
                })?;
            }
        }
        Ok(Some(passed))
    }

    /// Verifies a history that came with the call of `receiver`. Returns the certificates of its signers.
    pub(crate) fn admit(
        &self,
        receiver: &str,
        history: &PropagatedHistory,
    ) -> Result<BTreeSet<Bytes>, PropagatedError> {
        if let Some(trust) = self.trust() {
            return verify_propagated(history, trust);
        }
        let signed = history
            .chunks
            .iter()
            .find(|chunk| !chunk.raw_signatures.is_empty());
        if let Some(chunk) = signed {
            tracing::warn!(
                target: LOG,
                "{receiver}: the propagated history of app '{}' is signed, but this sidecar does not verify it; enable \
                 the feature WorkflowHistorySigning",
                chunk.app_id
            );
        }
        Ok(BTreeSet::new())
    }
}
