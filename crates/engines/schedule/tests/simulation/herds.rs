//! Bursts of due jobs of one app, and unresponsive apps.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use outrigger_schedule::engine::{Engine, Host, Limits, Name, Stored, Target, Version};
use outrigger_schedule::job::{Job, Outcome, Progress, Request};

use crate::world::{Kind, LIMIT, World};

/// Apps with jobs in flight, by name.
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

/// Invariant: an unresponsive app blocks no other app, in its namespace or another, whichever was first;
/// when it responds, all its jobs are delivered.
#[test]
fn unresponsive_app_blocks_no_other() {
    let mut world = World::new();
    world.connect(0);
    for job in 0..100 {
        world.schedule(job, 0, Kind::Once(0));
    }
    assert_eq!(world.under_way.len(), LIMIT / 2, "no more than it leaves free");
    // One namespace, as for all apps outside of Kubernetes.
    world.connect(2);
    world.schedule(200, 2, Kind::Once(0));
    assert!(under_way(&world).contains(&"job200"));
    world.connect(1);
    world.schedule(201, 1, Kind::Once(0));
    assert!(under_way(&world).contains(&"job201"));
    world.complete().report("core: slow app with a herd of due jobs");
}

/// Invariant: triggers in flight on a lost host no longer count against the app.
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
    // Including those of jobs replaced since.
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

/// Deletes a large burst of due jobs. With a linear search per job this took minutes.
#[test]
fn deleting_burst_takes_linear_time() {
    const HERD: u64 = 100_000;
    let now: Timestamp = "2026-03-01T00:00:00Z".parse().unwrap();
    let limits = Limits {
        in_flight: 1,
        unstored: 1,
    };
    // All in one queue, and each in a separate queue.
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
            // The first holds the only place; the others become due at once, later.
            let at_once = if at == 0 {
                now
            } else {
                now - Duration::from_secs(1)
            };
            let stored = Stored {
                name: name(at),
                target,
                key: None,
                version,
                job: job.clone(),
                progress: Progress::default(),
            };
            engine.put(at_once, stored);
        }
        engine.advance(now);
        assert_eq!((engine.len(), engine.in_flight()), (100_000, 1));
        let begun = Instant::now();
        // In reverse: each is at the end of its queue.
        for at in (0..HERD).rev() {
            engine.remove(&name(at));
        }
        assert!(engine.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}
