//! Stored histories, with maps as stores.

use std::collections::BTreeMap;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    EventRaisedEvent, ExecutionCompletedEvent, ExecutionStartedEvent, TaskScheduledEvent,
};
use prost_types::Timestamp;

use super::*;
use crate::event::event;

type Store = BTreeMap<String, Bytes>;

fn store(store: &mut Store, change: Change) {
    for key in change.deletes {
        assert!(store.remove(&key).is_some(), "{key} was never stored");
    }
    store.extend(change.upserts);
}

fn read(store: &Store) -> Instance {
    let counts = Counts::read("a", &store[METADATA]).unwrap();
    let known: Vec<_> = counts.keys().collect();
    assert!(store.keys().all(|key| key == METADATA || known.contains(key)));
    Instance::read("a", counts, |key| store.get(key).cloned()).unwrap()
}

fn raised(name: &str) -> HistoryEvent {
    let raised = EventRaisedEvent {
        name: name.to_owned(),
        input: None,
    };
    event(-1, Timestamp::default(), EventType::EventRaised(raised))
}

#[test]
fn writes_only_changes() {
    let mut stored = Store::new();
    let mut instance = Instance::new("a");
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    store(&mut stored, instance.push(event(-1, Timestamp::default(), start)));
    let change = instance.push(raised("b"));
    assert_eq!(change.upserts.len(), 2);
    store(&mut stored, change);
    assert_eq!(read(&stored).inbox, instance.inbox);

    for event in std::mem::take(&mut instance.inbox) {
        instance.append(&event);
    }
    instance.custom_status = Some("half".to_owned());
    store(&mut stored, instance.change());
    assert_eq!(stored.len(), 4);
    instance.append(&raised("c"));
    let change = instance.change();
    let keys: Vec<_> = change.upserts.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["history-000002", CUSTOM_STATUS, METADATA]);
    store(&mut stored, change);
    let found = read(&stored);
    assert_eq!(found.history(), instance.history());
    assert_eq!(found.custom_status, instance.custom_status);
    assert_eq!(found.size(), instance.size());
    store(&mut stored, found.removal());
    assert!(stored.is_empty());
}

/// Whether a removal of the readable entries removes everything.
fn all_is_found(stored: &Store) -> bool {
    let counts = Counts::read("a", &stored[METADATA]).unwrap();
    let found = Instance::salvage("a", counts, |key| stored.get(key).cloned());
    let found = found.removal().deletes;
    stored.keys().all(|key| found.contains(key))
}

/// After each prefix of the transactions the instance is readable, as before or as after, and no entry is
/// lost track of.
fn in_parts(stored: &Store, most: usize, next: &Instance, change: Change) -> Store {
    let old = stored.contains_key(METADATA).then(|| read(stored).history());
    let mut stored = stored.clone();
    let changes = change.split(most);
    assert!(changes.len() > 1, "it fits");
    for change in changes {
        assert!(change.len() <= most, "{change:?}");
        for key in change.deletes {
            stored.remove(&key);
        }
        stored.extend(change.upserts);
        let counts = Counts::read("a", &stored[METADATA]).unwrap();
        assert!(all_is_found(&stored), "{counts:?}: {:?}", stored.keys());
        let found = Instance::read("a", counts, |key| stored.get(key).cloned()).unwrap();
        let found = found.history();
        assert!(
            Some(&found) == old.as_ref() || found == next.history(),
            "{found:?}"
        );
    }
    stored
}

#[test]
fn split_change_is_atomic() {
    let mut instance = Instance::new("a");
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    instance
        .inbox
        .push(event(-1, Timestamp::default(), start.clone()));
    instance.inbox.extend((0..40).map(|n| raised(&n.to_string())));
    let change = instance.change();
    let mut stored = in_parts(&Store::new(), 10, &instance, change);
    assert_eq!(read(&stored).inbox, instance.inbox);
    for event in std::mem::take(&mut instance.inbox) {
        instance.append(&event);
    }
    let change = instance.change();
    stored = in_parts(&stored, 10, &instance, change);
    assert_eq!(read(&stored).history(), instance.history());
    assert_eq!(stored.len(), 43);
    // It continues as new: the old history is deleted after the new state is stored.
    instance.reset();
    instance.append(&event(-1, Timestamp::default(), start));
    let change = instance.change_from(0, 0);
    stored = in_parts(&stored, 10, &instance, change);
    assert_eq!(stored.len(), 3);
    let counts = Counts::read("a", &stored[METADATA]).unwrap();
    assert_eq!(counts, instance.stored(), "nothing is left that reaches further");
}

