//! The chain of signatures over the events of a history.

use bytes::Bytes;
use outrigger_identity::{SignatureError, SignerChain, Svid, TrustAnchors};
use outrigger_wire::durabletask::backend::v1::HistorySignature;
use prost::Message as _;
use prost_types::Timestamp;

use super::Owner;
use super::digest::{Context, Digest, message, of_parts, sha256};

/// Why signatures do not vouch for a history.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// There are events, but no signature.
    #[error("no signatures but {0} events exist")]
    Unsigned(usize),
    /// A signature cannot be decoded.
    #[error("signature {0} cannot be read: {1}")]
    Malformed(usize, prost::DecodeError),
    /// A certificate chain cannot be decoded.
    #[error("signing certificate {0}: {1}")]
    Certificate(usize, SignatureError),
    /// A certificate belongs to another app or namespace.
    #[error("signing certificate {index} is that of {found}, not of {expected}")]
    Foreign {
        /// Its position in the table.
        index: usize,
        /// Its SPIFFE ID.
        found: String,
        /// The expected app and namespace.
        expected: String,
    },
    /// The first signature continues another one.
    #[error("signature 0 has the digest of a signature before it")]
    NotFirst,
    /// A signature does not continue the one before it.
    #[error("signature {0} does not have the digest of the signature before it")]
    Unlinked(usize),
    /// A signature does not start at the event where the one before it ends.
    #[error("signature {index} starts at event {start}, expected event {expected}")]
    Gap {
        /// Its position in the chain.
        index: usize,
        /// Its first event.
        start: u64,
        /// The end of the signature before it.
        expected: usize,
    },
    /// A signature covers no event, or events that do not exist.
    #[error("signature {index} covers {count} events from event {start} on, but {events} events exist")]
    Range {
        /// Its position in the chain.
        index: usize,
        /// Its first event.
        start: u64,
        /// The number of its events.
        count: u64,
        /// The number of events of the history.
        events: usize,
    },
    /// A signature names a certificate that does not exist.
    #[error("signature {0} names certificate {1}, which does not exist")]
    NoCertificate(usize, u64),
    /// The leaf was not valid at the time of the events.
    #[error("signature {0}: the certificate of {1} was not valid at the time of the signed events")]
    NotValid(usize, String),
    /// Events are not those that were signed.
    #[error("signature {index}: events digest mismatch for range [{start}, {end})")]
    Events {
        /// The signature's position in the chain.
        index: usize,
        /// Its first event.
        start: usize,
        /// The end of its events.
        end: usize,
    },
    /// The signature does not match, or no anchor vouches for its certificate.
    #[error("signature {0}: signature verification failed: {1}")]
    Signature(usize, SignatureError),
    /// Events at the end are not signed, or signed events are missing.
    #[error("signatures cover events [0, {covered}) but {events} events exist")]
    Coverage {
        /// Number of signed events.
        covered: usize,
        /// Number of events of the history.
        events: usize,
    },
}

impl ChainError {
    /// Whether only a trust anchor is missing.
    pub(crate) fn is_untrusted(&self) -> bool {
        matches!(self, Self::Signature(_, SignatureError::Untrusted { .. }))
    }
}

/// A signature of events from `start` on. `previous` is the encoded signature before it, `certificate` the
/// position of the signer's chain.
pub(crate) fn sign<E: AsRef<[u8]>>(
    svid: &Svid,
    start: usize,
    events: impl ExactSizeIterator<Item = E>,
    previous: Option<&[u8]>,
    certificate: usize,
    context: Option<Context<'_>>,
) -> Result<HistorySignature, SignatureError> {
    let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let event_count = number(events.len());
    let events_digest = of_parts(events);
    let previous = previous.map(sha256);
    let previous_digest = previous.as_ref().map(Digest::as_slice);
    let signature = svid.sign(&message(previous_digest, &events_digest, context))?;
    Ok(HistorySignature {
        start_event_index: number(start),
        event_count,
        previous_signature_digest: previous_digest.map(Bytes::copy_from_slice),
        events_digest: Bytes::copy_from_slice(&events_digest),
        certificate_index: number(certificate),
        signature: signature.into(),
    })
}

/// The time of an encoded event; other fields are skipped.
#[derive(Clone, PartialEq, prost::Message)]
struct Timed {
    #[prost(message, optional, tag = "2")]
    timestamp: Option<Timestamp>,
}

/// When the events of a signature happened, in seconds since 1970: the last event, and the latest one. An
/// event may have waited for long before the step that added it; the step's own start event has not.
fn times(events: &[Bytes]) -> [Option<i64>; 2] {
    let second = |event: &Bytes| {
        let timed = Timed::decode(event.clone()).ok()?;
        timed.timestamp.map(|at| at.seconds)
    };
    [
        events.last().and_then(second),
        events.iter().filter_map(second).max(),
    ]
}

