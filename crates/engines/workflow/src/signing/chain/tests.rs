use outrigger_identity::testing::{Algorithm, Authority, Leaf};
use outrigger_wire::durabletask::HistoryEvent;

use super::*;
use crate::signing::tests::{encoded_events, raised, seconds};

const OWNER: Owner<'static> = Owner {
    namespace: "shop",
    app_id: "cart",
};
const URI: &str = "spiffe://td/ns/shop/cart";

type Change<'a> = &'a dyn Fn(&mut History);

/// A signed history of six events in three signatures by two signers.
#[derive(Clone)]
struct History {
    signatures: Vec<Bytes>,
    certificates: Vec<Bytes>,
    events: Vec<Bytes>,
}

impl History {
    fn signed(signers: &[Svid], events: Vec<Bytes>) -> Self {
        let mut signed = Self {
            signatures: Vec::new(),
            certificates: signers.iter().map(|svid| svid.chain_der().into()).collect(),
            events,
        };
        let each = signed.events.len() / 3;
        for index in 0..3 {
            signed.sign(
                &signers[index.min(signers.len() - 1)],
                index.min(signers.len() - 1),
                index * each,
                each,
            );
        }
        signed
    }

    fn sign(&mut self, svid: &Svid, certificate: usize, start: usize, count: usize) {
        let previous = self.signatures.last().map(Bytes::as_ref);
        let events = self.events[start..start + count].iter();
        let signature = sign(svid, start, events, previous, certificate, None).unwrap();
        self.signatures.push(signature.encode_to_vec().into());
    }

    /// Changes a signature, whatever it then says.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut HistorySignature)) {
        let mut signature = HistorySignature::decode(self.signatures[index].clone()).unwrap();
        change(&mut signature);
        self.signatures[index] = signature.encode_to_vec().into();
    }

    fn verify(&self, anchors: &TrustAnchors) -> Result<Vec<usize>, ChainError> {
        let chain = Chain {
            signatures: &self.signatures,
            certificates: &self.certificates,
            events: &self.events,
            context: None,
        };
        chain.verify(OWNER, anchors)
    }
}

struct World {
    authority: Authority,
    anchors: TrustAnchors,
}

impl World {
    fn new() -> Self {
        let authority = Authority::new("td", Algorithm::P256);
        let anchors = TrustAnchors::new(authority.bundle());
        Self { authority, anchors }
    }

    fn signer(&self) -> Svid {
        self.authority.workload("shop", "cart").into_svid()
    }

    fn history(&self) -> History {
        History::signed(&[self.signer(), self.signer()], encoded_events(6, seconds()))
    }
}

#[test]
fn signed_history_verifies() {
    let world = World::new();
    assert_eq!(world.history().verify(&world.anchors).unwrap(), [0, 1]);
    for algorithm in [Algorithm::Ed25519, Algorithm::Rsa] {
        let signer = world
            .authority
            .issue_with(Leaf::workload(URI), algorithm)
            .into_svid();
        let mut history = History::signed(&[signer], encoded_events(3, seconds()));
        assert_eq!(history.verify(&world.anchors).unwrap(), [0]);
        // A certificate that signed nothing vouches for nothing.
        history.certificates.push(world.signer().chain_der().into());
        assert_eq!(history.verify(&world.anchors).unwrap(), [0]);
    }
    let nothing = History {
        signatures: Vec::new(),
        certificates: Vec::new(),
        events: Vec::new(),
    };
    assert!(nothing.verify(&world.anchors).unwrap().is_empty());
}