/// A change interrupted between its transactions: the next change or a purge removes the remains. A reader of
/// the contract's fields sees the same counts.
#[test]
fn next_change_removes_interrupted_remains() {
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    let start = event(-1, Timestamp::default(), start);
    let mut small = Instance::new("a");
    let mut stored = Store::new();
    store(&mut stored, small.push(start.clone()));
    let mut large = read(&stored);
    large.inbox.extend((0..20).map(|n| raised(&n.to_string())));
    for event in std::mem::take(&mut large.inbox) {
        large.append(&event);
    }
    let grows = large.change();
    // Both directions: entries not counted yet, and entries no longer counted.
    let mut grown = stored.clone();
    for part in grows.clone().split(5) {
        part.deletes.iter().for_each(|key| drop(grown.remove(key)));
        grown.extend(part.upserts);
    }
    let mut anew = read(&grown);
    let shrinks = anew.start(start.clone(), None);
    // The first change was interrupted: nothing counts.
    let mut first = Instance::new("a");
    (0..20).for_each(|n| first.append(&raised(&n.to_string())));
    let begins = first.change();
    for (before, change) in [(stored, grows), (grown, shrinks), (Store::new(), begins)] {
        let parts = change.split(5);
        assert!(parts.len() > 2);
        for cut in 1..parts.len() {
            let mut stored = before.clone();
            for part in &parts[..cut] {
                part.deletes.iter().for_each(|key| drop(stored.remove(key)));
                stored.extend(part.upserts.iter().cloned());
            }
            let metadata = BackendWorkflowStateMetadata::decode(stored[METADATA].clone()).unwrap();
            let counts = Counts::read("a", &stored[METADATA]).unwrap();
            let of_contract = (metadata.history_length as usize, metadata.inbox_length as usize);
            assert_eq!(of_contract, (counts.history, counts.inbox));
            assert!(all_is_found(&stored), "{:?}", stored.keys());
            let found = || Instance::read("a", counts, |key| stored.get(key).cloned()).unwrap();
            assert_eq!(found().is_left_over(), before.is_empty());
            assert_eq!(found().purge().is_ok(), before.is_empty());
            let mut next = found();
            let change = match before.is_empty() {
                true => next.start(start.clone(), None),
                false => next.push(raised("c")),
            };
            let mut stored = stored.clone();
            change.deletes.iter().for_each(|key| drop(stored.remove(key)));
            stored.extend(change.upserts);
            assert_eq!(read(&stored).inbox, next.inbox);
        }
    }
}

#[test]
fn split_removal_can_be_resumed() {
    for (after_its_end, most) in [(0, 2), (0, 3), (0, 10), (1, 2), (4, 3), (12, 10)] {
        let mut instance = Instance::new("a");
        let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
        instance.append(&event(-1, Timestamp::default(), start));
        (0..30).for_each(|n| instance.append(&raised(&n.to_string())));
        let end = EventType::ExecutionCompleted(ExecutionCompletedEvent::default());
        instance.append(&event(30, Timestamp::default(), end));
        // A worker need not place the end action last.
        (0..after_its_end).for_each(|n| instance.append(&raised(&n.to_string())));
        instance.inbox.push(raised("late"));
        let mut stored = Store::new();
        store(&mut stored, instance.change());
        let parts = instance.removal().split(most);
        let last = parts.len() - 1;
        for (index, part) in parts.into_iter().enumerate() {
            assert!(part.len() <= most, "{part:?}");
            // Its ETag guards each transaction, and it is deleted with the last.
            let has_metadata = |key: &String| key == METADATA;
            assert_eq!(
                part.upserts.iter().any(|(key, _)| has_metadata(key)),
                index < last
            );
            assert_eq!(part.deletes.iter().any(has_metadata), index == last);
            store(&mut stored, part);
            let Some(metadata) = stored.get(METADATA) else {
                continue;
            };
            let counts = Counts::read("a", metadata).unwrap();
            let rest = Instance::salvage("a", counts, |key| stored.get(key).cloned());
            assert_eq!(rest.purge(), Ok(()));
            let left = rest.removal().deletes;
            assert!(
                stored.keys().eq(left.iter().collect::<BTreeSet<_>>()),
                "{stored:?}"
            );
        }
        assert!(stored.is_empty(), "{stored:?}");
    }
}