/// Signatures with their certificates and events.
pub(crate) struct Chain<'a> {
    /// The stored signatures.
    pub(crate) signatures: &'a [Bytes],
    /// Certificate chains, DER.
    pub(crate) certificates: &'a [Bytes],
    /// The stored events.
    pub(crate) events: &'a [Bytes],
    pub(crate) context: Option<Context<'a>>,
}

impl Chain<'_> {
    /// Verifies all signatures. Returns the positions of the certificates that signed.
    pub(crate) fn verify(&self, owner: Owner<'_>, anchors: &TrustAnchors) -> Result<Vec<usize>, ChainError> {
        if self.signatures.is_empty() && !self.events.is_empty() {
            return Err(ChainError::Unsigned(self.events.len()));
        }
        let mut signers = self.signers(owner)?;
        let mut covered = 0;
        for (index, encoded) in self.signatures.iter().enumerate() {
            let signature = HistorySignature::decode(encoded.clone())
                .map_err(|error| ChainError::Malformed(index, error))?;
            self.check_link(index, &signature)?;
            covered = self.check(index, covered, &signature, &mut signers, anchors)?;
        }
        if covered != self.events.len() {
            let events = self.events.len();
            return Err(ChainError::Coverage { covered, events });
        }
        let used = signers
            .iter()
            .enumerate()
            .filter(|(_, signer)| signer.trusted.is_some());
        Ok(used.map(|(index, _)| index).collect())
    }

    fn signers(&self, owner: Owner<'_>) -> Result<Vec<Signer>, ChainError> {
        let signer = |(index, der): (usize, &Bytes)| {
            let chain = SignerChain::parse(der).map_err(|error| ChainError::Certificate(index, error))?;
            if !owner.owns(&chain) {
                return Err(ChainError::Foreign {
                    index,
                    found: chain.id().to_string(),
                    expected: format!("app '{}' in namespace '{}'", owner.app_id, owner.namespace),
                });
            }
            Ok(Signer { chain, trusted: None })
        };
        self.certificates.iter().enumerate().map(signer).collect()
    }

    fn check_link(&self, index: usize, signature: &HistorySignature) -> Result<(), ChainError> {
        let found = signature.previous_signature_digest.as_deref();
        let previous = index.checked_sub(1).and_then(|index| self.signatures.get(index));
        match (previous, found) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(ChainError::NotFirst),
            (Some(previous), Some(found)) if sha256(previous) == found => Ok(()),
            (Some(_), _) => Err(ChainError::Unlinked(index)),
        }
    }

    /// Checks one signature, which must start at `expected`; returns the end of its events.
    fn check(
        &self,
        index: usize,
        expected: usize,
        signature: &HistorySignature,
        signers: &mut [Signer],
        anchors: &TrustAnchors,
    ) -> Result<usize, ChainError> {
        let (start, count) = (signature.start_event_index, signature.event_count);
        if usize::try_from(start) != Ok(expected) {
            return Err(ChainError::Gap {
                index,
                start,
                expected,
            });
        }
        let end = usize::try_from(count)
            .ok()
            .and_then(|count| expected.checked_add(count));
        let end = end.filter(|end| *end > expected && *end <= self.events.len());
        let events = end.and_then(|end| self.events.get(expected..end));
        let (Some(events), Some(end)) = (events, end) else {
            let events = self.events.len();
            return Err(ChainError::Range {
                index,
                start,
                count,
                events,
            });
        };
        let number = signature.certificate_index;
        let signer = usize::try_from(number)
            .ok()
            .and_then(|number| signers.get_mut(number));
        let signer = signer.ok_or(ChainError::NoCertificate(index, number))?;
        let mut times = times(events).into_iter().flatten();
        let Some(at) = times.find(|second| signer.chain.is_valid_at(*second)) else {
            return Err(ChainError::NotValid(index, signer.chain.id().to_string()));
        };
        if of_parts(events) != *signature.events_digest {
            return Err(ChainError::Events {
                index,
                start: expected,
                end,
            });
        }
        let previous = signature.previous_signature_digest.as_deref();
        let message = message(previous, &signature.events_digest, self.context);
        let verified = signer.chain.verify(&message, &signature.signature);
        let verified = verified.and_then(|()| signer.check_trust(anchors, at));
        verified.map_err(|error| ChainError::Signature(index, error))?;
        Ok(end)
    }
}

/// A certificate chain during a verification.
struct Signer {
    chain: SignerChain,
    /// Seconds between which the anchors vouch for it: validity has no gaps.
    trusted: Option<(i64, i64)>,
}

impl Signer {
    fn check_trust(&mut self, anchors: &TrustAnchors, at: i64) -> Result<(), SignatureError> {
        let (from, until) = self.trusted.unwrap_or((at, at));
        if self.trusted.is_none() || at < from || at > until {
            self.chain.check_trust(anchors, at)?;
            self.trusted = Some((from.min(at), until.max(at)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
