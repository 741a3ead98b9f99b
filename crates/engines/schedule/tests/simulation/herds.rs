//! Very many due jobs of one app, and apps that never answer.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_schedule::engine::{Engine, Host, Limits, Name, Target, Version};
use outrigger_schedule::job::{Job, Outcome, Progress, Request};

use crate::world::{Kind, LIMIT, World};

/// Whose jobs are under way, by name.
fn under_way(world: &World) -> Vec<&str> {
    world.under_way.iter().map(|sent| &*sent.name).collect()
}

#[test]
fn burst_does_not_block_other_namespaces() {
    let mut world = World::new();
    world.connect(0);
    world.connect(1);
    for job in 0..100 {
        world.schedule(job, 0, Kind::Once(1000));
    }
    world.schedule(200, 1, Kind::Once(1000));
    world.pass(1000);
    assert!(
        under_way(&world).contains(&"job200"),
        "among the first {LIMIT} triggers is one of the other namespace"
    );
}

/// Invariant: an app that never answers holds up no other one, neither in its namespace nor in another, whoever came first;
/// and when it answers, all its jobs come.
#[test]
fn unresponsive_app_blocks_no_other() {
    let mut world = World::new();
    world.connect(0);
    for job in 0..100 {
        world.schedule(job, 0, Kind::Once(0));
    }
    assert_eq!(world.under_way.len(), LIMIT / 2, "no more than it leaves free");
    // The same namespace, as all apps outside a cluster have.
    world.connect(2);
    world.schedule(200, 2, Kind::Once(0));
    assert!(under_way(&world).contains(&"job200"));
    world.connect(1);
    world.schedule(201, 1, Kind::Once(0));
    assert!(under_way(&world).contains(&"job201"));
    world.complete().report("core: slow app with a herd of due jobs");
}

/// Invariant: what an app that was lost had under way is no longer counted against it.
#[test]
fn lost_host_frees_places() {
    let mut world = World::new();
    for _ in 0..10 {
        world.connect(0);
        for job in 0..4 {
            world.schedule(job, 0, Kind::Once(0));
        }
        assert_eq!(world.under_way.len(), LIMIT / 2);
        world.disconnect(0);
        assert!(world.under_way.is_empty());
    }
    // Those of jobs that were replaced meanwhile too.
    world.connect(0);
    for round in 0..3 {
        for job in 0..4 {
            world.schedule(job, 0, Kind::Once(0));
        }
        assert_eq!(world.under_way.len(), LIMIT / 2, "{round}");
    }
    while !world.under_way.is_empty() {
        world.answer(0, Outcome::Success);
    }
    assert!(world.store.is_empty() || !world.unstored.is_empty());
    world.complete();
}

/// Deleting very many jobs that are due takes each of them out at once: where every one was looked for in the line, this
/// took minutes.
#[test]
fn deleting_burst_takes_linear_time() {
    const HERD: u64 = 100_000;
    let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
    let limits = Limits {
        in_flight: 1,
        unstored: 1,
    };
    // In one line, and in a line each.
    for apps in [1, HERD] {
        let mut engine = Engine::new(now, limits);
        engine.connect(Host::new("ns", "app0", true, &[]));
        let job = Job::new(
            &Request {
                due_time: Some("0s"),
                ..Request::default()
            },
            now,
        )
        .unwrap();
        let name = |at: u64| -> Name { format!("job{at}").into() };
        for at in 0..HERD {
            let target = Target::App {
                namespace: "ns".into(),
                id: format!("app{}", at % apps).into(),
            };
            let version = Version {
                revision: at + 1,
                partition: 0,
            };
            // The first has the only place; the others come due all at once, later.
            let at_once = if at == 0 {
                now
            } else {
                now - Duration::from_secs(1)
            };
            engine.put(
                at_once,
                name(at),
                target,
                version,
                job.clone(),
                Progress::default(),
            );
        }
        engine.advance(now);
        assert_eq!((engine.len(), engine.in_flight()), (100_000, 1));
        let begun = Instant::now();
        // The last first: it stands at the end of its line.
        for at in (0..HERD).rev() {
            engine.remove(&name(at));
        }
        assert!(engine.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}
