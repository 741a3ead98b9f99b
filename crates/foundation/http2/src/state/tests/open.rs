//! The shared limit on open streams.

use super::*;

/// Opens `more` streams from `first`; returns how many the connection dispatches. The others are refused.
fn opened(core: &Arc<SharedState>, first: u32, more: u32) -> usize {
    for number in 0..more {
        let stream = 2 * (first + number) + 1;
        core.state().receive(&request(stream, 0)).unwrap();
    }
    handed_over(core).len()
}

/// Invariant: the shared limit bounds the open streams of all connections, and a closed stream makes room.
#[test]
fn bounds_streams_across_connections() {
    const LIMIT: usize = 40;
    let open: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(LIMIT)));
    let config = Config {
        open_streams: Some(open),
        grpc: true,
        ..CONFIG
    };
    let [first, second, third] = [(), (), ()].map(|()| greeted(&config));
    assert_eq!(opened(&first, 0, 100), LIMIT);
    assert_eq!(opened(&second, 0, 100), LIMIT / 2, "its share");
    assert_eq!(opened(&third, 0, 100), 13, "a third");
    let refused = first.state().output.take();
    let refused = String::from_utf8_lossy(&refused);
    assert!(refused.contains("OUTRIGGER_MEMORY_BUDGET"), "{refused}");
    // Refused streams are closed and take no memory.
    assert_eq!(first.state().streams.len(), LIMIT);
    for stream in 0..LIMIT as u32 {
        first.state().receive(&reset(2 * stream + 1)).unwrap();
        first.state().drop_sender(2 * stream + 1);
    }
    assert_eq!(open.held(), 16 + 8, "each by eights");
    assert!(opened(&third, 100, 4) > 0, "there is room again");
    for core in [&first, &second, &third] {
        core.state().disconnect();
    }
    drop((first, second, third));
    assert_eq!(open.held(), 0);
}

/// Invariant: the first streams of a connection do not count towards the shared limit and are always
/// served. Long-lived streams on many connections therefore leave room for calls.
#[test]
fn always_serves_first_streams() {
    const LIMIT: usize = 8;
    let open: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(LIMIT)));
    let config = Config {
        open_streams: Some(open),
        grpc: true,
        ..CONFIG
    };
    let quiet: Vec<_> = (0..20).map(|_| greeted(&config)).collect();
    for core in &quiet {
        assert_eq!(opened(core, 0, 3), 3);
    }
    assert_eq!(open.held(), 0);
    let busy: Vec<_> = (0..4).map(|_| greeted(&config)).collect();
    assert!(busy.iter().all(|core| opened(core, 0, 100) >= 8));
    assert!(open.held() >= 2 * LIMIT);
    for core in &quiet {
        assert_eq!(opened(core, 3, 1), 1);
    }
    quiet
        .iter()
        .chain(&busy)
        .for_each(|core| core.state().disconnect());
}

/// Invariant: a connection whose stream count oscillates by one writes to the shared count once.
#[test]
fn shared_count_updates_in_steps() {
    let open: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(100)));
    let mut streams = OpenStreams::new(Some(open));
    let counted = [7, 8, 7, 8, 5, 4, 7, 16, 17, 13, 12, 0].map(|now| {
        streams.count(now);
        open.held()
    });
    assert_eq!(counted, [0, 8, 8, 8, 8, 0, 0, 16, 16, 16, 8, 0]);
}
