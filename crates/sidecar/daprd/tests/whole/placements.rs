//! Placements that are killed or partitioned, during calls to actors of whole sidecars.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::common::client::{http1_client, with_host};
use crate::common::fleet::{ACTORS, Fleet, Load, Seen, call};
use crate::common::{Answer, Control, Node, Relay, Replicas, eventually, post, within};

/// Whether the status and body of a failed call are those of the contract.
pub fn is_of_contract(failed: &str) -> bool {
    let (status, body) = failed.split_once(": ").unwrap_or_default();
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let message = body["message"].as_str().unwrap_or_default();
    status.starts_with("500")
        && body["errorCode"] == "ERR_ACTOR_INVOKE_METHOD"
        && message.starts_with("error invoke actor method: ")
}

fn answered(answer: &Answer) -> String {
    format!("{}: {}", answer.status, answer.text())
}

/// The other failures.
fn strange(failed: &[String]) -> Vec<&String> {
    failed.iter().filter(|failed| !is_of_contract(failed)).collect()
}

/// A call whose turn has begun and lasts until [`released`].
async fn long_call(caller: &Node, seen: &Seen, actor: &str) -> JoinHandle<Answer> {
    seen.hanging.store(false, Ordering::SeqCst);
    let path = format!("/v1.0/actors/T/{actor}/method/hang");
    let mut client = http1_client(caller.ports.http).await;
    // It may take longer than anything else.
    let sent = tokio::spawn(async move {
        let sent = client.send_request(with_host(post(&path, "")));
        Answer::read(sent.await.unwrap()).await
    });
    eventually(async || seen.hanging.load(Ordering::SeqCst)).await;
    sent
}

/// Releases turns until the call has its response.
async fn released(seen: &Seen, call: JoinHandle<Answer>) -> String {
    let mut call = std::pin::pin!(within(call));
    loop {
        tokio::select! {
            answer = &mut call => return answered(&answer.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(10)) => seen.release.notify_waiters(),
        }
    }
}

/// An actor without other callers that is active on this host.
async fn actor_on(host: &str, caller: &Node) -> String {
    for number in 0.. {
        let actor = format!("long-{number}");
        let answer = caller
            .ask(post(&format!("/v1.0/actors/T/{actor}/method/m"), ""))
            .await;
        if answer.text() == host {
            return actor;
        }
    }
    unreachable!("each host has some of many actors")
}

async fn leaders_are_killed(handover: bool) {
    let mut replicas = Replicas::start(handover).await;
    let fleet = Fleet::of(Control::scheduler().await, handover);
    let (_first_app, _first) = fleet.host_by("first", &replicas.flag()).await;
    let (_second_app, _second) = fleet.host_by("second", &replicas.flag()).await;
    let caller = Arc::new(fleet.caller_by(&replicas.flag()).await);
    for actor in 0..ACTORS {
        eventually(async || call(&caller, actor, "").await.status == 200).await;
    }
    let load = Load::start(&caller);
    for _ in 0..2 {
        load.goes_on(100).await;
        // Its turn lasts longer than the time without a leader.
        let long = long_call(&caller, &fleet.seen, "long").await;
        let killed = replicas.leader().await;
        replicas.kill(killed);
        assert_ne!(replicas.leader().await, killed);
        load.goes_on(100).await;
        let answer = released(&fleet.seen, long).await;
        assert!(answer.starts_with("200") || is_of_contract(&answer), "{answer}");
        replicas.start_again(killed).await;
    }
    // A new host gets its share, so rounds continue.
    let (_third_app, _third) = fleet.host_by("third", &replicas.flag()).await;
    eventually(async || !fleet.seen.on("third").is_empty()).await;
    load.goes_on(100).await;
    let (made, failed, longest) = load.end().await;
    fleet.seen.check();
    assert!(strange(&failed).is_empty(), "of {made}: {:?}", strange(&failed));
    if handover {
        assert!(failed.is_empty(), "of {made}: {failed:?}");
        let ran = fleet.seen.ran.lock().unwrap();
        assert!(
            ran.len() == made && ran.values().all(|times| *times == 1),
            "each ran once"
        );
    }
    for actor in 0..ACTORS {
        assert_eq!(call(&caller, actor, "").await.status, 200);
    }
    println!(
        "{made} calls, {} failed, the longest took {longest:?}",
        failed.len()
    );
}

/// Invariant: when leaders of three replicas are killed one after another under load, no actor and no turn is
/// in two places. Failed calls have the contract's error, and the next leader takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_leader_kill() {
    Box::pin(leaders_are_killed(false)).await;
}

/// Invariant: the same, and no short call fails and none runs twice, because sidecars continue without a
/// leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn survives_leader_kill_with_handover() {
    Box::pin(leaders_are_killed(true)).await;
}

async fn a_host_is_cut_off(handover: bool) {
    // A second longer than the default, which leaves only half a second to deactivate actors on a busy
    // machine.
    let hands_over = format!("--handover={handover}");
    let control = Control::with_placement(&[&hands_over, "--keepalive-timeout=4s"]).await;
    let fleet = Fleet::of(control, handover);
    let link = Relay::start(fleet.control.placement.port()).await;
    let (_cut_off_app, cut_off) = fleet.host_by("cut off", &link.placement_flag()).await;
    let (_staying_app, _staying) = fleet.host("staying").await;
    let caller = Arc::new(fleet.caller().await);
    for actor in 0..ACTORS {
        eventually(async || call(&caller, actor, "").await.status == 200).await;
    }
    let load = Load::start(&caller);
    let long = actor_on("cut off", &caller).await;
    let long = long_call(&caller, &fleet.seen, &long).await;

    link.cut();
    eventually(async || fleet.seen.on("cut off").is_empty()).await;
    eventually(async || fleet.seen.on("staying").len() >= ACTORS).await;
    fleet.seen.check();
    load.goes_on(100).await;
    // The host's own app waits until the host knows the placement of actors.
    let own = call(&cut_off, 1, "");
    let healed = async { link.heal() };
    let (own, ()) = tokio::join!(own, healed);
    assert_eq!(own.status, 200, "{}", own.text());
    eventually(async || !fleet.seen.on("cut off").is_empty()).await;
    let answer = released(&fleet.seen, long).await;
    assert!(answer.starts_with("200") || is_of_contract(&answer), "{answer}");
    load.goes_on(100).await;
    let (made, failed, longest) = load.end().await;
    fleet.seen.check();
    assert!(strange(&failed).is_empty(), "of {made}: {:?}", strange(&failed));
    println!(
        "{made} calls, {} failed, the longest took {longest:?}",
        failed.len()
    );
}

/// Invariant: a host partitioned from placement, with open connections, ends its calls and actors before they
/// start elsewhere, even during a turn. Callers find their new place, and the host rejoins later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_host_fences_itself() {
    Box::pin(a_host_is_cut_off(false)).await;
}

/// Invariant: the same with handover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_host_fences_itself_with_handover() {
    Box::pin(a_host_is_cut_off(true)).await;
}
