//! Clock changes.

use jiff::Timestamp;

use crate::world::{Kind, Tally, World};

#[test]
fn clock_set_back_delays_no_new_jobs() {
    let mut world = World::new();
    world.connect(0);
    world.pass(1000);
    world.jump(-3_600_000);
    world.schedule(1, 0, Kind::Once(10));
    world.pass(10);
    assert_eq!(world.under_way.len(), 1);
}

const HOUR: i64 = 3_600_000;
const MINUTE: u32 = 60_000;

/// The time of a tick `seconds` after the start.
fn at(began: Timestamp, seconds: i64) -> Timestamp {
    began + jiff::SignedDuration::from_secs(seconds)
}

/// Invariant: if the clock jumps an hour ahead, ticks due in that hour are late and delivered once, missed
/// ticks one after the other. Later ticks are neither early nor repeated.
#[test]
fn clock_ahead_makes_ticks_late_not_early() {
    let mut world = World::new();
    let began = world.now;
    world.connect(0);
    for (job, due) in [(1, 10 * MINUTE), (2, 59 * MINUTE), (3, 61 * MINUTE)] {
        world.schedule(job, 0, Kind::Once(due));
    }
    // Every four minutes: 15 ticks in the hour, 5 after it.
    let every = Kind::Every {
        seconds: 240,
        repeats: 20,
    };
    world.schedule(4, 0, every);
    world.jump(HOUR);
    let mut ticks = world.done();
    let missed: Vec<_> = ticks.extract_if(.., |(name, _)| name == "job4").collect();
    let expected: Vec<_> = (1..=15)
        .map(|tick| ("job4".to_owned(), at(began, tick * 240)))
        .collect();
    assert_eq!(missed, expected, "each that was missed, in their order");
    ticks.sort_unstable();
    let late = [("job1", 600), ("job2", 3540)].map(|(name, due)| (name.to_owned(), at(began, due)));
    assert_eq!(ticks, late);
    world.pass(59_999);
    assert!(world.done().is_empty());
    world.pass(1);
    assert_eq!(world.done(), [("job3".to_owned(), at(began, 3660))]);
    // A restart repeats no late ticks.
    world.crash(usize::MAX);
    world.connect(0);
    assert!(world.done().is_empty());
    world.pass(180_000);
    assert_eq!(world.done(), [("job4".to_owned(), at(began, 16 * 240))]);
    world.complete().report("core: the clock jumps an hour ahead");
}

/// Invariant: if the clock is set back an hour, completed ticks are not repeated, not even to a process
/// that starts after the change. Other ticks wait for their time: late by the hour, once, and not early.
#[test]
fn clock_set_back_repeats_no_ticks() {
    let mut total = Tally::default();
    for restarted in [false, true] {
        let mut world = World::new();
        let began = world.now;
        world.connect(0);
        world.schedule(1, 0, Kind::Once(MINUTE));
        world.schedule(2, 0, Kind::Once(3 * MINUTE));
        let every = Kind::Every {
            seconds: 60,
            repeats: 4,
        };
        world.schedule(3, 0, every);
        world.pass(150_000);
        assert_eq!(world.done().len(), 3, "one job, and two ticks of another");
        world.jump(-HOUR);
        if restarted {
            world.crash(usize::MAX);
            world.connect(0);
        }
        assert!(world.done().is_empty());
        // The clock again shows the time at which it was set back.
        world.pass(u64::try_from(HOUR).unwrap());
        assert!(
            world.done().is_empty(),
            "a completed or future tick was delivered"
        );
        world.pass(29_999);
        assert!(world.done().is_empty());
        world.pass(1);
        let mut ticks = world.done();
        ticks.sort_unstable();
        let third = at(began, 180);
        assert_eq!(ticks, ["job2", "job3"].map(|name| (name.to_owned(), third)));
        world.pass(60_000);
        assert_eq!(world.done(), [("job3".to_owned(), at(began, 240))]);
        assert!(world.store.is_empty(), "all have had their ticks");
        total.add(world.complete());
    }
    total.report("core: the clock is set back an hour");
}
