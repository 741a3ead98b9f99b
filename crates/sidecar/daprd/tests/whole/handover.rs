//! Fleets of Outrigger sidecars and placement under load: hosts that join, leave and are killed, and a
//! placement outage.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;

use crate::common::fleet::{ACTORS, Fleet, HANDOVER, HANDOVER_WHILE_WELL, Load, call};
use crate::common::{Control, Node, Replicas, eventually, get, post, within};
use crate::placements::is_of_contract;

/// Number of times that a reminder should fire while hosts change.
const TIMES: usize = 20;

async fn hosts_are_replaced(fleet: &Fleet) -> (usize, Vec<String>) {
    let mut hosts = Vec::new();
    for number in 0..5 {
        hosts.push(fleet.host(&format!("old-{number}")).await);
    }
    let caller = Arc::new(fleet.caller().await);
    eventually(async || call(&caller, 0, "").await.status == 200).await;
    let reminder = json!({"dueTime": "0s", "period": format!("R{TIMES}/PT1S")});
    let path = "/v1.0/actors/T/1/reminders/wake";
    assert_eq!(hosts[0].1.ask(post(path, reminder.to_string())).await.status, 204);
    let load = Load::start(&caller);
    load.goes_on(100).await;
    for (number, (app, node)) in std::mem::take(&mut hosts).into_iter().enumerate() {
        node.stop().await.unwrap();
        drop(app);
        hosts.push(fleet.host(&format!("new-{number}")).await);
        load.goes_on(50).await;
    }
    let (made, failed, longest) = load.end().await;
    fleet.seen.check();
    for actor in 0..ACTORS {
        eventually(async || call(&caller, actor, "").await.status == 200).await;
    }
    for times in 1..=TIMES {
        eventually(async || fleet.seen.reminded.load(Ordering::SeqCst) >= times).await;
    }
    println!("{made} calls during five restarts; the longest took {longest:?}");
    (made, failed)
}

/// Invariant: a rolling replacement of hosts fails no call and runs none twice. No actor is active in two
/// places, and a reminder fires the right number of times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_fails_no_call() {
    let fleet = Fleet::new().await;
    let (made, failed) = Box::pin(hosts_are_replaced(&fleet)).await;
    assert_eq!(failed, [""; 0], "of {made}");
    let ran = fleet.seen.ran.lock().unwrap().clone();
    let numbered = ran.iter().filter(|(number, _)| !number.is_empty());
    let twice: Vec<_> = numbered.clone().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(numbered.count(), made, "each call ran");
}

/// Invariant: without handover, a rolling restart fails calls only with the contract's error. No actor is
/// active in two places, and a reminder fires the right number of times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_without_handover_has_contract_errors() {
    let fleet = Fleet::of(Control::start().await, false);
    let (made, failed) = Box::pin(hosts_are_replaced(&fleet)).await;
    let strange: Vec<_> = failed.iter().filter(|failed| !is_of_contract(failed)).collect();
    assert!(strange.is_empty(), "of {made}: {strange:?}");
}

/// Length of the placement outage: longer than any timeout that could deactivate actors, or `OUTAGE_SECONDS`.
fn outage() -> Duration {
    let seconds = std::env::var("OUTAGE_SECONDS").map_or(4, |text| text.parse().expect("a number"));
    Duration::from_secs(seconds)
}

/// Invariant: killing a host during a turn fails that call, which is not repeated, and its actors move to
/// other hosts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_host_fails_only_its_turn() {
    let fleet = Fleet::new().await;
    let (app, first) = fleet.host("first").await;
    let caller = Arc::new(fleet.caller().await);
    eventually(async || call(&caller, 1, "").await.status == 200).await;
    let hanging = tokio::spawn({
        let caller = Arc::clone(&caller);
        async move { caller.ask(post("/v1.0/actors/T/1/method/hang", "")).await }
    });
    eventually(async || fleet.seen.hanging.swap(false, Ordering::SeqCst)).await;
    drop(first);
    drop(app);
    fleet.seen.gone("first");
    let answer = within(hanging).await.unwrap();
    assert_eq!(answer.status, 500, "{}", answer.text());
    // Started later, because otherwise the actor might move here, and its turn would be aborted and repeated.
    let _second = fleet.host("second").await;
    eventually(async || call(&caller, 1, "").await.text() == "second").await;
    assert!(
        !fleet.seen.hanging.load(Ordering::SeqCst),
        "it does not run again"
    );
    fleet.seen.check();
}

