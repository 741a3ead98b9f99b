//! Spans of actor calls, reminders and timers, the trace context sent to the app, and the related counters.

use super::pubsub::sampled;
use super::*;
use crate::common::worker::ACTOR_STORE;
use crate::common::{Control, within};

/// An app with actors of type `T`.
async fn host() -> App {
    App::start(|request: http::Request<hyper::body::Incoming>| async move {
        match request.uri().path() {
            "/dapr/config" => app::text(200, r#"{"entities":["T"]}"#),
            _ => app::text(200, ""),
        }
    })
    .await
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The trace context of a request to the app: trace id and parent span.
fn parent(app: &App, path: &str) -> Option<(String, String)> {
    let seen = app.seen().into_iter().find(|seen| seen.target == path)?;
    let (trace, span, _) = context(seen.header("traceparent")?);
    Some((trace, span))
}

/// Invariant: calls, reminders and timers reach the app within exported spans.
#[tokio::test]
async fn exports_spans_of_actors() {
    let (net, control, app) = (Net::plain(), Control::start().await, host().await);
    let (otel, spans) = collector().await;
    let plan = net.sidecar("me").app(app.port).spec(&sampled(&otel));
    let node = control.with_both(plan.resource(ACTOR_STORE)).start().await;
    let method = "/v1.0/actors/T/1/method/m";
    eventually(async || node.ask(post(method, "")).await.status == 200).await;
    let call = request("POST", method, &[PARENT], Body::Empty);
    assert_eq!(node.ask(call).await.status, 200);
    let seen = app
        .seen()
        .into_iter()
        .rfind(|seen| seen.target.ends_with("/method/m"));
    let seen = seen.unwrap();
    let (trace, caller, _) = context(seen.header("traceparent").unwrap());
    assert_eq!(trace, TRACE);

    let once = r#"{"dueTime":"0s"}"#;
    for path in ["/v1.0/actors/T/1/reminders/wake", "/v1.0/actors/T/1/timers/tick"] {
        assert_eq!(node.ask(post(path, once)).await.status, 204);
    }
    let paths = ["/actors/T/1/method/remind/wake", "/actors/T/1/method/timer/tick"];
    eventually(async || paths.iter().all(|path| parent(&app, path).is_some())).await;
    for name in ["reminders_fired_total", "timers_fired_total"] {
        let name = format!("dapr_runtime_actor_{name}");
        let labels = ["app_id=\"me\"", "actor_type=\"T\"", "success=\"true\""];
        node.counts(&name, &labels, 1.0).await;
    }
    let [reminder, timer] = paths.map(|path| parent(&app, path).unwrap());
    within(node.stop()).await.unwrap();
    let spans = spans.lock().unwrap();
    let sent = |id: &str| {
        let span = spans.iter().find(|span| hex(&span.span.span_id) == id);
        &span.unwrap_or_else(|| panic!("no span {id}")).span
    };
    assert_eq!(hex(&sent(&caller).trace_id), TRACE);
    for ((trace, id), name) in [(reminder, "actors/T/remind/wake"), (timer, "actors/T/timer/tick")] {
        let span = sent(&id);
        assert_eq!((hex(&span.trace_id), span.name.as_str()), (trace, name));
        assert_eq!(span.kind(), SpanKind::Client);
    }
}
