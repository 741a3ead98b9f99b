use outrigger_component::Metadata;

use super::*;

fn retry(properties: &[(&str, &str)]) -> Option<Retry> {
    let owned = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Some(Retry::read(&Metadata::new("broker", owned).unwrap()).unwrap())
}

fn ledger(partitions: &[i32]) -> Ledger<()> {
    let mut ledger = Ledger::new(retry(&[("backOffDuration", "1s")]));
    for partition in partitions {
        ledger.assign(*partition);
    }
    ledger
}

fn record(partition: i32, offset: i64, key: Option<&'static str>) -> Taken<()> {
    Taken {
        partition,
        offset,
        key: key.map(|key| Bytes::from_static(key.as_bytes())),
        epoch: Some(7),
        record: (),
    }
}

fn positions(ledger: &Ledger<()>) -> Vec<(i32, i64)> {
    let all = ledger.to_commit();
    all.iter()
        .map(|position| (position.partition, position.offset))
        .collect()
}

/// What is handed out again at `now`: offsets, and failed attempts.
fn again(ledger: &mut Ledger<()>, now: Instant) -> Vec<(i64, u32)> {
    std::iter::from_fn(|| ledger.next_due(now))
        .map(|(taken, failed)| (taken.offset, failed))
        .collect()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn only_what_is_done_without_holes_is_committed() {
    let (mut ledger, now) = (ledger(&[0, 1]), Instant::now());
    let taken: Vec<_> = [(0, 3), (0, 4), (0, 9), (1, 5)]
        .into_iter()
        .map(|(partition, offset)| ledger.take(record(partition, offset, None)).unwrap())
        .collect();
    ledger.done(&taken[1], now);
    assert_eq!(positions(&ledger), [], "3 is open");
    ledger.done(&taken[0], now);
    ledger.done(&taken[3], now);
    assert_eq!(positions(&ledger), [(0, 5), (1, 6)]);
    let told = ledger.to_commit();
    assert_eq!(told[0].epoch, Some(7));
    ledger.committed(&told);
    assert_eq!(positions(&ledger), [], "told once");
    ledger.done(&taken[2], now);
    assert_eq!(positions(&ledger), [(0, 10)], "offsets may have gaps");
}

#[test]
fn what_was_committed_while_more_was_done_is_committed_again() {
    let (mut ledger, now) = (ledger(&[0]), Instant::now());
    let first = ledger.take(record(0, 0, None)).unwrap();
    let second = ledger.take(record(0, 1, None)).unwrap();
    ledger.done(&first, now);
    let under_way = ledger.to_commit();
    ledger.done(&second, now);
    ledger.committed(&under_way);
    assert_eq!(positions(&ledger), [(0, 2)]);
}

#[test]
fn a_returned_record_comes_again_and_holds_back_its_key_alone() {
    let (mut ledger, now) = (ledger(&[0]), Instant::now());
    let poison = ledger.take(record(0, 0, Some("a"))).unwrap();
    assert_eq!(ledger.returned(poison, now), Returned::Again(SECOND));
    assert!(ledger.take(record(0, 1, Some("a"))).is_none(), "it waits");
    let other = ledger.take(record(0, 2, Some("b"))).unwrap();
    assert!(ledger.take(record(0, 3, None)).is_some(), "no key is another key");
    ledger.done(&other, now);
    assert_eq!(positions(&ledger), [], "0 is open");
    assert_eq!(again(&mut ledger, now), []);
    assert_eq!(ledger.due(), Some(now + SECOND));
    let now = now + SECOND;
    let (poison, failed) = ledger.next_due(now).unwrap();
    assert_eq!((poison.offset, failed), (0, 1));
    assert_eq!(again(&mut ledger, now), [], "the next one waits for it");
    assert_eq!(ledger.due(), None);
    ledger.done(&poison, now);
    assert_eq!(positions(&ledger), [(0, 1)]);
    let (next, failed) = ledger.next_due(now).unwrap();
    assert_eq!((next.offset, failed), (1, 0));
    ledger.done(&next, now);
    assert_eq!(positions(&ledger), [(0, 3)]);
    assert!(
        ledger.take(record(0, 4, Some("a"))).is_some(),
        "the key is free again"
    );
}

#[test]
fn records_that_were_out_come_again_in_their_order() {
    let (mut ledger, now) = (ledger(&[0]), Instant::now());
    let out: Vec<_> = (0..3)
        .map(|offset| ledger.take(record(0, offset, Some("a"))).unwrap())
        .collect();
    for taken in out.into_iter().rev() {
        ledger.returned(taken, now);
    }
    let mut now = now + SECOND;
    for offset in 0..3 {
        let (taken, failed) = ledger.next_due(now).unwrap();
        assert_eq!((taken.offset, failed), (offset, 1));
        if offset == 1 {
            // Fails once more.
            ledger.returned(taken, now);
            assert_eq!(again(&mut ledger, now), []);
            now += SECOND;
            let (taken, failed) = ledger.next_due(now).unwrap();
            assert_eq!((taken.offset, failed), (1, 2));
            ledger.done(&taken, now);
        } else {
            ledger.done(&taken, now);
        }
    }
    assert_eq!(positions(&ledger), [(0, 3)]);
}

#[test]
fn what_failed_too_often_is_passed_over() {
    let mut ledger = Ledger::new(retry(&[("backOffDuration", "1s"), ("backOffMaxRetries", "1")]));
    let now = Instant::now();
    ledger.assign(0);
    let poison = ledger.take(record(0, 0, None)).unwrap();
    assert_eq!(ledger.returned(poison, now), Returned::Again(SECOND));
    let (poison, _) = ledger.next_due(now + SECOND).unwrap();
    assert_eq!(ledger.returned(poison, now), Returned::PassedOver);
    assert_eq!(positions(&ledger), [(0, 1)]);
    let mut never = Ledger::new(None);
    never.assign(0);
    let poison = never.take(record(0, 0, None)).unwrap();
    assert_eq!(never.returned(poison, now), Returned::PassedOver);
}

#[test]
fn a_revoked_partition_is_forgotten() {
    let (mut ledger, now) = (ledger(&[0, 1]), Instant::now());
    let mine = ledger.take(record(0, 0, None)).unwrap();
    let theirs = ledger.take(record(1, 0, None)).unwrap();
    let failed = ledger.take(record(1, 1, None)).unwrap();
    ledger.returned(failed, now);
    ledger.revoke(1);
    assert_eq!(ledger.assigned().collect::<Vec<_>>(), [0]);
    assert_eq!(ledger.due(), None);
    ledger.done(&mine, now);
    ledger.done(&theirs, now);
    assert_eq!(ledger.returned(theirs, now), Returned::Gone);
    assert_eq!(positions(&ledger), [(0, 1)]);
    assert!(
        ledger.take(record(1, 2, None)).is_none(),
        "it is another member's"
    );
}

#[test]
fn what_is_kept_is_bounded() {
    let (mut ledger, now) = (ledger(&[0, 1]), Instant::now());
    let poison = ledger.take(record(0, 0, Some("a"))).unwrap();
    ledger.returned(poison, now);
    for offset in 1..i64::try_from(HELD).unwrap() {
        assert!(!ledger.is_full(0), "at {offset}");
        ledger.take(record(0, offset, Some("a")));
    }
    assert!(ledger.is_full(0) && !ledger.is_full(1));
    let open = ledger.take(record(1, 0, Some("a"))).unwrap();
    for offset in 1..i64::try_from(WINDOW).unwrap() {
        let taken = ledger.take(record(1, offset, Some("b"))).unwrap();
        ledger.done(&taken, now);
    }
    assert!(ledger.is_full(1));
    ledger.done(&open, now);
    assert!(!ledger.is_full(1));
}

#[test]
fn what_is_postponed_holds_back_its_key_and_is_no_attempt() {
    let (mut ledger, now) = (ledger(&[0]), Instant::now());
    let first = ledger.take(record(0, 1, Some("a"))).unwrap();
    ledger.postponed(first, now + SECOND);
    assert!(
        ledger.take(record(0, 2, Some("a"))).is_none(),
        "it waits for the first"
    );
    assert!(ledger.take(record(0, 3, Some("b"))).is_some());
    assert_eq!(again(&mut ledger, now), []);
    assert_eq!(again(&mut ledger, now + SECOND), [(1, 0)]);
}

#[test]
fn what_is_postponed_can_be_woken_and_what_failed_cannot() {
    let (mut ledger, now) = (ledger(&[0]), Instant::now());
    let postponed = ledger.take(record(0, 1, Some("a"))).unwrap();
    ledger.postponed(postponed, now + SECOND);
    let failed = ledger.take(record(0, 2, Some("b"))).unwrap();
    let _again = ledger.returned(failed, now);
    ledger.wake(now, |()| false);
    assert_eq!(again(&mut ledger, now), []);
    ledger.wake(now, |()| true);
    assert_eq!(again(&mut ledger, now), [(1, 0)]);
    let (failed, _) = ledger.next_due(now + SECOND).unwrap();
    ledger.postponed(failed, now + SECOND * 9);
    ledger.wake(now, |()| true);
    assert_eq!(
        again(&mut ledger, now + SECOND),
        [(2, 1)],
        "it failed before it was postponed"
    );
}
