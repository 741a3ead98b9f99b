//! Random workflows run by a small worker over a store, reminders and actors that are played here. Each is run twice:
//! without a disturbance, and with crashes between all steps, where turns are stored at once or with what comes after them,
//! and in some by a store that takes few operations at once, so that crashes come between the parts of a change too. Both
//! have to end alike, and nothing may be left over.
//!
//! Programs have activities, alone, at once and of another app, some of which fail; timers; events with and without a limit;
//! children; what continues as new, in long rows too; failures; clients that suspend and resume the workflow; and those
//! without events are run again from the middle of their history. They do not have: termination, retries, purging.

#![allow(clippy::unwrap_used, reason = "tests")]

mod program;
#[expect(dead_code, unreachable_pub, reason = "tests of whole sidecars use it too")]
mod replay;
mod world;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use program::Program;
use world::{Crashes, World};

/// Programs that every run of the tests simulates. `SIMULATION_SEEDS=from..to` simulates others.
const SEEDS: std::ops::Range<u64> = 0..2000;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = text.split_once("..").expect("SIMULATION_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

/// Prints the seed of a simulation that panics.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SIMULATION_SEEDS={}..{} fails", self.0, self.0 + 1);
        }
    }
}

#[test]
fn crashes_between_all_steps_change_nothing() {
    let (mut crashes, mut stored_together, mut splits) = (0, 0, 0);
    for seed in seeds() {
        let _told = Told(seed);
        let mut random = StdRng::seed_from_u64(seed);
        let program = Program::random(&mut random);
        let expected = World::new(program.clone(), Crashes::None, None).run();
        let per_cent = random.random_range(1..30);
        let together = random.random_range(0.0..1.0);
        let mut world = World::new(
            program,
            Crashes::Random(Box::new(StdRng::seed_from_u64(seed ^ 0xC4A5)), per_cent),
            Some((StdRng::seed_from_u64(seed ^ 0x11A6), together)),
        );
        if random.random_bool(0.5) {
            world = world.splitting(random.random_range(2..12));
        }
        let found = world.run();
        crashes += world.crashes;
        stored_together += world.stored_together;
        splits += world.splits;
        assert_eq!(found, expected, "seed {seed}");
    }
    eprintln!(
        "{} programs, {crashes} crashes, {stored_together} turns stored with what came after them, {splits} changes in parts",
        seeds().count()
    );
    assert!(crashes > 0 && stored_together > 0 && splits > 0);
}
