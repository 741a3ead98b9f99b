//! Random workflows with a small worker, and a simulated store, reminders and actors. Each program runs
//! without disturbance and with crashes between all steps. Steps are stored at once or together with later
//! events; some runs use a store with a limit on operations, so that crashes hit between the transactions of
//! a change. Both runs must end alike, each execution once. Then everything is purged, again with crashes,
//! and the store must be empty.
//!
//! Programs use:
//! - activities: single, parallel, in another app, failing, retried after a delay;
//! - timers, and events with and without a limit;
//! - children, also in another app;
//! - continue-as-new, also in long rows and leaving children behind;
//! - failures, and clients that suspend and resume.
//!
//! Programs without events are rerun from the middle of their history. Some are terminated recursively, at
//! rest or at any moment; everything that is not terminated must end as it would have.

#![allow(clippy::unwrap_used, reason = "tests")]

mod program;
#[expect(dead_code, unreachable_pub, reason = "tests of whole sidecars use it too")]
mod replay;
mod world;

use outrigger_wire::durabletask::OrchestrationStatus as Status;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use program::Program;
use world::{Crashes, World};

/// Seeds of every test run. `SIMULATION_SEEDS=from..to` runs others.
const SEEDS: std::ops::Range<u64> = 0..2000;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIMULATION_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = text.split_once("..").expect("SIMULATION_SEEDS=from..to");
    from.parse().unwrap()..to.parse().unwrap()
}

/// Prints the seed if a simulation panics.
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SIMULATION_SEEDS={}..{} fails", self.0, self.0 + 1);
        }
    }
}

#[test]
fn crashes_do_not_change_results() {
    let (mut crashes, mut stored_together, mut splits, mut terminated) = (0, 0, 0, 0);
    for seed in seeds() {
        let _report = SeedReport(seed);
        let mut random = StdRng::seed_from_u64(seed);
        let program = Program::random(&mut random);
        let (ends_anytime, unended) = (program.ends_anytime(), program.unended());
        let mut undisturbed = World::new(unended, Crashes::None, None);
        let expected = undisturbed.run();
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
        if random.random_bool(0.5) {
            world = world.distinguishing();
        }
        let found = world.run();
        crashes += world.crashes;
        stored_together += world.stored_together;
        splits += world.splits;
        terminated += found.values().filter(|end| end.0 == Status::Terminated).count();
        if !ends_anytime {
            assert_eq!(found, expected, "seed {seed}");
        }
        for (id, end) in found.into_iter().filter(|(_, end)| end.0 != Status::Terminated) {
            let known = undisturbed.all_ends(&id);
            assert!(known.contains(&end), "seed {seed}: {id}: {end:?}, not {known:?}");
        }
    }
    eprintln!(
        "{} programs, {crashes} crashes, {stored_together} steps stored with what came after them, {splits} changes in parts, \
         {terminated} instances terminated",
        seeds().count()
    );
    assert!(crashes > 0 && stored_together > 0 && splits > 0 && terminated > 0);
}
