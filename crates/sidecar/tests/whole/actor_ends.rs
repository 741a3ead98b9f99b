//! How actors, their turns and their timers end where something takes long.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Method, Request};
use hyper::body::Incoming;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::common::worker::ACTOR_STORE;
use crate::common::{Answer, App, Control, Net, Node, Placement, app, eventually, get, post, within};

/// How often the app was asked for something: method and path.
type Asked = Arc<Mutex<BTreeMap<String, usize>>>;

/// An app that hosts actors of type `T`. The method `hang` of any, and the `DELETE` of the actor `stuck`, are never answered;
/// timers are due once.
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
            if line.ends_with("/hang") || line == "DELETE /actors/T/stuck" {
                pending::<()>().await;
            }
            let mut answer = app::text(200, "");
            if path.contains("/timer/") {
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

/// Invariant: a host that has lost placement writes no state of its actors soon after, however long their app takes to end
/// them: others may have them.
#[tokio::test]
async fn a_host_that_is_fenced_writes_no_state() {
    let (net, placement, asked) = (Net::plain(), Placement::start().await, Asked::default());
    let app = host(json!({"entities": ["T"]}), &asked).await;
    let node = sidecar(&net, &placement, &app).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "stuck", "m").await.status, 200);
    let body = json!([{"operation": "upsert", "request": {"key": "k", "value": 1}}]).to_string();
    let write = async || node.ask(post("/v1.0/actors/T/stuck/state", body.clone())).await;
    assert_eq!(write().await.status, 204);
    drop(placement);
    eventually(async || times(&asked, "DELETE /actors/T/stuck") == 1).await;
    sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        let answer = write().await;
        assert_eq!(answer.status, 500, "{}", answer.text());
    }
}