#[test]
fn changed_events_are_detected() {
    let world = World::new();
    let good = world.history();
    let broken = |change: &dyn Fn(&mut History)| {
        let mut history = good.clone();
        change(&mut history);
        history.verify(&world.anchors).unwrap_err().to_string()
    };
    let changes: [(Change<'_>, &str); 6] = [
        (
            &|h| h.events[3] = encoded_events(1, seconds() - 1)[0].clone(),
            "events digest mismatch for range [2, 4)",
        ),
        (
            &|h| h.events.swap(0, 1),
            "events digest mismatch for range [0, 2)",
        ),
        (
            &|h| drop(h.events.pop()),
            "signature 2 covers 2 events from event 4 on, but 5 events exist",
        ),
        (
            &|h| h.events.push(h.events[0].clone()),
            "cover events [0, 6) but 7 events exist",
        ),
        (&|h| h.signatures.clear(), "no signatures but 6 events"),
        (&|h| drop(h.events.remove(0)), "events digest mismatch"),
    ];
    for (change, expected) in changes {
        let error = broken(change);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn changed_signatures_are_detected() {
    let world = World::new();
    let good = world.history();
    let broken = |change: &dyn Fn(&mut History)| {
        let mut history = good.clone();
        change(&mut history);
        history.verify(&world.anchors).unwrap_err()
    };
    let other = world.history();
    assert!(matches!(
        broken(&|h| drop(h.signatures.pop())),
        ChainError::Coverage { covered: 4, .. }
    ));
    assert!(matches!(
        broken(&|h| drop(h.signatures.remove(0))),
        ChainError::NotFirst
    ));
    assert!(matches!(
        broken(&|h| drop(h.signatures.remove(1))),
        ChainError::Unlinked(1)
    ));
    assert!(matches!(
        broken(&|h| h.signatures[1] = other.signatures[1].clone()),
        ChainError::Unlinked(1)
    ));
    assert!(matches!(
        broken(&|h| h.change(1, |s| s.previous_signature_digest = None)),
        ChainError::Unlinked(1)
    ));
    assert!(matches!(
        broken(&|h| h.change(0, |s| s.previous_signature_digest = Some(Bytes::new()))),
        ChainError::NotFirst
    ));
    assert!(matches!(
        broken(&|h| h.signatures[0] = Bytes::from_static(b"\xff")),
        ChainError::Malformed(0, _)
    ));
    assert!(matches!(
        broken(&|h| h.change(2, |s| s.start_event_index = 3)),
        ChainError::Gap {
            index: 2,
            start: 3,
            expected: 4
        }
    ));
    for count in [0, 3, u64::MAX] {
        assert!(matches!(
            broken(&|h| h.change(2, |s| s.event_count = count)),
            ChainError::Range { index: 2, .. }
        ));
    }
    assert!(matches!(
        broken(&|h| h.change(2, |s| s.signature = Bytes::from_static(b"no"))),
        ChainError::Signature(2, SignatureError::Mismatch)
    ));
    // A digest that fits changed events is not signed.
    let forged = broken(&|h| {
        h.events[4] = encoded_events(9, seconds())[8].clone();
        let digest = of_parts(&h.events[4..6]);
        h.change(2, |s| s.events_digest = Bytes::copy_from_slice(&digest));
    });
    assert!(matches!(
        forged,
        ChainError::Signature(2, SignatureError::Mismatch)
    ));
}

#[test]
fn changed_certificates_are_detected() {
    let world = World::new();
    let good = world.history();
    let broken = |change: &dyn Fn(&mut History)| {
        let mut history = good.clone();
        change(&mut history);
        history.verify(&world.anchors).unwrap_err()
    };
    assert!(matches!(
        broken(&|h| h.certificates.truncate(1)),
        ChainError::NoCertificate(1, 1)
    ));
    assert!(matches!(
        broken(&|h| h.certificates.swap(0, 1)),
        ChainError::Signature(0, _)
    ));
    assert!(matches!(
        broken(&|h| h.certificates[1] = Bytes::new()),
        ChainError::Certificate(1, _)
    ));
    assert!(matches!(
        broken(&|h| h.change(2, |s| s.certificate_index = u64::MAX)),
        ChainError::NoCertificate(2, u64::MAX)
    ));
    // Another app and another namespace of the same trust domain, even if they sign nothing.
    for (namespace, app) in [("shop", "till"), ("test", "cart")] {
        let foreign = world.authority.workload(namespace, app).into_svid();
        let error = broken(&|h| h.certificates.push(foreign.chain_der().into()));
        assert!(matches!(error, ChainError::Foreign { index: 2, .. }), "{error}");
    }
    // The same names, issued by another authority.
    let other = World::new();
    assert!(matches!(
        good.verify(&other.anchors),
        Err(ChainError::Signature(0, SignatureError::Untrusted { .. }))
    ));
}

#[test]
fn certificate_must_be_valid_when_events_happened() {
    let world = World::new();
    let expired = Leaf {
        from: time::Duration::minutes(-10),
        until: time::Duration::minutes(-5),
        ..Leaf::workload(URI)
    };
    let signer = || world.authority.issue(expired.clone()).into_svid();
    // The issuer is valid since 15 minutes.
    let during = seconds() - 7 * 60;
    let history = History::signed(&[signer()], encoded_events(3, during));
    assert_eq!(history.verify(&world.anchors).unwrap(), [0]);
    let history = History::signed(&[signer()], encoded_events(3, seconds()));
    assert!(matches!(
        history.verify(&world.anchors),
        Err(ChainError::NotValid(0, _))
    ));
    // An event that waited for long comes last; the step that added it started later.
    let waited = [during, during - 2 * 3600].map(|second| raised(0, second).encode_to_vec().into());
    let history = History::signed(&[signer()], [&waited[..]; 3].concat());
    assert_eq!(history.verify(&world.anchors).unwrap(), [0]);
    let untimed = HistoryEvent::default().encode_to_vec();
    let history = History::signed(&[world.signer()], vec![untimed.into(); 3]);
    assert!(matches!(
        history.verify(&world.anchors),
        Err(ChainError::NotValid(0, _))
    ));
}
