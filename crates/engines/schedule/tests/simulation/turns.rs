//! Order of deliveries and choice of hosts.

use outrigger_schedule::job::Outcome;

use crate::world::{Kind, LIMIT, UNSTORED, UnderWay, World};

#[test]
fn hosts_of_app_take_turns() {
    let mut world = World::new();
    for _ in 0..LIMIT / 2 {
        world.connect(0);
    }
    for job in 0..4 {
        world.schedule(job, 0, Kind::Once(10));
    }
    world.pass(10);
    let mut hosts: Vec<_> = world.under_way.iter().map(|sent| sent.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    assert_eq!(hosts.len(), LIMIT / 2, "one for each, and half of the places");
}

#[test]
fn job_waits_for_its_app() {
    let mut world = World::new();
    world.schedule(1, 2, Kind::Once(10));
    world.pass(60_000);
    assert!(world.under_way.is_empty());
    world.connect(2);
    assert_eq!(world.under_way.len(), 1);
    world.disconnect(0);
    assert!(world.under_way.is_empty());
    world.connect(2);
    assert_eq!(world.under_way.len(), 1, "a lost stream is no failed attempt");
}

#[test]
fn rejects_unexpected_answer() {
    let mut world = World::new();
    world.connect(0);
    world.schedule(1, 0, Kind::Once(0));
    let UnderWay { host, trigger, .. } = world.under_way[0];
    let now = world.now;
    assert!(
        world
            .engine
            .answer(now, host, trigger + 1, Outcome::Success)
            .is_err()
    );
    assert!(world.engine.answer(now, host, trigger, Outcome::Success).is_ok());
    assert!(world.engine.answer(now, host, trigger, Outcome::Success).is_err());
}

#[test]
fn releasing_member_only_takes_answers() {
    let mut world = World::new();
    world.connect(0);
    world.schedule(1, 0, Kind::Once(0));
    world.schedule(2, 0, Kind::Once(0));
    assert_eq!(world.under_way.len(), 2);
    world.engine.pause_dispatch();
    world.schedule(3, 0, Kind::Once(0));
    world.pass(60_000);
    assert_eq!(world.under_way.len(), 2, "nothing is sent any more");
    world.answer(0, Outcome::Success);
    assert!(world.engine.awaits_answers());
    assert_eq!(world.unstored.len(), 1, "how far the first is has to be stored");
    // Draining takes too long: another member takes over, and the answer is ignored here.
    world.engine.clear(world.now);
    assert!(world.engine.is_empty() && !world.engine.awaits_answers());
    world.keep(usize::MAX);
    world.answer(0, Outcome::Success);
    assert!(world.unstored.is_empty());
    // Active again, with the hosts that stayed connected.
    for (name, stored) in world.store.clone() {
        world.put(name, stored);
    }
    let names: Vec<&str> = world.under_way.iter().map(|sent| &*sent.name).collect();
    assert_eq!(names, ["job2", "job3"]);
}

#[test]
fn versions_distinguish_jobs() {
    let mut world = World::new();
    world.schedule(1, 0, Kind::Once(1000));
    let stored = world.store["job1"].clone();
    world.engine.deleted("job1", stored.revision - 1);
    assert_eq!(world.engine.len(), 1, "it was stored after that");
    world.pass(1000);
    world.connect(0);
    let UnderWay {
        host, trigger, name, ..
    } = world.under_way[0].clone();
    // Added again, the same job keeps its trigger in flight.
    world.put(name, stored.clone());
    assert_eq!(world.under_way.len(), 1);
    world.engine.discard_trigger(host, trigger);
    assert!(world.engine.is_empty(), "the store has dropped it");
    world.engine.deleted("job1", stored.revision);
    assert!(world.engine.is_empty());
}

#[test]
fn hanging_store_pauses_dispatch() {
    let mut world = World::new();
    world.connect(0);
    for job in 0..12 {
        world.schedule(job, 0, Kind::Once(10));
    }
    world.pass(10);
    // Every answer is accepted, and none is stored.
    while let Some(UnderWay { host, trigger, .. }) = world.under_way.pop() {
        world
            .engine
            .answer(world.now, host, trigger, Outcome::Success)
            .unwrap();
        world.collect();
    }
    assert!(world.unstored.len() < LIMIT + UNSTORED, "{:?}", world.unstored);
    assert!(world.engine.waits_for_store());
    let stored = world.unstored.len();
    world.keep(1);
    assert_eq!(world.under_way.len(), usize::from(stored - 1 < UNSTORED));
    world.keep(usize::MAX);
    assert_eq!(world.under_way.len(), LIMIT / 2);
    assert!(!world.engine.waits_for_store());
    world.complete();
}
