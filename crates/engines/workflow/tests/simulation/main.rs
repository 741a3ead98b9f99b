//! Random workflows run by a small worker over a store, reminders and actors that are played here. Each is run twice:
//! without a disturbance, and with crashes between all steps, where steps are stored at once or with what comes after them,
//! and in some by a store that takes few operations at once, so that crashes come between the parts of a change too. Both
//! have to end alike, each execution once. Then all is purged, with crashes too, and nothing may be left over.
//!
//! Programs have activities, alone, at once and of another app, some of which fail; activities that are retried after a while;
//! timers; events with and without a limit; children, of another app too; what continues as new, in long rows too, and leaves
//! children behind; failures; clients that suspend and resume the workflow; and those without events are run again from the
//! middle of their history. Some are terminated with all that they have created: when nothing but a termination can end them, or
//! at any moment. Then whatever is not terminated has to end as it would have.

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
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("SIMULATION_SEEDS={}..{} fails", self.0, self.0 + 1);
        }
    }
}

#[test]
fn crashes_between_all_steps_change_nothing() {
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
