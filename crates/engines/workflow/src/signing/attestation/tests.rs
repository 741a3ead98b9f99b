use outrigger_identity::TrustAnchors;
use outrigger_identity::testing::{Algorithm, Authority, Leaf};
use outrigger_wire::durabletask::{
    ChildWorkflowInstanceCompletedEvent, ChildWorkflowInstanceFailedEvent, TaskCompletedEvent,
    TaskFailedEvent,
};

use super::*;
use crate::event::event;
use crate::signing::tests::{at, raised, seconds};

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

    fn signer(&self, app: &str) -> Svid {
        self.authority.workload("shop", app).into_svid()
    }

    fn verify(
        &self,
        event: &HistoryEvent,
        scheduled: Option<&Scheduled>,
    ) -> Result<Attested, AttestationError> {
        self.verify_for("a", event, scheduled, &mut TrustedChains::default())
    }

    fn verify_for(
        &self,
        parent: &str,
        event: &HistoryEvent,
        scheduled: Option<&Scheduled>,
        trusted: &mut TrustedChains,
    ) -> Result<Attested, AttestationError> {
        let trust = Trust {
            anchors: &self.anchors,
            namespace: "shop",
            app_id: "cart",
        };
        verify(
            event,
            None,
            parent,
            scheduled,
            trust,
            trusted,
            Moment::At(seconds()),
        )
    }
}

fn scheduled(app: &str) -> Scheduled {
    Scheduled {
        name: "pay".to_owned(),
        input: Some("3".to_owned()),
        app: app.to_owned(),
    }
}

fn failure() -> TaskFailureDetails {
    TaskFailureDetails {
        error_type: "Refused".to_owned(),
        error_message: "no".to_owned(),
        stack_trace: Some("here".to_owned()),
        inner_failure: Some(Box::new(TaskFailureDetails::default())),
        is_non_retriable: true,
    }
}

/// A result of task 7 of each kind.
fn results() -> [HistoryEvent; 4] {
    let done = TaskCompletedEvent {
        task_scheduled_id: 7,
        result: Some("4".to_owned()),
        ..TaskCompletedEvent::default()
    };
    let failed = TaskFailedEvent {
        task_scheduled_id: 7,
        failure_details: Some(failure()),
        ..TaskFailedEvent::default()
    };
    let child = ChildWorkflowInstanceCompletedEvent {
        task_scheduled_id: 7,
        result: Some("4".to_owned()),
        ..ChildWorkflowInstanceCompletedEvent::default()
    };
    let failed_child = ChildWorkflowInstanceFailedEvent {
        task_scheduled_id: 7,
        failure_details: Some(failure()),
        ..ChildWorkflowInstanceFailedEvent::default()
    };
    [
        EventType::TaskCompleted(done),
        EventType::TaskFailed(failed),
        EventType::ChildWorkflowInstanceCompleted(child),
        EventType::ChildWorkflowInstanceFailed(failed_child),
    ]
    .map(|kind| event(-1, at(seconds()), kind))
}

fn attested(svid: &Svid) -> [HistoryEvent; 4] {
    let mut results = results();
    for result in &mut results {
        attest(svid, "a", "pay", Some("3"), result).unwrap();
    }
    results
}

#[test]
fn results_of_each_kind_are_attested() {
    let world = World::new();
    let signer = world.signer("bank");
    for mut event in attested(&signer) {
        let mut trusted = TrustedChains::default();
        let sent = scheduled("bank");
        let first = world.verify_for("a", &event, Some(&sent), &mut trusted).unwrap();
        assert_eq!(first.chain, signer.chain_der());
        let second = world.verify_for("a", &event, Some(&sent), &mut trusted).unwrap();
        assert_eq!((first.was_known, second.was_known), (false, true));
        // As stored: the chain is in a table of its own.
        assert_eq!(signer_digest(&event).unwrap(), sha256(&first.chain).as_slice());
        strip(&mut event);
        assert!(matches!(
            world.verify(&event, Some(&sent)),
            Err(AttestationError::Missing)
        ));
        let stored = Some(first.chain);
        let trust = Trust {
            anchors: &world.anchors,
            namespace: "shop",
            app_id: "cart",
        };
        let later = Moment::Near(seconds() + 1_000_000);
        assert!(verify(&event, stored, "a", Some(&sent), trust, &mut trusted, later).is_ok());
    }
    let mut other = raised(1, seconds());
    attest(&signer, "a", "pay", None, &mut other).unwrap();
    assert_eq!((other, kind(&raised(1, 1))), (raised(1, seconds()), None));
}

#[test]
fn statement_must_fit_scheduled_task() {
    let world = World::new();
    let signer = world.signer("bank");
    for event in attested(&signer) {
        let kind = kind(&event).unwrap();
        let differs = |verified: Result<Attested, AttestationError>| {
            assert!(
                matches!(verified, Err(AttestationError::Differs(_))),
                "{verified:?}"
            );
        };
        differs(world.verify_for("b", &event, None, &mut TrustedChains::default()));
        let other_input = Scheduled {
            input: None,
            ..scheduled("bank")
        };
        differs(world.verify(&event, Some(&other_input)));
        let other_name = Scheduled {
            name: "refund".to_owned(),
            ..scheduled("bank")
        };
        match kind {
            Kind::Activity => differs(world.verify(&event, Some(&other_name))),
            // The parent chose the name; the child's sidecar does not attest it.
            Kind::Child => assert!(world.verify(&event, Some(&other_name)).is_ok()),
        }
        // Not scheduled by a stored step: its input is not known yet.
        assert!(world.verify(&event, None).is_ok());
    }
}

