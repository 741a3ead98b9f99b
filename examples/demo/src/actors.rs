//! Two apps call an actor with a count in its state and a reminder. Then a second host joins, and the demo kills the host of
//! the actor.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use outrigger_wire::runtime::v1::InvokeActorRequest;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::Failure;
use crate::bindings::{posted, until_posted};
use crate::calls::{REPEATS, get, millis, send, timed};
use crate::fleet::{Fleet, Sidecar};

const KIND: &str = "Boat";
const ID: &str = "kon-tiki";
const METHOD: &str = "sail";
const REMINDER: &str = "watch";
/// Expected number of reminders.
const TIMES: u64 = 2;

/// Limit for the failover of the actor after its host is killed.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two calls during the failover.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls an actor of the HTTP app through both sidecars, reads its state, sets a reminder, and kills its host. Prints a line
/// for each.
pub(crate) async fn all(fleet: &mut Fleet) -> Result<(), Failure> {
    let actor = beside(&fleet.python);
    let (first, median) = timed(REPEATS, async || over_http(&actor).await.map(drop)).await?;
    line("through its own sidecar, over HTTP", first, median);
    let (first, median) = timed(REPEATS, async || over_grpc(fleet).await.map(drop)).await?;
    line("through both sidecars, over gRPC", first, median);
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
    remind(fleet, &actor).await?;
    outlive(fleet).await
}

/// The actor's URL at a sidecar.
fn beside(sidecar: &Sidecar) -> String {
    format!("http://127.0.0.1:{}/v1.0/actors/{KIND}/{ID}", sidecar.http)
}

/// The actor's response to a call.
struct Answer {
    /// Its count after the call.
    calls: u64,
    /// The port of the app that hosts it.
    host: u16,
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

async fn over_http(actor: &str) -> Result<Answer, Failure> {
    let url = format!("{actor}/method/{METHOD}");
    let (status, answer) = send(Request::post(&url).body(Full::default())?).await?;
    if status != 200 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    read(&answer)
}

async fn over_grpc(fleet: &Fleet) -> Result<Answer, Failure> {
    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", fleet.rust.grpc))?.connect_lazy();
    let request = InvokeActorRequest {
        actor_type: KIND.into(),
        actor_id: ID.into(),
        method: METHOD.into(),
        ..InvokeActorRequest::default()
    };
    let answer = DaprClient::new(grpc).invoke_actor(request).await?.into_inner();
    read(&answer.data)
}

fn read(answer: &[u8]) -> Result<Answer, Failure> {
    let shown = String::from_utf8_lossy(answer);
    let seen: Value =
        serde_json::from_slice(answer).map_err(|e| format!("not the actor's answer ({e}): {shown}"))?;
    let number = |name: &str| {
        let number = seen[name].as_u64();
        number.ok_or_else(|| format!("the actor's answer has no number '{name}': {shown}"))
    };
    Ok(Answer {
        calls: number("calls")?,
        host: number("port")?.try_into()?,
    })
}

/// Sets a reminder, and waits until it has fired a few times.
async fn remind(fleet: &Fleet, actor: &str) -> Result<(), Failure> {
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
    Ok(())
}

/// Starts a second host and kills the host of the actor, which continues on the other with its state and reminder.
async fn outlive(fleet: &mut Fleet) -> Result<(), Failure> {
    let began = Instant::now();
    let second = fleet.second_python().await?;
    // The sidecar is part of the hash ring once it can locate the actor.
    let before = over_http(&beside(&second.sidecar)).await?;
    let (which, survivor) = if before.host == second.sidecar.app {
        ("it moved to that one, with its state", fleet.python.app)
    } else {
        ("it stayed with the first", second.sidecar.app)
    };
    println!(
        "{:24} the HTTP app and a sidecar once more, with the same id, in {} ms: {which}",
        "actor, second host",
        began.elapsed().as_millis()
    );
    let seen = posted(survivor, &reminded()).await?;

    let killed = Instant::now();
    fleet.kill_python(second, before.host).await?;
    let mut calls = 0;
    // Fails until placement has moved the actor.
    let now = loop {
        calls += 1;
        match over_grpc(fleet).await {
            Ok(now) => break now,
            Err(failure) if killed.elapsed() > LIMIT => return Err(failure),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let took = killed.elapsed().as_millis();
    if now.calls <= before.calls || now.calls > before.calls + calls || now.host != survivor {
        return Err(format!(
            "after the kill of its host, port {}, the actor counted {} at port {}, expected {} at port {survivor}",
            before.host,
            now.calls,
            now.host,
            before.calls + 1
        )
        .into());
    }
    println!(
        "{:24} of the app and the sidecar that host it: called at the other host {took} ms later, it went on with call {}",
        "actor, kill -9", now.calls
    );
    let after = until_posted(fleet, &reminded(), seen + TIMES).await? - seen;
    let url = format!("{}/reminders/{REMINDER}", beside(&fleet.python));
    done(&url, Request::delete(&url).body(Full::default())?).await?;
    println!(
        "{:24} the reminder, set once before, came to it there {after} times",
        "actor, kill -9"
    );
    Ok(())
}

/// Path of the reminder callback.
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