/// Invariant: while all three placements are down, actors stay where they are and callers find them;
/// afterwards too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actors_survive_placement_outage() {
    let mut replicas = Replicas::start(true).await;
    let fleet = Fleet::of(Control::scheduler().await, true);
    let (_app, first) = fleet.host_by("first", &replicas.flag()).await;
    let (_other_app, second) = fleet.host_by("second", &replicas.flag()).await;
    let caller = Arc::new(fleet.caller_by(&replicas.flag()).await);
    for actor in 0..ACTORS {
        eventually(async || call(&caller, actor, "").await.status == 200).await;
    }
    let ended = fleet.seen.ended.load(Ordering::SeqCst);
    for member in 0..3 {
        replicas.kill(member);
    }
    let gone = Instant::now();
    while gone.elapsed() < outage() {
        for actor in 0..ACTORS {
            for node in [&*caller, &first, &second] {
                let answer = call(node, actor, "").await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
    }
    let runtime = first.ask(get("/v1.0/metadata")).await.json()["actorRuntime"].clone();
    assert_eq!(runtime["placement"], "placement: disconnected");
    for member in 0..3 {
        replicas.start_again(member).await;
    }
    let connected = async |node: &Node| {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["actorRuntime"]["placement"] == "placement: connected"
    };
    eventually(async || connected(&first).await && connected(&second).await && connected(&caller).await)
        .await;
    assert_eq!(fleet.seen.ended.load(Ordering::SeqCst), ended, "none ended");
    for actor in 0..ACTORS {
        assert_eq!(call(&caller, actor, "").await.status, 200);
    }
    // A new host gets its share.
    let _third = fleet.host_by("third", &replicas.flag()).await;
    eventually(async || fleet.seen.ended.load(Ordering::SeqCst) > ended).await;
    fleet.seen.check();
}

/// Invariant: when a host joins, no call waits for turns of other actors, whether its actor moves or stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_never_wait_for_other_turns() {
    let fleet = Fleet::new().await;
    let (_app, _first) = fleet.host("first").await;
    let caller = Arc::new(fleet.caller().await);
    eventually(async || call(&caller, 0, "").await.status == 200).await;
    // Turns of moving actors may be aborted, and are not repeated then.
    let mut turns = JoinSet::new();
    for actor in 0..ACTORS {
        let caller = Arc::clone(&caller);
        let path = format!("/v1.0/actors/T/long-{actor}/method/hang");
        turns.spawn(async move { caller.ask(post(&path, "")).await });
    }
    eventually(async || fleet.seen.places.lock().unwrap().len() > ACTORS).await;
    let load = Load::start(&caller);
    load.goes_on(20).await;
    let _second = fleet.host("second").await;
    let (made, failed, longest) = load.end().await;
    assert_eq!(failed, [""; 0], "of {made}");
    assert!(longest < Duration::from_secs(10), "a call took {longest:?}");
    fleet.seen.check();
    let release = async {
        while let Some(answer) = turns.join_next().await {
            let answer = answer.unwrap();
            let cut = answer.status == 500 && answer.text().contains("was interrupted");
            assert!(cut || answer.status == 200, "{}", answer.text());
        }
    };
    let mut release = std::pin::pin!(within(release));
    loop {
        tokio::select! {
            () = &mut release => break,
            () = tokio::time::sleep(Duration::from_millis(10)) => fleet.seen.release.notify_waiters(),
        }
    }
}