#[test]
fn reads_old_format() {
    let old = br#"{"InboxLength":1,"HistoryLength":2,"Generation":3}"#;
    let counts = Counts::read("a", old).unwrap();
    assert_eq!((counts.inbox, counts.history, counts.generation), (1, 2, 3));
    assert_eq!(
        custom_status("a", br#""so \"far\"""#).unwrap().as_deref(),
        Some("so \"far\"")
    );
    let new = "x".to_owned().encode_to_vec();
    assert_eq!(custom_status("a", &new).unwrap().as_deref(), Some("x"));
    // The length equals the code of the quotation mark.
    let long = "y".repeat(34);
    assert_eq!(custom_status("a", &long.encode_to_vec()).unwrap(), Some(long));
}

#[test]
fn unreadable_values_are_named() {
    let counts = Counts {
        history: 1,
        ..Counts::default()
    };
    let missing = Instance::read("a", counts, |_| None).unwrap_err();
    let missing = missing.to_string();
    let named = "workflow 'a': history key 'history-000000' declared in metadata (historyLength=1) but missing from \
                 state store (restore it";
    assert!(
        missing.starts_with(named) && missing.contains("by force"),
        "{missing}"
    );
    let malformed = Instance::read("a", counts, |_| Some(Bytes::from_static(b"\xff"))).unwrap_err();
    assert!(matches!(malformed, StoredError::Malformed { .. }));
    assert!(Counts::read("a", b"{").is_err());
    let endless = BackendWorkflowStateMetadata {
        history_length: u64::MAX,
        ..BackendWorkflowStateMetadata::default()
    };
    assert!(Counts::read("a", &endless.encode_to_vec()).is_err());
}

#[test]
fn salvage_finds_all_keys() {
    let counts = Counts {
        history: 3,
        inbox: 1,
        generation: 2,
        ..Counts::default()
    };
    let task = EventType::TaskScheduled(TaskScheduledEvent::default());
    let begun = event(4, Timestamp::default(), task).encode_to_vec();
    let broken = Instance::salvage("a", counts, |key| match key {
        "history-000001" => Some(Bytes::from_static(b"\xff")),
        "history-000002" => Some(begun.clone().into()),
        _ => None,
    });
    assert_eq!(broken.activities(), ["a::4::2"]);
    let keys = broken.removal().deletes;
    assert_eq!(
        keys,
        ["history-000001", "history-000002", METADATA],
        "a store may refuse to delete a missing key"
    );
}

#[test]
fn absent_status_is_not_deleted() {
    let mut stored = Store::new();
    let mut instance = Instance::new("a");
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    store(&mut stored, instance.push(event(-1, Timestamp::default(), start)));
    // Not written yet.
    store(&mut stored.clone(), instance.removal());
    store(&mut stored.clone(), read(&stored).removal());
    for event in std::mem::take(&mut instance.inbox) {
        instance.append(&event);
    }
    store(&mut stored, instance.change());
    store(&mut stored.clone(), instance.removal());
    // Removed by a third party.
    assert!(stored.remove(CUSTOM_STATUS).is_some());
    let mut anew = read(&stored);
    store(&mut stored.clone(), anew.removal());
    store(&mut stored, anew.push(raised("b")));
    store(&mut stored.clone(), anew.removal());
    anew.append(&raised("c"));
    store(&mut stored, anew.change());
    store(&mut stored, anew.removal());
    assert!(stored.is_empty(), "{stored:?}");
}

#[test]
fn received_history_is_stored_once() {
    let history = || PropagatedHistory {
        scope: 2,
        ..PropagatedHistory::default()
    };
    let is_received = |change: &Change| change.upserts.iter().any(|(key, _)| key == PROPAGATED_HISTORY);
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    let start = || event(-1, Timestamp::default(), start.clone());
    let mut stored = Store::new();
    let mut instance = Instance::new("a");
    let change = instance.start(start(), Some(history()));
    assert!(is_received(&change));
    store(&mut stored, change);
    let change = instance.push(raised("b"));
    assert!(!is_received(&change));
    store(&mut stored, change);
    let mut found = read(&stored);
    assert_eq!(found.received(), Some(&Bytes::from(history().encode_to_vec())));
    assert_eq!(found.size(), instance.size());
    store(&mut stored.clone(), instance.removal());
    store(&mut stored.clone(), found.removal());
    // The next execution received none: no reader may see the old one, in however many transactions.
    for event in std::mem::take(&mut found.inbox) {
        found.append(&event);
    }
    (0..9).for_each(|_| found.append(&raised("c")));
    store(&mut stored, found.change());
    let change = found.start(start(), None);
    for part in change.split(3) {
        store(&mut stored, part);
        let counts = Counts::read("a", &stored[METADATA]).unwrap();
        assert_eq!(counts.generation == 1, stored.contains_key(PROPAGATED_HISTORY));
    }
    store(&mut stored.clone(), found.removal());
    store(&mut stored.clone(), read(&stored).removal());
    // Neither is a row of the wrong format taken for a history.
    stored.insert(PROPAGATED_HISTORY.to_owned(), Bytes::from_static(b"\xff"));
    let counts = Counts::read("a", &stored[METADATA]).unwrap();
    let error = Instance::read("a", counts, |key| stored.get(key).cloned()).unwrap_err();
    assert!(error.to_string().contains(PROPAGATED_HISTORY), "{error}");
}
