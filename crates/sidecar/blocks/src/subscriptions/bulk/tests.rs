use std::time::Duration;

use bytes::Bytes;
use outrigger_offload::{INLINE, done_at_once};

use super::*;

fn event(path: &str) -> Arc<Incoming> {
    Arc::new(Incoming {
        path: path.to_owned(),
        ..Incoming::of(Bytes::new())
    })
}

fn member(path: &str) -> Member {
    let (answer, _) = oneshot::channel();
    Member {
        event: event(path),
        answer,
    }
}

fn collector(count: usize, immediate: bool) -> Collector {
    let wait = Duration::from_secs(1);
    Collector::new(Bulk { count, wait }, immediate)
}

fn sizes(batches: &[Batch]) -> Vec<usize> {
    batches.iter().map(|batch| batch.members.len()).collect()
}

#[test]
fn batch_completes_by_size() {
    let collector = collector(100, false);
    let large = || {
        let (answer, _) = oneshot::channel();
        let event = Arc::into_inner(event("/a")).unwrap();
        let payload = vec![0; MAX_BATCH_BYTES / 2].into();
        let event = Arc::new(Incoming { payload, ..event });
        Member { event, answer }
    };
    assert!(matches!(collector.join(large()), BatchRole::Lead(0)));
    assert!(matches!(collector.join(large()), BatchRole::Call(_)));
}

#[test]
fn batch_completes_by_count_per_path() {
    let collector = collector(2, false);
    assert!(matches!(collector.join(member("/a")), BatchRole::Lead(0)));
    assert!(matches!(collector.join(member("/b")), BatchRole::Lead(1)));
    let BatchRole::Call(batches) = collector.join(member("/a")) else {
        panic!("two are a batch")
    };
    assert_eq!(sizes(&batches), [2]);
    assert!(collector.take("/a", 0).is_none(), "it is under way");
    assert!(matches!(collector.join(member("/a")), BatchRole::Lead(2)));
    assert!(collector.take("/a", 0).is_none(), "that one is another");
    assert_eq!(collector.take("/b", 1).map(|batch| batch.members.len()), Some(1));
    collector.limit(2, Window::default());
    let BatchRole::Call(batches) = collector.join(member("/b")) else {
        panic!("no other event can arrive")
    };
    assert_eq!(sizes(&batches), [1, 1], "of both paths");
}

#[test]
fn lone_events_wait_unless_immediate() {
    for (immediate, leads) in [(false, true), (true, false)] {
        let collector = collector(100, immediate);
        collector.limit(1, Window::default());
        let role = collector.join(member("/a"));
        assert_eq!(matches!(role, BatchRole::Lead(0)), leads);
        assert_eq!(matches!(role, BatchRole::Call(_)), !leads);
    }
}

#[tokio::test]
async fn serialises_large_bulks_off_thread() {
    let wanted = Arc::new(AppSubscription::to_path("broker", "t", "/a"));
    for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
        let entry = Entry {
            id: "1".to_owned(),
            event: Arc::new(Incoming::of(vec![0; size].into())),
            span: Span::none(),
        };
        let (was_at_once, events) = done_at_once(written(&wanted, &[entry], |_, shown| shown.len())).await;
        assert_eq!((was_at_once, events), (at_once, 1), "{size}");
    }
}
