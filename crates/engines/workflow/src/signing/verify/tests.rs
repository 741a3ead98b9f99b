use outrigger_identity::TrustAnchors;
use outrigger_identity::testing::{Algorithm, Authority};
use outrigger_wire::durabletask::{
    ExecutionStartedEvent, TaskCompletedEvent, TaskScheduledEvent, WorkflowInstance,
};

use super::*;
use crate::names::METADATA;
use crate::payload::Limit;
use crate::signing::attestation::attest;
use crate::signing::tests::{at, raised, seconds};
use crate::stored::Counts;
use std::collections::BTreeMap;

/// The stored state of the instance `a` of app `cart`.
struct World {
    anchors: TrustAnchors,
    svid: Svid,
    rows: BTreeMap<String, Bytes>,
}

impl World {
    /// A workflow that awaits an activity: two signed steps.
    fn new() -> Self {
        let authority = Authority::new("td", Algorithm::P256);
        let mut world = Self {
            anchors: TrustAnchors::new(authority.bundle()),
            svid: authority.workload("shop", "cart").into_svid(),
            rows: BTreeMap::new(),
        };
        let mut instance = Instance::new("a");
        let started = ExecutionStartedEvent {
            workflow_instance: Some(WorkflowInstance {
                instance_id: "a".to_owned(),
                execution_id: None,
            }),
            ..ExecutionStartedEvent::default()
        };
        let scheduled = TaskScheduledEvent {
            name: "pay".to_owned(),
            input: Some("3".to_owned()),
            ..TaskScheduledEvent::default()
        };
        for (id, kind) in [
            (-1, EventType::ExecutionStarted(started)),
            (0, EventType::TaskScheduled(scheduled)),
        ] {
            instance.append(&event(id, at(seconds()), kind));
            world.save(&mut instance);
        }
        world
    }

    fn save(&mut self, instance: &mut Instance) {
        let change = instance.change();
        self.save_change(instance, change);
    }

    fn save_change(&mut self, instance: &mut Instance, mut change: Change) {
        instance.sign(&mut change, &self.svid).unwrap();
        self.store(change);
    }

    fn store(&mut self, change: Change) {
        for part in change.split(3) {
            for key in part.deletes {
                assert!(self.rows.remove(&key).is_some(), "{key}");
            }
            self.rows.extend(part.upserts);
        }
    }

    fn trust(&self) -> Trust<'_> {
        Trust {
            anchors: &self.anchors,
            namespace: "shop",
            app_id: "cart",
        }
    }

    fn load(&self) -> Instance {
        let counts = Counts::read("a", &self.rows[METADATA]).unwrap();
        Instance::read("a", counts, |key| self.rows.get(key).cloned()).unwrap()
    }

    fn verify(&self) -> Result<(), HistoryError> {
        self.load()
            .verify(Some(self.trust()), &mut TrustedChains::default())
    }

    /// The result of the activity, with an attestation.
    fn result(&self, task: i32) -> HistoryEvent {
        let done = TaskCompletedEvent {
            task_scheduled_id: task,
            ..TaskCompletedEvent::default()
        };
        let mut event = event(-1, at(seconds()), EventType::TaskCompleted(done));
        attest(&self.svid, "a", "pay", Some("3"), &mut event).unwrap();
        event
    }

    /// Adds a result to the stored inbox.
    fn receive(&mut self, event: HistoryEvent) {
        let mut instance = self.load();
        let mut trusted = TrustedChains::default();
        let anchors = self.anchors.clone();
        let trust = Trust {
            anchors: &anchors,
            namespace: "shop",
            app_id: "cart",
        };
        let additions = instance.add_verified([event], Limit(0), &mut |instance, event, _| {
            instance.verify_result(event, trust, &mut trusted, Some(seconds()))
        });
        assert!(additions.rejected.is_none());
        self.save_change(&mut instance, additions.change);
    }

    fn counts(&self) -> (usize, usize, usize) {
        let counted = |prefix: &str| self.rows.keys().filter(|key| key.starts_with(prefix)).count();
        (
            counted("signature-"),
            counted("sigcert-"),
            counted("ext-sigcert-"),
        )
    }
}

