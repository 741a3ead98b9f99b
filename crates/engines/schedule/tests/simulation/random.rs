//! Random orders of all events, including crashes.

use std::cell::Cell;

use outrigger_schedule::job::Outcome;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::world::{APPS, Kind, Step, Tally, World};

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        (0_u32..5000).prop_map(Kind::Once),
        (1_u8..5, 1_u8..4).prop_map(|(seconds, repeats)| Kind::Every { seconds, repeats }),
    ];
    let outcome = prop_oneof![3 => Just(Outcome::Success), 1 => Just(Outcome::Failed)];
    prop_oneof![
        4 => (0_u8..12, 0..APPS, kind).prop_map(|(job, app, kind)| Step::Schedule { job, app, kind }),
        1 => (0_u8..12).prop_map(Step::Delete),
        3 => (0..APPS).prop_map(Step::Connect),
        1 => (0_usize..4).prop_map(Step::Disconnect),
        6 => (0_usize..8, outcome).prop_map(|(at, outcome)| Step::Answer(at, outcome)),
        4 => (0_u64..3000).prop_map(Step::Pass),
        1 => (-7_200_i64..7_200).prop_map(Step::Jump),
        1 => (0_usize..4).prop_map(|stored| Step::Crash { stored }),
        3 => Just(Step::Store),
    ]
}

/// Invariant: in any order of events, no stored job is lost, none fires early, none fires again after its
/// success is stored, and none is in flight on two hosts at once.
#[test]
fn jobs_are_never_lost_early_or_repeated() {
    let config = ProptestConfig {
        cases: 200,
        // A failure prints its input.
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new(config);
    let tally = Cell::new(Tally::default());
    let ran = runner.run(&prop::collection::vec(step(), 0..120), |steps| {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        let mut all = tally.get();
        all.add(world.complete());
        tally.set(all);
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}\n{runner}");
    }
    tally
        .get()
        .report("core: any order of crashes, lost hosts, failures and clock jumps");
}
