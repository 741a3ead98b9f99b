//! The end of actors, turns and timers when something takes long.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use outrigger_transport::body::Body;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::worker::ACTOR_STORE;
use crate::common::{Answer, App, Control, Net, Node, Placement, app, eventually, get, post, within};

/// Number of requests to the app, by method and path.
type Asked = Arc<Mutex<BTreeMap<String, usize>>>;

/// An app with actors of type `T`. It never answers the method `hang`, or the `DELETE` of actors with ids
/// beginning with `stuck`. For ids beginning with `endless` the body of the `DELETE` response never ends, and
/// its status is the end of the id. Timers fire once.
async fn host(settings: serde_json::Value, asked: &Asked) -> App {
    let (settings, asked) = (settings.to_string(), Arc::clone(asked));
    App::start(move |request: Request<Incoming>| {
        let (settings, asked) = (settings.clone(), Arc::clone(&asked));
        async move {
            let path = request.uri().path().to_owned();
            match (request.method(), path.as_str()) {
                (&Method::GET, "/dapr/config") => return app::text(200, &settings),
                (&Method::GET, _) => return app::text(404, ""),
                _ => {}
            }
            let line = format!("{} {path}", request.method());
            *asked.lock().unwrap().entry(line.clone()).or_default() += 1;
            if line.ends_with("/hang") || line.starts_with("DELETE /actors/T/stuck") {
                pending::<()>().await;
            }
            let mut answer = app::text(200, "");
            if let Some(status) = line.strip_prefix("DELETE /actors/T/endless") {
                *answer.status_mut() = status.parse().unwrap();
                let endless = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                *answer.body_mut() = Body::stream(StreamBody::new(endless));
            }
            if path.contains("/timer/") {
                let due = request.into_body().collect().await.unwrap().to_bytes();
                let due: serde_json::Value = serde_json::from_slice(&due).unwrap();
                let called = format!("callback {}", due["callback"]);
                *asked.lock().unwrap().entry(called).or_default() += 1;
                let cancel = HeaderValue::from_static("true");
                answer.headers_mut().insert("x-daprremindercancel", cancel);
            }
            answer
        }
    })
    .await
}

fn times(asked: &Asked, line: &str) -> usize {
    asked.lock().unwrap().get(line).copied().unwrap_or_default()
}

async fn sidecar(net: &Net, placement: &Placement, app: &App) -> Node {
    let plan = net.sidecar("host").app(app.port).resource(ACTOR_STORE);
    plan.flag(&placement.flag()).start().await
}

async fn invoke(node: &Node, id: &str, method: &str) -> Answer {
    node.ask(post(&format!("/v1.0/actors/T/{id}/method/{method}"), ""))
        .await
}

async fn write(node: &Node, id: &str) -> Answer {
    let body = json!([{"operation": "upsert", "request": {"key": "k", "value": 1}}]);
    node.ask(post(&format!("/v1.0/actors/T/{id}/state"), body.to_string()))
        .await
}

/// Invariant: a host that has lost placement soon stops writing its actors' state, because other hosts may
/// have them. It does not wait for the app to deactivate them.
#[tokio::test]
async fn fenced_host_writes_no_state() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"]}), &asked).await;
    let node = sidecar(&net, &placement, &app).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "stuck", "m").await.status, 200);
    assert_eq!(write(&node, "stuck").await.status, 204);
    drop(placement);
    eventually(async || times(&asked, "DELETE /actors/T/stuck") == 1).await;
    sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        let answer = write(&node, "stuck").await;
        assert_eq!(answer.status, 500, "{}", answer.text());
    }
}

/// Invariant: the same if placement is lost while moving actors are being deactivated.
#[tokio::test]
async fn fenced_host_writes_no_state_during_move() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"]}), &asked).await;
    let node = sidecar(&net, &placement, &app).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "stuck", "m").await.status, 200);
    node.shutdown.begin();
    eventually(async || times(&asked, "DELETE /actors/T/stuck") == 1).await;
    assert_eq!(
        write(&node, "stuck").await.status,
        204,
        "no other host has it yet"
    );
    drop(placement);
    sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        let answer = write(&node, "stuck").await;
        assert_eq!(answer.status, 500, "{}", answer.text());
    }
}

