//! Histories that instances pass on to activities and children, or receive from a parent.

use outrigger_wire::durabletask::{HistoryPropagationScope, PropagatedHistory};
use outrigger_workflow::Propagation;

use crate::workflow::engine::Engine;
use crate::workflow::protocol::LOG;

impl Engine {
    /// The history that the instance `from` passes on to its task `id`, described by `to`.
    pub(crate) fn passed_on(
        &self,
        from: &str,
        propagation: &Propagation<'_>,
        (id, scope): (i32, HistoryPropagationScope),
        to: impl FnOnce() -> String,
    ) -> Option<PropagatedHistory> {
        let passed = propagation.of(id, scope)?;
        let to = to();
        tracing::warn!(
            target: LOG,
            "Workflow actor '{from}': propagating unsigned workflow history to {to} (signing is not configured; chunks \
             cannot be cryptographically verified by the receiver)"
        );
        Some(passed)
    }
}