#[test]
fn changed_results_are_rejected() {
    let world = World::new();
    let signer = world.signer("bank");
    let [done, failed, ..] = attested(&signer);
    let sent = scheduled("bank");
    let changed = |change: &dyn Fn(&mut TaskCompletedEvent)| {
        let mut event = done.clone();
        if let Some(EventType::TaskCompleted(done)) = &mut event.event_type {
            change(done);
        }
        world.verify(&event, Some(&sent)).unwrap_err()
    };
    use AttestationError as Error;
    assert!(matches!(
        changed(&|e| e.result = Some("5".to_owned())),
        Error::Differs("input or result")
    ));
    assert!(matches!(
        changed(&|e| e.task_scheduled_id = 8),
        Error::Differs("task")
    ));
    assert!(matches!(changed(&|e| e.attestation = None), Error::Missing));
    assert!(matches!(
        changed(&|e| e.signer_certificate = None),
        Error::Missing
    ));
    let other = Bytes::from(world.signer("bank").chain_der());
    assert!(matches!(
        changed(&|e| e.signer_certificate = Some(other.clone())),
        Error::OtherCertificate
    ));
    let signed = |change: &dyn Fn(&mut ActivityCompletionAttestation)| {
        changed(&|e| e.attestation.as_mut().into_iter().for_each(change))
    };
    assert!(matches!(signed(&|a| a.signature = Bytes::new()), Error::Missing));
    assert!(matches!(signed(&|a| a.payload = Bytes::new()), Error::Missing));
    assert!(matches!(
        signed(&|a| a.payload = Bytes::from_static(b"\xff")),
        Error::Malformed(_)
    ));
    let edited = |edit: &dyn Fn(&mut ActivityCompletionAttestationPayload)| {
        signed(&|a| {
            let mut payload = ActivityCompletionAttestationPayload::decode(a.payload.clone()).unwrap();
            edit(&mut payload);
            a.payload = payload.encode_to_vec().into();
        })
    };
    assert!(matches!(
        edited(&|p| p.canonical_spec_version = 2),
        Error::Version(2)
    ));
    assert!(matches!(
        edited(&|p| p.signer_cert_digest.clear()),
        Error::OtherCertificate
    ));
    assert!(matches!(
        edited(&|p| p.activity_name = "x".to_owned()),
        Error::Signature(SignatureError::Mismatch)
    ));
    // A failure shown as a result, and the reverse.
    let mut swapped = done.clone();
    if let (Some(EventType::TaskCompleted(done)), Some(EventType::TaskFailed(failed))) =
        (&mut swapped.event_type, &failed.event_type)
    {
        done.attestation.clone_from(&failed.attestation);
    }
    assert!(matches!(
        world.verify(&swapped, Some(&sent)),
        Err(Error::Differs("kind of result"))
    ));
}

#[test]
fn signer_must_be_app_of_task() {
    let world = World::new();
    let [done, failed, ..] = attested(&world.signer("bank"));
    let refused = |event: &HistoryEvent, app: &str| {
        matches!(
            world.verify(event, Some(&scheduled(app))),
            Err(AttestationError::Signer { .. })
        )
    };
    assert!(refused(&done, "till") && refused(&failed, "till") && refused(&done, "cart"));
    // The workflow's own sidecar reports that a task could not be sent, but no results of others.
    let [done, failed, ..] = attested(&world.signer("cart"));
    assert!(refused(&done, "bank") && !refused(&failed, "bank") && !refused(&done, "cart"));
    let elsewhere = world
        .authority
        .issue(Leaf::workload("spiffe://td/ns/other/bank"))
        .into_svid();
    let [done, ..] = attested(&elsewhere);
    assert!(refused(&done, "bank"));
    assert!(matches!(
        world.verify(&done, None),
        Err(AttestationError::Signer { .. })
    ));
    let untrusted = World::new().signer("bank");
    let [done, ..] = attested(&untrusted);
    assert!(matches!(
        world.verify(&done, Some(&scheduled("bank"))),
        Err(AttestationError::Signature(SignatureError::Untrusted { .. }))
    ));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn canonical_output_has_known_bytes() {
    assert_eq!(Output::Completed(None).bytes(), b"");
    // U+0065 U+0301 is U+00E9 in NFC.
    assert_eq!(Output::Completed(Some("e\u{301}")).bytes(), "\u{e9}".as_bytes());
    let bytes = Output::Failed(Some(&failure())).bytes();
    let mut expected = b"\0\0\0\x07Refused\0\0\0\x02no\0\0\0\x04here\x01".to_vec();
    expected.extend([0; 13]);
    assert_eq!(bytes, expected);
    assert_eq!(Output::Failed(None).bytes(), [0; 13]);
    let digest = io_digest(Some("in"), b"out");
    assert_eq!(
        hex(&digest),
        "8b8d42cf51c2a2460c711f88f0a2261cc17f5a90cf099d5c49895c6275825230"
    );
}

#[test]
fn deep_failures_are_cut() {
    let mut deep = TaskFailureDetails::default();
    for _ in 0..2 * MAX_DEPTH {
        deep = TaskFailureDetails {
            inner_failure: Some(Box::new(deep)),
            ..TaskFailureDetails::default()
        };
    }
    assert!(is_deep(&deep));
    let bytes = Output::Failed(Some(&deep)).bytes();
    bound(&mut deep);
    assert!(!is_deep(&deep));
    assert_eq!(Output::Failed(Some(&deep)).bytes(), bytes);
    assert_eq!(bytes.len(), MAX_DEPTH * 13);
}