/// Invariant: a stopping host whose actors no round moves writes no state after its stream to placement has
/// ended.
#[tokio::test]
async fn stopping_host_writes_no_state() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"]}), &asked).await;
    let plan = net.sidecar("host").app(app.port).resource(ACTOR_STORE);
    let plan = plan.flag("--dapr-graceful-shutdown-seconds=30");
    let node = plan.flag(&placement.flag()).start().await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "stuck", "m").await.status, 200);
    placement.hold(true);
    node.shutdown.begin();
    eventually(async || placement.is_locked()).await;
    assert_eq!(
        write(&node, "stuck").await.status,
        204,
        "no other host has it yet"
    );
    eventually(async || placement.has("T", 0)).await;
    let answer = write(&node, "stuck").await;
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert_eq!(
        times(&asked, "DELETE /actors/T/stuck"),
        1,
        "and the app still ends it"
    );
}

/// Invariant: with handover, no turn runs twice; the caller of a turn aborted by a move gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aborted_turn_is_not_repeated() {
    let (net, control, asked) = (Net::plain(), Control::with_handover().await, Asked::default());
    let settings = json!({"entities": ["T"], "drainOngoingCallTimeout": "100ms"});
    let (app, other) = (host(settings.clone(), &asked).await, host(settings, &asked).await);
    let plan = |id| {
        let plan = net.sidecar(id).resource(ACTOR_STORE).flag("--actors-handover");
        control.with_both(plan)
    };
    let _first = plan("host").app(app.port).start().await;
    let caller = Arc::new(plan("caller").start().await);
    eventually(async || invoke(&caller, "1", "m").await.status == 200).await;
    let mut turns = JoinSet::new();
    for id in 0..12 {
        let caller = Arc::clone(&caller);
        turns.spawn(async move { (id, invoke(&caller, &id.to_string(), "hang").await) });
    }
    let hang = |id: i32| format!("PUT /actors/T/{id}/method/hang");
    eventually(async || (0..12).all(|id| times(&asked, &hang(id)) == 1)).await;
    let _second = plan("host").app(other.port).start().await;
    let (id, answer) = within(turns.join_next()).await.unwrap().unwrap();
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.text().contains("was interrupted"), "{}", answer.text());
    assert_eq!(times(&asked, &hang(id)), 1);
}

/// Invariant: an app that does not answer one actor's deactivation delays no other's, and that actor counts
/// as deactivated after the timeout.
#[tokio::test]
async fn stuck_deactivation_delays_no_other() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"], "actorIdleTimeout": "100ms"}), &asked).await;
    let node = sidecar(&net, &placement, &app).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "stuck", "m").await.status, 200);
    eventually(async || times(&asked, "DELETE /actors/T/stuck") == 1).await;
    // Enough for each lane.
    for id in 0..100 {
        assert_eq!(invoke(&node, &id.to_string(), "m").await.status, 200);
    }
    let ended = eventually(async || (0..100).all(|id| times(&asked, &format!("DELETE /actors/T/{id}")) > 0));
    timeout(Duration::from_secs(6), ended)
        .await
        .expect("before the one is given up");
    let runtime = async || node.ask(get("/v1.0/metadata")).await.json()["actorRuntime"].clone();
    eventually(async || runtime().await["activeActors"] == json!([{"type": "T"}])).await;
}

/// Invariant: while many idle actors wait for slow deactivations, the others can be called.
#[tokio::test]
async fn idle_actors_stay_callable() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"], "actorIdleTimeout": "100ms"}), &asked).await;
    let node = sidecar(&net, &placement, &app).await;
    eventually(async || placement.has("T", 1)).await;
    let ids: Vec<_> = (0..100).map(|id| format!("stuck{id}")).collect();
    for id in &ids {
        assert_eq!(invoke(&node, id, "m").await.status, 200);
    }
    let is_ending = |id: &&String| times(&asked, &format!("DELETE /actors/T/{id}")) > 0;
    eventually(async || ids.iter().filter(is_ending).count() == 64).await;
    let others: Vec<_> = ids.iter().filter(|id| !is_ending(id)).collect();
    let called = async {
        for id in &others {
            assert_eq!(invoke(&node, id, "m").await.status, 200);
        }
    };
    timeout(Duration::from_secs(6), called)
        .await
        .expect("before the first are given up");
    assert_eq!(ids.iter().filter(is_ending).count(), 64);
}

