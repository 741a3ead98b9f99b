//! Signed histories. Each save that adds events is signed by the sidecar's identity, and each signature
//! contains the digest of the one before it. Results of activities and children carry an attestation of the
//! sidecar that ran them.

pub mod attestation;
mod chain;
mod digest;
mod propagated;
mod rows;
mod verify;

use std::collections::HashMap;

use outrigger_identity::{SignatureError, SignerChain, TrustAnchors};

pub use attestation::{AttestationError, Attested, Kind};
pub use chain::ChainError;
pub use propagated::{PropagatedError, sign_chunk, verify_propagated};
pub use verify::{HistoryError, TAMPERED};

pub use rows::RowCounts;
pub(crate) use rows::{MAX_ROWS, Tables};

use digest::Digest;

/// What verification relies on.
#[derive(Clone, Copy)]
pub struct Trust<'a> {
    /// The trust anchors.
    pub anchors: &'a TrustAnchors,
    /// The namespace that signers belong to.
    pub namespace: &'a str,
    /// The app that owns the instance.
    pub app_id: &'a str,
}

/// Certificate chains that the trust anchors vouch for, by digest, with the validity of their leaves.
#[derive(Debug, Default)]
pub struct TrustedChains(HashMap<Digest, (i64, i64)>);

impl TrustedChains {
    /// Checks who vouches for a chain in this second since 1970. Returns whether that was known.
    pub(crate) fn check(
        &mut self,
        digest: Digest,
        chain: &SignerChain,
        anchors: &TrustAnchors,
        second: i64,
    ) -> Result<bool, SignatureError> {
        let known = self.0.get(&digest);
        if known.is_some_and(|(from, until)| (*from..=*until).contains(&second)) {
            return Ok(true);
        }
        chain.check_trust(anchors, second)?;
        self.0.insert(digest, chain.validity());
        Ok(false)
    }
}

/// The app and namespace that a chain must belong to.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    namespace: &'a str,
    app_id: &'a str,
}

impl Owner<'_> {
    /// Whether the leaf is that of the owner.
    fn owns(&self, chain: &SignerChain) -> bool {
        let id = chain.id();
        id.namespace() == self.namespace && id.app_id() == self.app_id
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use bytes::Bytes;
    use outrigger_wire::durabletask::history_event::EventType;
    use outrigger_wire::durabletask::{EventRaisedEvent, HistoryEvent};
    use prost::Message as _;
    use prost_types::Timestamp;

    use crate::event::event;

    pub(super) fn seconds() -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(since.as_secs()).unwrap()
    }

    pub(super) fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanos: 0 }
    }

    pub(super) fn raised(id: i32, second: i64) -> HistoryEvent {
        event(
            id,
            at(second),
            EventType::EventRaised(EventRaisedEvent::default()),
        )
    }

    pub(super) fn encoded_events(count: i32, second: i64) -> Vec<Bytes> {
        (0..count)
            .map(|id| raised(id, second).encode_to_vec().into())
            .collect()
    }
}
