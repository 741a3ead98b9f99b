//! Memory of an idle actor.

use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outrigger_actors::shard::Shard;
use outrigger_actors::turns::Entry;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Serializes the tests: the allocator counts for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Maximum bytes of an idle actor.
const LIMIT: usize = 300;
/// Maximum bytes of an empty shard, whatever it held before.
const EMPTY: usize = 32 * 1024;

#[test]
fn idle_actor_uses_little_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for count in [1_000_usize, 57_400, 100_000] {
        let before = Region::new(ALLOCATOR);
        let mut shard = Shard::<u64>::new(Duration::from_secs(3600));
        for number in 0..count {
            // The length of a UUID.
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

#[test]
fn churn_leaves_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = Region::new(ALLOCATOR);
    let mut shard = Shard::<u64>::new(Duration::from_secs(3600));
    // A large fan-out, in sequence.
    for round in 0..100 {
        let enter = |number: usize| {
            let id = format!("{round}-{number:030}");
            match shard.enter(&id, None, true, Duration::ZERO, || 0) {
                Ok(Entry::Turn(ticket, _)) => (id, ticket),
                other => panic!("{other:?}"),
            }
        };
        let active: Vec<_> = (0..1_000).map(enter).collect();
        for (id, ticket) in active {
            shard.deactivated(&id, ticket, Duration::ZERO);
        }
    }
    let change = before.change();
    let kept = change.bytes_allocated - change.bytes_deallocated;
    assert!(shard.is_empty() && kept <= EMPTY, "{kept} bytes");
}
