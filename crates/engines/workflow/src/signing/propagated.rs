//! Signatures of histories that travel to activities and children: each chunk is the history of one workflow,
//! signed by its app.

use std::collections::BTreeSet;

use bytes::Bytes;
use outrigger_identity::{SignatureError, Svid};
use outrigger_wire::durabletask::{PropagatedHistory, PropagatedHistoryChunk};
use prost::Message as _;

use super::chain::{Chain, ChainError, sign};
use super::digest::Context;
use super::{Owner, Trust};

/// Why a propagated history was rejected.
#[derive(Debug, thiserror::Error)]
pub enum PropagatedError {
    /// The chunk at this position lacks a part.
    #[error("chunk {0} (app '{1}') has no {2}")]
    Incomplete(usize, String, &'static str),
    /// The signatures of the chunk at this position do not vouch for it.
    #[error("chunk {0} (app '{1}'): {2}")]
    Chain(usize, String, Box<ChainError>),
}

impl PropagatedError {
    /// Whether only a trust anchor is missing.
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, Self::Chain(.., error) if error.is_untrusted())
    }
}

fn context(chunk: &PropagatedHistoryChunk) -> Context<'_> {
    Context {
        instance: &chunk.instance_id,
        workflow: &chunk.workflow_name,
    }
}

/// Signs a chunk of this app: one signature over all its events, in place of earlier ones.
///
/// # Errors
/// [`SignatureError`].
pub fn sign_chunk(svid: &Svid, chunk: &mut PropagatedHistoryChunk) -> Result<(), SignatureError> {
    let signature = sign(svid, 0, chunk.raw_events.iter(), None, 0, Some(context(chunk)))?;
    chunk.raw_signatures = vec![signature.encode_to_vec().into()];
    chunk.signing_cert_chains = vec![svid.chain_der().into()];
    Ok(())
}

/// Verifies that each chunk is signed by its app, in the own namespace. Returns the certificate chains that
/// signed, for the instance that receives the history.
///
/// # Errors
/// [`PropagatedError`].
pub fn verify_propagated(
    history: &PropagatedHistory,
    trust: Trust<'_>,
) -> Result<BTreeSet<Bytes>, PropagatedError> {
    let mut signers = BTreeSet::new();
    for (index, chunk) in history.chunks.iter().enumerate() {
        let parts = [
            ("app id", chunk.app_id.is_empty()),
            ("events", chunk.raw_events.is_empty()),
            ("signatures", chunk.raw_signatures.is_empty()),
            ("certificates", chunk.signing_cert_chains.is_empty()),
        ];
        if let Some((missing, _)) = parts.into_iter().find(|(_, is_missing)| *is_missing) {
            return Err(PropagatedError::Incomplete(index, chunk.app_id.clone(), missing));
        }
        let owner = Owner {
            namespace: trust.namespace,
            app_id: &chunk.app_id,
        };
        let chain = Chain {
            signatures: &chunk.raw_signatures,
            certificates: &chunk.signing_cert_chains,
            events: &chunk.raw_events,
            context: Some(context(chunk)),
        };
        let used = chain.verify(owner, trust.anchors);
        let used =
            used.map_err(|error| PropagatedError::Chain(index, chunk.app_id.clone(), Box::new(error)))?;
        let used = used
            .into_iter()
            .filter_map(|index| chunk.signing_cert_chains.get(index));
        signers.extend(used.cloned());
    }
    Ok(signers)
}

#[cfg(test)]
mod tests {
    use outrigger_identity::TrustAnchors;
    use outrigger_identity::testing::{Algorithm, Authority};

    use super::*;
    use crate::signing::tests::{encoded_events, seconds};

    fn chunk(app: &str) -> PropagatedHistoryChunk {
        PropagatedHistoryChunk {
            raw_events: encoded_events(3, seconds()),
            app_id: app.to_owned(),
            instance_id: "a".to_owned(),
            workflow_name: "order".to_owned(),
            ..PropagatedHistoryChunk::default()
        }
    }

    #[test]
    fn chunk_is_bound_to_app_and_instance() {
        let authority = Authority::new("td", Algorithm::P256);
        let anchors = TrustAnchors::new(authority.bundle());
        let trust = |namespace| Trust {
            anchors: &anchors,
            namespace,
            app_id: "other",
        };
        let svid = authority.workload("shop", "cart").into_svid();
        let mut signed = chunk("cart");
        sign_chunk(&svid, &mut signed).unwrap();
        // Again, as by a lineage that comes around.
        sign_chunk(&svid, &mut signed).unwrap();
        let verify = |change: &dyn Fn(&mut PropagatedHistoryChunk), namespace| {
            let mut chunk = signed.clone();
            change(&mut chunk);
            let chunks = vec![signed.clone(), chunk];
            let history = PropagatedHistory {
                chunks,
                ..PropagatedHistory::default()
            };
            verify_propagated(&history, trust(namespace))
        };
        let signers = verify(&|_| {}, "shop").unwrap();
        assert_eq!(signers, BTreeSet::from([Bytes::from(svid.chain_der())]));
        let changes: [&dyn Fn(&mut PropagatedHistoryChunk); 9] = [
            &|chunk| chunk.instance_id = "b".to_owned(),
            &|chunk| chunk.workflow_name = "refund".to_owned(),
            &|chunk| chunk.app_id = "till".to_owned(),
            &|chunk| chunk.app_id.clear(),
            &|chunk| chunk.raw_events.clear(),
            &|chunk| chunk.raw_events.swap(0, 1),
            &|chunk| chunk.raw_signatures.clear(),
            &|chunk| chunk.signing_cert_chains.clear(),
            &|chunk| {
                chunk
                    .signing_cert_chains
                    .push(authority.workload("shop", "x").into_svid().chain_der().into())
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert!(verify(change, "shop").is_err(), "{number}");
        }
        let foreign = verify(&|_| {}, "other").unwrap_err().to_string();
        assert!(foreign.contains("namespace 'other'"), "{foreign}");
    }
}
