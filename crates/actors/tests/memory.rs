//! What an idle actor costs.

use std::alloc::System;
use std::time::Duration;

use outrigger_actors::shard::Shard;
use outrigger_actors::turns::Entry;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes that an idle actor may take.
const LIMIT: usize = 300;

#[test]
fn an_idle_actor_is_small() {
    for count in [1_000_usize, 57_400, 100_000] {
        let before = Region::new(ALLOCATOR);
        let mut shard = Shard::<u64>::new(Duration::from_secs(3600));
        for number in 0..count {
            // As long as a UUID.
            let id = format!("{number:036}");
            let entered = shard.enter(&id, None, true, Duration::ZERO, || 0);
            let Ok(Entry::Turn(ticket, _)) = entered else {
                panic!("{entered:?}");
            };
            shard.leave(&id, ticket, Duration::ZERO);
        }
        let change = before.change();
        let kept = change.bytes_allocated - change.bytes_deallocated;
        assert_eq!(shard.len(), count);
        assert!(kept / count <= LIMIT, "{} bytes each of {count}", kept / count);
    }
}