/// Invariant: an app that becomes unhealthy keeps its actors until their turns have ended; other hosts get
/// them only then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unhealthy_app_finishes_turns_first() {
    let mut fleet = Fleet::new().await;
    fleet.flags = HANDOVER_WHILE_WELL;
    let (_app, first) = fleet.host("first").await;
    let (_other_app, _second) = fleet.host("second").await;
    let caller = Arc::new(fleet.caller().await);
    eventually(async || {
        for actor in 0..ACTORS {
            call(&caller, actor, "").await;
        }
        !fleet.seen.on("first").is_empty() && !fleet.seen.on("second").is_empty()
    })
    .await;
    let actor: usize = fleet.seen.on("first")[0].parse().unwrap();
    let hanging = tokio::spawn({
        let (caller, path) = (Arc::clone(&caller), format!("/v1.0/actors/T/{actor}/method/hang"));
        async move { caller.ask(post(&path, "")).await.status }
    });
    eventually(async || fleet.seen.hanging.load(Ordering::SeqCst)).await;
    fleet.seen.unhealthy.lock().unwrap().insert("first".to_owned());
    // The app is not asked to deactivate them.
    fleet.seen.gone("first");
    let hosted =
        async || first.ask(get("/v1.0/metadata")).await.json()["actorRuntime"]["activeActors"].clone();
    eventually(async || hosted().await.as_array().is_none_or(Vec::is_empty)).await;
    let moved = tokio::spawn({
        let caller = Arc::clone(&caller);
        async move { call(&caller, actor, "").await }
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!moved.is_finished(), "its turn runs");
    fleet.seen.check();
    fleet.seen.release.notify_waiters();
    assert_eq!(within(hanging).await.unwrap(), 200);
    let answer = within(moved).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "second"));
    fleet.seen.check();
}

/// Invariant: one sidecar without handover makes placement fall back to Dapr's rounds, in which calls wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_fleet_falls_back_to_rounds() {
    let mut fleet = Fleet::new().await;
    let (_app, first) = fleet.host("first").await;
    fleet.flags = &[];
    let (_other_app, second) = fleet.host("second").await;
    fleet.flags = HANDOVER;
    let caller = Arc::new(fleet.caller().await);
    eventually(async || call(&caller, 0, "").await.status == 200).await;
    let load = Load::start(&caller);
    load.goes_on(50).await;
    let (_third_app, _third) = fleet.host("third").await;
    load.goes_on(50).await;
    second.stop().await.unwrap();
    load.goes_on(50).await;
    let (_fourth_app, _fourth) = fleet.host("fourth").await;
    first.stop().await.unwrap();
    load.goes_on(50).await;
    let (made, failed, _) = load.end().await;
    assert_eq!(failed, [""; 0], "of {made}");
    fleet.seen.check();
}

/// Actors under constant load: enough for some to move and some to stay.
const BUSY: usize = 16;

/// Calls each of them repeatedly at a node until stopped; returns the actors for which `host` has answered.
fn call_all(
    node: &Arc<Node>,
    host: &'static str,
    stop: &Arc<AtomicBool>,
) -> (JoinSet<()>, Arc<Mutex<HashSet<usize>>>) {
    let (mut tasks, answered) = (JoinSet::new(), Arc::<Mutex<HashSet<usize>>>::default());
    for actor in 0..BUSY {
        let (node, stop, answered) = (Arc::clone(node), Arc::clone(stop), Arc::clone(&answered));
        tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                // A call to a host that gives its actors up may wait there for long.
                let called = tokio::time::timeout(Duration::from_secs(1), call(&node, actor, ""));
                if called.await.is_ok_and(|answer| answer.text() == host) {
                    answered.lock().unwrap().insert(actor);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    (tasks, answered)
}

/// Invariant: a host whose app takes longer to deactivate moving actors than placement waits runs no turn
/// concurrently with the new host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handover_gives_up_actors() {
    let control = Control::with_placement(&["--handover", "--disseminate-timeout=3s"]).await;
    let fleet = Fleet::of(control, true);
    let (_app, first) = fleet.host("first").await;
    let first = Arc::new(first);
    for actor in 0..BUSY {
        eventually(async || call(&first, actor, "").await.status == 200).await;
    }
    fleet.seen.slow.store(true, Ordering::SeqCst);
    // Never reset, because on a busy machine the other host may take as long afterwards.
    fleet.seen.given_up.store(true, Ordering::SeqCst);
    let (_other_app, second) = fleet.host("second").await;
    let stop = Arc::default();
    let (mut here, _) = call_all(&first, "first", &stop);
    let (mut there, answered) = call_all(&Arc::new(second), "second", &stop);
    eventually(async || answered.lock().unwrap().len() == BUSY).await;
    fleet.seen.slow.store(false, Ordering::SeqCst);
    // It rejoins and gets its share.
    let ended = fleet.seen.ended.load(Ordering::SeqCst);
    eventually(async || {
        fleet.seen.ended.load(Ordering::SeqCst) > ended + BUSY && !fleet.seen.on("first").is_empty()
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for tasks in [&mut here, &mut there] {
        while let Some(ended) = within(tasks.join_next()).await {
            ended.unwrap();
        }
    }
    fleet.seen.check();
}