/// Invariant: an app whose `DELETE` response never ends does not block the sidecar.
#[tokio::test]
async fn endless_response_does_not_block_shutdown() {
    for protocol in ["http", "h2c"] {
        let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
        let app = host(json!({"entities": ["T"]}), &asked).await;
        let plan = net.sidecar("host").app(app.port).resource(ACTOR_STORE);
        let plan = plan.flag(&format!("--app-protocol={protocol}"));
        let node = plan.flag(&placement.flag()).start().await;
        eventually(async || placement.has("T", 1)).await;
        for status in [200, 404, 500] {
            assert_eq!(invoke(&node, &format!("endless{status}"), "m").await.status, 200);
        }
        node.stop().await.unwrap();
        for status in [200, 404, 500] {
            let deleted = times(&asked, &format!("DELETE /actors/T/endless{status}"));
            assert_eq!(deleted, 1, "{protocol}: {status}");
        }
    }
}

/// Invariant: a timer whose actor lives elsewhere gets its callback, and its response can cancel it.
#[tokio::test]
async fn response_cancels_timer_of_moved_actor() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (here, there) = (Asked::default(), Asked::default());
    let settings = json!({"entities": ["T"]});
    let (app, other) = (host(settings.clone(), &here).await, host(settings, &there).await);
    let (first, _second) = (
        sidecar(&net, &placement, &app).await,
        sidecar(&net, &placement, &other).await,
    );
    eventually(async || placement.has("T", 2)).await;
    let mut ids = (0..100).map(|id| id.to_string());
    let id = loop {
        let id = ids.next().expect("some live there");
        assert_eq!(invoke(&first, &id, "m").await.status, 200);
        if times(&there, &format!("PUT /actors/T/{id}/method/m")) == 1 {
            break id;
        }
    };
    let timer = json!({"dueTime": "0s", "period": "50ms", "callback": "c"}).to_string();
    let path = format!("/v1.0/actors/T/{id}/timers/t");
    assert_eq!(first.ask(post(&path, timer)).await.status, 204);
    let fired = format!("PUT /actors/T/{id}/method/timer/t");
    eventually(async || times(&there, &fired) > 0).await;
    assert_eq!(times(&there, r#"callback "c""#), 1, "{there:?}");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(times(&there, &fired), 1);
}

/// Invariant: a reminder that is running when its scheduler disconnects keeps its turn until the app answers;
/// it arrives again on the next stream and waits for that. A queued reminder arrives again too, and the app
/// gets it once.
#[tokio::test]
async fn reminder_survives_scheduler_stream() {
    const WAKE: &str = "/actors/T/1/method/remind/wake";
    const LATER: &str = "/actors/T/1/method/remind/later";
    let (net, mut control) = (Net::plain(), Control::start().await);
    let (open, done) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (waiting, counting) = (Arc::clone(&open), Arc::clone(&done));
    let app = App::start(move |request: Request<Incoming>| {
        let (waiting, counting) = (Arc::clone(&waiting), Arc::clone(&counting));
        async move {
            let path = request.uri().path().to_owned();
            match (request.method(), path.as_str()) {
                (&Method::GET, "/dapr/config") => return app::text(200, r#"{"entities":["T"]}"#),
                (&Method::GET, _) => return app::text(404, ""),
                _ => {}
            }
            if path == WAKE {
                waiting.acquire().await.unwrap().forget();
                counting.fetch_add(1, Ordering::SeqCst);
            }
            app::text(200, "")
        }
    })
    .await;
    let plan = net.sidecar("host").app(app.port).resource(ACTOR_STORE);
    let node = control.with_both(plan).start().await;
    eventually(async || invoke(&node, "1", "m").await.status == 200).await;
    let remind = async |name: &str| {
        let reminder = json!({"dueTime": "0s"}).to_string();
        let path = format!("/v1.0/actors/T/1/reminders/{name}");
        assert_eq!(node.ask(post(&path, reminder)).await.status, 204);
    };
    let waiting = async |count| {
        let labels = ["actor_type=\"T\""];
        node.counts("dapr_runtime_actor_pending_actor_calls", &labels, count)
            .await;
    };
    let begun = |path: &str| app.seen().iter().filter(|seen| seen.target == path).count();
    remind("wake").await;
    eventually(async || begun(WAKE) == 1).await;
    remind("later").await;
    waiting(1.0).await;
    control.scheduler.kill();
    // The queued ones were dropped, and nothing is sent yet.
    waiting(0.0).await;
    control.start_scheduler().await;
    waiting(2.0).await;
    assert_eq!(
        (begun(WAKE), begun(LATER), done.load(Ordering::SeqCst)),
        (1, 0, 0)
    );
    open.add_permits(2);
    eventually(async || done.load(Ordering::SeqCst) == 2).await;
    // Behind all queued calls.
    assert_eq!(invoke(&node, "1", "m").await.status, 200);
    assert_eq!((begun(WAKE), begun(LATER)), (2, 1));
}
