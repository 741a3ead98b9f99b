use outrigger_component::Metadata;

use super::*;

fn retry(properties: &[(&str, &str)]) -> Option<Retry> {
    let owned = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Some(Retry::read(&Metadata::new("broker", owned).unwrap()).unwrap())
}

fn offsets(partitions: &[i32]) -> Offsets<()> {
    let mut offsets = Offsets::new(retry(&[("backOffDuration", "1s")]), true);
    for partition in partitions {
        offsets.assign(*partition);
    }
    offsets
}

fn record(partition: i32, offset: i64, key: Option<&'static str>) -> TakenRecord<()> {
    TakenRecord {
        partition,
        offset,
        key: key.map(|key| Bytes::from_static(key.as_bytes())),
        epoch: Some(7),
        record: (),
    }
}

fn positions(offsets: &Offsets<()>) -> Vec<(i32, i64)> {
    let all = offsets.to_commit();
    all.iter()
        .map(|position| (position.partition, position.offset))
        .collect()
}

/// Offsets and failed attempts of the records handed out at `now`.
fn again(offsets: &mut Offsets<()>, now: Instant) -> Vec<(i64, u32)> {
    std::iter::from_fn(|| offsets.next_due(now))
        .map(|(taken, failed)| (taken.offset, failed))
        .collect()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn commits_contiguous_done_records_only() {
    let (mut offsets, now) = (offsets(&[0, 1]), Instant::now());
    let taken: Vec<_> = [(0, 3), (0, 4), (0, 9), (1, 5)]
        .into_iter()
        .map(|(partition, offset)| offsets.take(record(partition, offset, None)).unwrap())
        .collect();
    offsets.done(&taken[1], now);
    assert_eq!(positions(&offsets), [], "3 is open");
    offsets.done(&taken[0], now);
    offsets.done(&taken[3], now);
    assert_eq!(positions(&offsets), [(0, 5), (1, 6)]);
    let uncommitted = offsets.to_commit();
    assert_eq!(uncommitted[0].epoch, Some(7));
    offsets.committed(&uncommitted);
    assert_eq!(positions(&offsets), [], "committed once");
    offsets.done(&taken[2], now);
    assert_eq!(positions(&offsets), [(0, 10)], "offsets may have gaps");
}

#[test]
fn commits_progress_made_during_commit() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let first = offsets.take(record(0, 0, None)).unwrap();
    let second = offsets.take(record(0, 1, None)).unwrap();
    offsets.done(&first, now);
    let under_way = offsets.to_commit();
    offsets.done(&second, now);
    offsets.committed(&under_way);
    assert_eq!(positions(&offsets), [(0, 2)]);
}

#[test]
fn returned_record_blocks_its_key_only() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let poison = offsets.take(record(0, 0, Some("a"))).unwrap();
    assert_eq!(offsets.returned(poison, now), Returned::Redeliver(SECOND));
    assert!(offsets.take(record(0, 1, Some("a"))).is_none(), "it waits");
    let other = offsets.take(record(0, 2, Some("b"))).unwrap();
    assert!(
        offsets.take(record(0, 3, None)).is_some(),
        "no key is another key"
    );
    offsets.done(&other, now);
    assert_eq!(positions(&offsets), [], "0 is open");
    assert_eq!(again(&mut offsets, now), []);
    assert_eq!(offsets.due(), Some(now + SECOND));
    let now = now + SECOND;
    let (poison, failed) = offsets.next_due(now).unwrap();
    assert_eq!((poison.offset, failed), (0, 1));
    assert_eq!(again(&mut offsets, now), [], "the next one waits for it");
    assert_eq!(offsets.due(), None);
    offsets.done(&poison, now);
    assert_eq!(positions(&offsets), [(0, 1)]);
    let (next, failed) = offsets.next_due(now).unwrap();
    assert_eq!((next.offset, failed), (1, 0));
    offsets.done(&next, now);
    assert_eq!(positions(&offsets), [(0, 3)]);
    assert!(
        offsets.take(record(0, 4, Some("a"))).is_some(),
        "the key is free again"
    );
}

#[test]
fn redelivers_in_order() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let out: Vec<_> = (0..3)
        .map(|offset| offsets.take(record(0, offset, Some("a"))).unwrap())
        .collect();
    for taken in out.into_iter().rev() {
        offsets.returned(taken, now);
    }
    let mut now = now + SECOND;
    for offset in 0..3 {
        let (taken, failed) = offsets.next_due(now).unwrap();
        assert_eq!((taken.offset, failed), (offset, 1));
        if offset == 1 {
            // Fails again.
            offsets.returned(taken, now);
            assert_eq!(again(&mut offsets, now), []);
            now += SECOND;
            let (taken, failed) = offsets.next_due(now).unwrap();
            assert_eq!((taken.offset, failed), (1, 2));
            offsets.done(&taken, now);
        } else {
            offsets.done(&taken, now);
        }
    }
    assert_eq!(positions(&offsets), [(0, 3)]);
}