fn tampered(verified: Result<(), HistoryError>) -> String {
    match verified {
        Err(HistoryError::Tampered(cause)) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_save_is_signed() {
    let mut world = World::new();
    assert_eq!(world.counts(), (2, 1, 0));
    world.verify().unwrap();
    // An inbox entry is not signed; the signer's chain is stored once.
    world.receive(world.result(0));
    assert_eq!(world.counts(), (2, 1, 1));
    let stored = HistoryEvent::decode(world.rows["inbox-000000"].clone()).unwrap();
    assert!(matches!(
        stored.event_type,
        Some(EventType::TaskCompleted(done)) if done.attestation.is_some() && done.signer_certificate.is_none()
    ));
    world.verify().unwrap();
    let mut instance = world.load();
    instance.append(&raised(1, seconds()));
    world.save(&mut instance);
    world.verify().unwrap();
    assert_eq!(world.counts(), (3, 1, 1));
    // A new execution begins anew.
    let mut instance = world.load();
    instance.reset();
    instance.append(&raised(1, seconds()));
    let change = instance.change_from(0, 0);
    world.save_change(&mut instance, change);
    assert_eq!(world.counts(), (1, 1, 0));
    world.verify().unwrap();
    for key in world.load().removal().deletes {
        assert!(world.rows.remove(&key).is_some(), "{key}");
    }
    assert!(world.rows.is_empty(), "{:?}", world.rows);
}

#[test]
fn history_of_another_instance_is_detected() {
    let world = World::new();
    let counts = Counts::read("b", &world.rows[METADATA]).unwrap();
    let moved = Instance::read("b", counts, |key| world.rows.get(key).cloned()).unwrap();
    let cause = tampered(moved.verify(Some(world.trust()), &mut TrustedChains::default()));
    assert!(cause.ends_with("it is the history of 'a'"), "{cause}");
}

#[test]
fn missing_rows_are_detected() {
    for key in ["signature-000000", "signature-000001", "sigcert-000000"] {
        let mut world = World::new();
        world.rows.remove(key);
        let cause = tampered(world.verify());
        assert!(
            cause.contains(key) && cause.contains("signature verification failed for 'a'"),
            "{cause}"
        );
        world.rows.insert(key.to_owned(), Bytes::from_static(b"\xff"));
        assert!(tampered(world.verify()).contains(key));
    }
    let mut world = World::new();
    world.receive(world.result(0));
    let key = "ext-sigcert-000000";
    let mut row = world.rows[key].to_vec();
    let last = row.len() - 1;
    row[last] ^= 1;
    world.rows.insert(key.to_owned(), row.into());
    assert!(tampered(world.verify()).contains(key));
}

#[test]
fn changed_lengths_are_detected() {
    let changed = |change: &dyn Fn(&mut Counts)| {
        let mut world = World::new();
        let mut counts = Counts::read("a", &world.rows[METADATA]).unwrap();
        change(&mut counts);
        world.rows.insert(METADATA.to_owned(), counts.encoded());
        world.verify()
    };
    for (change, cause) in [
        (
            &(|counts: &mut Counts| counts.history = 1) as &dyn Fn(&mut Counts),
            "1 events exist",
        ),
        (
            &|counts: &mut Counts| counts.rows.signatures = 1,
            "but 2 events exist",
        ),
        (&|counts: &mut Counts| counts.rows.signatures = 0, "no signatures"),
        (
            &|counts: &mut Counts| counts.rows.signatures = 1_000_001,
            "exceeds the maximum",
        ),
        (
            &|counts: &mut Counts| counts.rows.certificates = 0,
            "certificate 0, which does not exist",
        ),
        (
            &|counts: &mut Counts| counts.rows.external = 1_000_001,
            "exceeds the maximum",
        ),
    ] {
        let found = tampered(changed(change));
        assert!(found.contains(cause), "{found}");
    }
    // Without any trace of signatures it is a matter of configuration.
    let unsigned = changed(&|counts| counts.rows = crate::signing::RowCounts::default());
    assert!(
        matches!(unsigned, Err(HistoryError::Unsigned { events: 2, .. })),
        "{unsigned:?}"
    );
}

#[test]
fn signing_cannot_be_switched() {
    let world = World::new();
    let refused = world.load().verify(None, &mut TrustedChains::default());
    assert_eq!(refused, Err(HistoryError::NoSigner("a".to_owned())));
    let mut unsigned = Instance::new("a");
    unsigned.start(raised(0, 1), None);
    let verify = |instance: &Instance| instance.verify(Some(world.trust()), &mut TrustedChains::default());
    assert_eq!(verify(&unsigned), Ok(()), "it has not begun");
    unsigned.append(&raised(0, 1));
    assert!(matches!(
        verify(&unsigned),
        Err(HistoryError::Unsigned { events: 1, .. })
    ));
    assert_eq!(unsigned.verify(None, &mut TrustedChains::default()), Ok(()));
}

#[test]
fn forged_inbox_is_detected() {
    let forged = |event: HistoryEvent| {
        let mut world = World::new();
        let mut instance = world.load();
        let change = instance.push(event);
        world.store(change);
        world.verify()
    };
    assert_eq!(forged(raised(1, seconds())), Ok(()));
    let unattested = |task: i32| {
        let done = TaskCompletedEvent {
            task_scheduled_id: task,
            ..TaskCompletedEvent::default()
        };
        event(-1, at(seconds()), EventType::TaskCompleted(done))
    };
    for task in [0, 9999] {
        assert!(tampered(forged(unattested(task))).contains("state store tampering"));
    }
    let scheduled = event(1, at(1), EventType::TaskScheduled(TaskScheduledEvent::default()));
    assert!(tampered(forged(scheduled)).contains("never delivered"));
    // An attested result whose step is not stored yet is kept, and one that was changed is not.
    let mut world = World::new();
    world.receive(world.result(5));
    assert_eq!(world.verify(), Ok(()));
    let mut changed = HistoryEvent::decode(world.rows["inbox-000000"].clone()).unwrap();
    if let Some(EventType::TaskCompleted(done)) = &mut changed.event_type {
        done.task_scheduled_id = 0;
    }
    world
        .rows
        .insert("inbox-000000".to_owned(), changed.encode_to_vec().into());
    assert!(tampered(world.verify()).contains("another task"));
}

#[test]
fn rejected_result_is_reported() {
    let world = World::new();
    let mut instance = world.load();
    let mut result = world.result(0);
    if let Some(EventType::TaskCompleted(done)) = &mut result.event_type {
        done.result = Some("more".to_owned());
    }
    let mut trusted = TrustedChains::default();
    let events = [raised(1, seconds()), result];
    let additions = instance.add_verified(events, Limit(0), &mut |instance, event, _| {
        instance.verify_result(event, world.trust(), &mut trusted, Some(seconds()))
    });
    let cause = additions.rejected.unwrap();
    assert!(
        cause.contains("activity completion") && cause.contains("task 0"),
        "{cause}"
    );
}

/// Regression: a result that a reminder kept for longer than its certificate was valid ended the workflow.
#[test]
fn result_may_outlast_its_certificate() {
    let world = World::new();
    let (instance, result) = (world.load(), world.result(0));
    let verify = |second| {
        let mut trusted = TrustedChains::default();
        instance.verify_result(&result, world.trust(), &mut trusted, second)
    };
    let years = 20 * 365 * 24 * 60 * 60;
    assert!(verify(Some(seconds() + years)).is_err());
    assert!(verify(None).is_ok());
    let mut old = result.clone();
    old.timestamp = Some(at(seconds() + years));
    let kept = instance.verify_result(&old, world.trust(), &mut TrustedChains::default(), None);
    assert!(kept.is_ok(), "nearest to its time");
}

/// Regression: a rotation of the root ended running workflows for ever.
#[test]
fn missing_anchor_is_no_tampering() {
    let mut world = World::new();
    let anchors = TrustAnchors::new(Authority::new("td", Algorithm::P256).bundle());
    let anchors = std::mem::replace(&mut world.anchors, anchors);
    let why = world.verify().unwrap_err();
    assert!(matches!(&why, HistoryError::Untrusted(_)), "{why}");
    assert!(why.to_string().contains("restore that root"), "{why}");
    // Changed events are recognized without the root too.
    let changed = raised(1, seconds()).encode_to_vec();
    let event = world.rows.insert("history-000000".to_owned(), changed.into());
    assert!(tampered(world.verify()).contains("digest mismatch"));
    world.rows.insert("history-000000".to_owned(), event.unwrap());
    world.anchors = anchors;
    world.verify().unwrap();
}

#[test]
fn tombstone_ends_verification() {
    let mut world = World::new();
    world.receive(world.result(0));
    world.rows.remove("signature-000000");
    let cause = tampered(world.verify());
    let mut instance = world.load();
    let mut change = instance.tombstone(&cause, at(seconds()));
    instance.sign(&mut change, &world.svid).unwrap();
    assert!(change.deletes.is_empty());
    world.store(change);
    // The tombstone deletes no row and signs nothing.
    assert_eq!(world.counts(), (1, 1, 1));
    let found = world.load();
    assert!(found.is_tombstone() && found.is_completed());
    assert_eq!((found.history.len(), found.inbox.len()), (3, 1));
    let metadata = found.metadata();
    assert_eq!(metadata.failure_details.unwrap().error_type, TAMPERED);
    assert_eq!(world.verify(), Ok(()));
    assert_eq!(found.verify(None, &mut TrustedChains::default()), Ok(()));
    // Results for it are unknown; other events are ignored.
    assert!(matches!(
        found.check(&world.result(0)),
        Err(crate::error::AddError::Unknown)
    ));
    assert!(found.check(&raised(1, 1)).is_ok());
}
