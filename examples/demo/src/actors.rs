//! An actor that two apps call: one after the other, with a count in its state, and a reminder that wakes it. Then the
//! sidecar that hosts it is killed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use outrigger_wire::runtime::v1::InvokeActorRequest;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::Failure;
use crate::bindings::until_posted;
use crate::calls::{REPEATS, get, millis, send, timed};
use crate::fleet::Fleet;

const KIND: &str = "Boat";
const ID: &str = "kon-tiki";
const METHOD: &str = "sail";
const REMINDER: &str = "watch";
/// How often the reminder is to come.
const TIMES: u64 = 2;

/// How long the actor may be without a place after its host was killed.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two calls meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls an actor of the HTTP app beside both apps, reads its state, has it reminded, and kills its host; prints a line for
/// each.
pub(crate) async fn all(fleet: &mut Fleet) -> Result<(), Failure> {
    let actor = format!("http://127.0.0.1:{}/v1.0/actors/{KIND}/{ID}", fleet.python.http);
    let (first, median) = timed(REPEATS, async || over_http(&actor).await.map(drop)).await?;
    line("beside its own app, over HTTP", first, median);
    let (first, median) = timed(REPEATS, async || over_grpc(fleet).await.map(drop)).await?;
    line(
        "beside the other app, over gRPC: through both sidecars",
        first,
        median,
    );
    let expected = 2 * (1 + REPEATS as u64);
    let (status, kept) = get(&format!("{actor}/state/calls")).await?;
    let kept = String::from_utf8_lossy(&kept);
    if status != 200 || kept.parse() != Ok(expected) {
        return Err(
            format!("the actor has counted '{kept}' calls (status {status}), expected {expected}").into(),
        );
    }
    println!(
        "{:24} it counted {kept} calls of two apps in its state, one turn after another",
        "actor, state"
    );
    let seen = remind(fleet, &actor).await?;
    outlive(fleet, &actor, expected, seen).await
}

fn line(what: &str, first: Duration, median: Duration) {
    let what = format!("{KIND} {ID} called {what}");
    println!(
        "{:24} {what:83} {:>6.2} ms {:>6.2} ms",
        "actor, call",
        millis(first),
        millis(median)
    );
}

/// The actor's count after the call.
async fn over_http(actor: &str) -> Result<u64, Failure> {
    let url = format!("{actor}/method/{METHOD}");
    let (status, answer) = send(Request::post(&url).body(Full::default())?).await?;
    if status != 200 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    counted(&answer)
}

async fn over_grpc(fleet: &Fleet) -> Result<u64, Failure> {
    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", fleet.rust.grpc))?.connect_lazy();
    let request = InvokeActorRequest {
        actor_type: KIND.into(),
        actor_id: ID.into(),
        method: METHOD.into(),
        ..InvokeActorRequest::default()
    };
    let answer = DaprClient::new(grpc).invoke_actor(request).await?.into_inner();
    counted(&answer.data)
}

fn counted(answer: &[u8]) -> Result<u64, Failure> {
    let shown = String::from_utf8_lossy(answer);
    let seen: Value =
        serde_json::from_slice(answer).map_err(|e| format!("not the actor's answer ({e}): {shown}"))?;
    seen["calls"]
        .as_u64()
        .ok_or_else(|| format!("the actor's answer has no count: {shown}").into())
}

/// Has the actor reminded until it has come a few times.
async fn remind(fleet: &Fleet, actor: &str) -> Result<u64, Failure> {
    let url = format!("{actor}/reminders/{REMINDER}");
    let reminder = json!({"dueTime": "0s", "period": "1s", "data": "all is well"});
    let request = Request::post(&url).header("content-type", "application/json");
    done(&url, request.body(Full::from(reminder.to_string()))?).await?;
    let seen = until_posted(fleet, &reminded(), TIMES).await?;
    println!(
        "{:24} the scheduler woke it {seen} times, every second: PUT /{}",
        "actor, reminder",
        reminded()
    );
    Ok(seen)
}

/// Kills the sidecar that hosts the actor: its state and its reminder outlive it. `counted` and `seen`: the calls and the
/// reminders so far.
async fn outlive(fleet: &mut Fleet, actor: &str, counted: u64, seen: u64) -> Result<(), Failure> {
    let killed = Instant::now();
    fleet.kill_python_sidecar().await?;
    let mut calls = 0;
    // Refused until the host has its place again.
    let now = loop {
        calls += 1;
        match over_grpc(fleet).await {
            Ok(now) => break now,
            Err(failure) if killed.elapsed() > LIMIT => return Err(failure),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    if now <= counted || now > counted + calls {
        let expected = counted + 1;
        return Err(
            format!("after the kill of its host the actor counted {now}, expected {expected}").into(),
        );
    }
    println!(
        "{:24} of the sidecar that hosts it: called again {} ms later, it went on with call {now}",
        "actor, kill -9",
        killed.elapsed().as_millis()
    );
    // Of those until now, one may have been under way as its host was killed.
    let after = until_posted(fleet, &reminded(), seen + 1 + TIMES).await? - seen;
    let url = format!("{actor}/reminders/{REMINDER}");
    done(&url, Request::delete(&url).body(Full::default())?).await?;
    println!(
        "{:24} the reminder, set once before, came {after} times more",
        "actor, kill -9"
    );
    Ok(())
}

/// Where the app gets the reminder.
fn reminded() -> String {
    format!("actors/{KIND}/{ID}/method/remind/{REMINDER}")
}

async fn done(url: &str, request: Request<Full<Bytes>>) -> Result<(), Failure> {
    let (status, answer) = send(request).await?;
    if status != 204 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    Ok(())
}