#[test]
fn releases_keyless_records_together() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let poison = offsets.take(record(0, 0, None)).unwrap();
    offsets.returned(poison, now);
    for offset in 1..=4 {
        assert!(offsets.take(record(0, offset, None)).is_none(), "{offset} waits");
    }
    let now = now + SECOND;
    let (poison, _) = offsets.next_due(now).unwrap();
    assert_eq!(again(&mut offsets, now), [], "they wait for it");
    offsets.done(&poison, now);
    let (first, _) = offsets.next_due(now).unwrap();
    let (second, _) = offsets.next_due(now).unwrap();
    // A failing record delays those that exceeded the limit.
    offsets.returned(second, now);
    offsets.done(&first, now);
    assert!(offsets.take(record(0, 5, None)).is_none());
    assert_eq!(again(&mut offsets, now), []);
    let now = now + SECOND;
    let (second, failed) = offsets.next_due(now).unwrap();
    assert_eq!((second.offset, failed), (2, 1));
    assert_eq!(again(&mut offsets, now), []);
    offsets.done(&second, now);
    assert_eq!(again(&mut offsets, now), [(3, 0), (4, 0), (5, 0)]);
    assert_eq!(offsets.due(), None);
    assert!(
        offsets.take(record(0, 6, None)).is_some(),
        "nothing waits any more"
    );
}

#[test]
fn releases_blocked_records_one_by_one() {
    let retry = retry(&[("backOffDuration", "1s")]);
    let (mut offsets, now) = (Offsets::new(retry, false), Instant::now());
    offsets.assign(0);
    for offset in 0..3 {
        if let Some(taken) = offsets.take(record(0, offset, None)) {
            offsets.returned(taken, now);
        }
    }
    let now = now + SECOND;
    for offset in 0..3 {
        let (taken, _) = offsets.next_due(now).unwrap();
        assert_eq!(taken.offset, offset);
        assert_eq!(again(&mut offsets, now), []);
        offsets.done(&taken, now);
    }
}

#[test]
fn skips_after_retry_limit() {
    let retry = retry(&[("backOffDuration", "1s"), ("backOffMaxRetries", "1")]);
    let mut offsets = Offsets::new(retry, true);
    let now = Instant::now();
    offsets.assign(0);
    let poison = offsets.take(record(0, 0, None)).unwrap();
    assert_eq!(offsets.returned(poison, now), Returned::Redeliver(SECOND));
    let (poison, _) = offsets.next_due(now + SECOND).unwrap();
    assert_eq!(offsets.returned(poison, now), Returned::Skip);
    assert_eq!(positions(&offsets), [(0, 1)]);
    let mut never = Offsets::new(None, true);
    never.assign(0);
    let poison = never.take(record(0, 0, None)).unwrap();
    assert_eq!(never.returned(poison, now), Returned::Skip);
}

#[test]
fn forgets_revoked_partition() {
    let (mut offsets, now) = (offsets(&[0, 1]), Instant::now());
    let mine = offsets.take(record(0, 0, None)).unwrap();
    let theirs = offsets.take(record(1, 0, None)).unwrap();
    let failed = offsets.take(record(1, 1, None)).unwrap();
    offsets.returned(failed, now);
    offsets.revoke(1);
    assert_eq!(offsets.assigned().collect::<Vec<_>>(), [0]);
    assert_eq!(offsets.due(), None);
    offsets.done(&mine, now);
    offsets.done(&theirs, now);
    assert_eq!(offsets.returned(theirs, now), Returned::Gone);
    assert_eq!(positions(&offsets), [(0, 1)]);
    assert!(
        offsets.take(record(1, 2, None)).is_none(),
        "it is another member's"
    );
}

#[test]
fn bounds_retained_records() {
    let (mut offsets, now) = (offsets(&[0, 1]), Instant::now());
    let poison = offsets.take(record(0, 0, Some("a"))).unwrap();
    offsets.returned(poison, now);
    for offset in 1..i64::try_from(MAX_BLOCKED).unwrap() {
        assert!(!offsets.is_full(0), "at {offset}");
        offsets.take(record(0, offset, Some("a")));
    }
    assert!(offsets.is_full(0) && !offsets.is_full(1));
    let open = offsets.take(record(1, 0, Some("a"))).unwrap();
    for offset in 1..i64::try_from(WINDOW).unwrap() {
        let taken = offsets.take(record(1, offset, Some("b"))).unwrap();
        offsets.done(&taken, now);
    }
    assert!(offsets.is_full(1));
    offsets.done(&open, now);
    assert!(!offsets.is_full(1));
}

#[test]
fn postponed_record_blocks_key_without_attempt() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let first = offsets.take(record(0, 1, Some("a"))).unwrap();
    offsets.postponed(first, now + SECOND);
    assert!(
        offsets.take(record(0, 2, Some("a"))).is_none(),
        "it waits for the first"
    );
    assert!(offsets.take(record(0, 3, Some("b"))).is_some());
    assert_eq!(again(&mut offsets, now), []);
    assert_eq!(again(&mut offsets, now + SECOND), [(1, 0)]);
}

#[test]
fn wakes_postponed_not_failed_records() {
    let (mut offsets, now) = (offsets(&[0]), Instant::now());
    let postponed = offsets.take(record(0, 1, Some("a"))).unwrap();
    offsets.postponed(postponed, now + SECOND);
    let failed = offsets.take(record(0, 2, Some("b"))).unwrap();
    let _again = offsets.returned(failed, now);
    offsets.wake(now, |()| false);
    assert_eq!(again(&mut offsets, now), []);
    offsets.wake(now, |()| true);
    assert_eq!(again(&mut offsets, now), [(1, 0)]);
    let (failed, _) = offsets.next_due(now + SECOND).unwrap();
    offsets.postponed(failed, now + SECOND * 9);
    offsets.wake(now, |()| true);
    assert_eq!(
        again(&mut offsets, now + SECOND),
        [(2, 1)],
        "it failed before it was postponed"
    );
}
