//! Policies for apps: timeouts, retries, circuit breakers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tonic::{Code, Status};

use crate::common::{App, Net, Node, app, eventually, fed, get, grpc, post, within};

/// A Resiliency resource for the app `callee`.
pub fn policies(policies: &str, target: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: test\nspec:\n  policies:\n{policies}\n  \
         targets:\n    apps:\n      callee: {target}\n"
    )
}

pub const RETRY: &str = "    retries:\n      few: {policy: constant, duration: 10ms, maxRetries: 3}";

async fn pair(net: &Net, app: &App, resource: &str) -> (Node, Node) {
    let callee = net.sidecar("callee").app(app.port).start().await;
    (net.sidecar("caller").resource(resource).start().await, callee)
}

/// An app that fails with a status a number of times and then echoes.
async fn failing(times: usize, status: u16) -> App {
    let left = Arc::new(AtomicUsize::new(times));
    App::start(move |request| {
        let own = request.uri().path() == "/dapr/config";
        let fails = !own
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        async move {
            let mut response = app::echo(request).await;
            if fails {
                // Reads the body, so that a repeated body is known to be complete.
                let (_, body) = response.into_parts();
                let _sent = body.collect().await;
                response = app::text(status, "not now");
            }
            response
        }
    })
    .await
}

#[tokio::test]
async fn retries_until_success() {
    let net = Net::plain();
    let app = failing(2, 503).await;
    let (caller, _callee) = pair(&net, &app, &policies(RETRY, "{retry: few}")).await;
    let answer = caller
        .ask(post("/v1.0/invoke/callee/method/m", "same bytes"))
        .await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "same bytes"));
    assert_eq!(app.calls(), 3);
    let labels = [
        "policy=\"retry\"",
        "target=\"app_callee\"",
        "flow_direction=\"outbound\"",
    ];
    caller.counts("dapr_resiliency_count", &labels, 1.0).await;
    let activations = "dapr_resiliency_activations_total";
    caller.counts(activations, &labels, 1.0).await;
    let loaded = ["name=\"test\""];
    caller.counts("dapr_resiliency_loaded", &loaded, 1.0).await;
}

#[tokio::test]
async fn passes_last_failure_unchanged() {
    let net = Net::plain();
    let app = failing(usize::MAX, 503).await;
    let (caller, _callee) = pair(&net, &app, &policies(RETRY, "{retry: few}")).await;
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "x")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (503, "not now"));
    assert_eq!(app.calls(), 4);
}

#[tokio::test]
async fn retries_only_matching_statuses() {
    let net = Net::plain();
    let rule = "    retries:\n      some: {policy: constant, duration: 10ms, maxRetries: 2, matching: \
                {httpStatusCodes: \"500-502,504\"}}";
    for (status, calls) in [(500, 3), (502, 3), (503, 1), (504, 3), (404, 1)] {
        let app = failing(usize::MAX, status).await;
        let (caller, _callee) = pair(&Net::plain(), &app, &policies(rule, "{retry: some}")).await;
        let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
        assert_eq!(answer.status, status);
        assert_eq!(app.calls(), calls, "{status}");
    }
    drop(net);
}

#[tokio::test]
async fn retries_only_small_streamed_bodies() {
    let net = Net::plain();
    for (size, calls, status) in [(16 * 1024, 2, 200), (60 * 1024, 2, 200), (256 * 1024, 1, 503)] {
        let app = failing(1, 503).await;
        let net = Net::plain();
        let (caller, _callee) = pair(&net, &app, &policies(RETRY, "{retry: few}")).await;
        let (sender, body) = fed();
        tokio::spawn(async move {
            for _ in 0..size / 4096 {
                sender.send(Ok(vec![b'x'; 4096].into())).await.unwrap();
            }
        });
        let answer = caller.ask(post("/v1.0/invoke/callee/method/m", body)).await;
        assert_eq!(answer.status, status, "{size}: {}", answer.text());
        assert_eq!(app.calls(), calls, "{size}");
        if status == 200 {
            assert_eq!(answer.body.len(), size);
        }
    }
    drop(net);
}

#[tokio::test]
async fn oversized_body_is_not_retried() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let whole = request.into_body().collect().await.is_ok();
        app::text(if whole { 200 } else { 500 }, "read")
    })
    .await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let rules = "    retries:\n      few: {policy: constant, duration: 10ms, maxRetries: 3}\n    circuitBreakers:\n      \
                 strict: {maxRequests: 1, timeout: 60s, trip: consecutiveFailures > 0}";
    let caller = net
        .sidecar("caller")
        .flag("--max-body-size=1Ki")
        .resource(&policies(rules, "{retry: few, circuitBreaker: strict}"))
        .start()
        .await;
    for _ in 0..3 {
        let (sender, body) = fed();
        tokio::spawn(async move {
            for _ in 0..3 {
                // The sidecar may stop reading at any time.
                let _over = sender.send(Ok(vec![b'x'; 512].into())).await;
            }
        });
        let answer = caller.ask(post("/v1.0/invoke/callee/method/m", body)).await;
        let message = answer.error(500, "ERR_DIRECT_INVOKE");
        assert!(
            message.contains("stream too large: more than 1024 bytes"),
            "{message}"
        );
    }
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "small")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The app may see a broken request after its caller was answered, so only the sum is certain.
    assert!(app.calls() <= 4, "{} calls", app.calls());
    drop(callee);
}

#[tokio::test]
async fn limits_time_per_attempt() {
    let net = Net::plain();
    let slow = Arc::new(AtomicUsize::new(1));
    let left = Arc::clone(&slow);
    let app = App::start(move |request| {
        let first = request.uri().path() == "/m"
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        async move {
            if first || request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            app::text(200, "in time")
        }
    })
    .await;
    let rules = format!("    timeouts:\n      brief: 1s\n{RETRY}");
    let (caller, _callee) = pair(&net, &app, &policies(&rules, "{timeout: brief, retry: few}")).await;
    let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "in time"));
    // The attempt without a response; one that was late on a slow machine is repeated too.
    assert!(app.calls() >= 2);
    let (started, calls) = (Instant::now(), app.calls());
    let answer = caller.ask(get("/v1.0/invoke/callee/method/never")).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("context deadline exceeded"), "{message}");
    assert!(
        started.elapsed() >= Duration::from_secs(4),
        "four attempts of a second"
    );
    // An attempt may time out before it reaches the app.
    assert!(app.calls() <= calls + 4, "{} calls", app.calls());
    let labels = ["policy=\"timeout\"", "target=\"app_callee\""];
    assert!(
        caller
            .metric("dapr_resiliency_activations_total", &labels)
            .await
            .unwrap()
            >= 2.0
    );
}

#[tokio::test]
async fn breaker_opens_and_probes_once() {
    let net = Net::plain();
    let healthy = Arc::new(AtomicUsize::new(0));
    let state = Arc::clone(&healthy);
    let app = App::start(move |_| {
        let up = state.load(Ordering::SeqCst) == 1;
        async move {
            if up {
                app::text(200, "up")
            } else {
                app::text(500, "down")
            }
        }
    })
    .await;
    let rule =
        "    circuitBreakers:\n      fuse: {maxRequests: 1, timeout: 3s, trip: consecutiveFailures > 2}";
    let (caller, _callee) = pair(&net, &app, &policies(rule, "{circuitBreaker: fuse}")).await;
    let call = async || caller.ask(get("/v1.0/invoke/callee/method/m")).await;
    for _ in 0..3 {
        assert_eq!(call().await.text(), "down");
    }
    let message = call().await.error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains("circuit breaker is open"), "{message}");
    assert_eq!(app.calls(), 3, "an open breaker keeps calls away");
    let open = ["status=\"open\"", "target=\"app_callee\""];
    caller.counts("dapr_resiliency_cb_state", &open, 1.0).await;
    // Another method has a separate circuit breaker.
    assert_eq!(
        caller.ask(get("/v1.0/invoke/callee/method/other")).await.text(),
        "down"
    );
    // A failed probe opens it again; a successful probe closes it.
    eventually(async || call().await.text() == "down").await;
    assert!(call().await.text().contains("circuit breaker is open"));
    healthy.store(1, Ordering::SeqCst);
    eventually(async || call().await.status == 200).await;
    for _ in 0..3 {
        assert_eq!(call().await.text(), "up");
    }
}

#[tokio::test]
async fn policy_replaces_builtin_retries() {
    let net = Net::plain();
    let app = App::echo().await;
    let rule = "    retries:\n      none: {policy: constant, duration: 10ms, maxRetries: 0}";
    let (caller, callee) = pair(&net, &app, &policies(rule, "{retry: none}")).await;
    assert_eq!(caller.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
    drop(callee);
    let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(
        !message.contains("retries"),
        "none of the built-in ones: {message}"
    );
}

#[tokio::test]
async fn retries_proxied_calls_by_code() {
    let net = Net::plain();
    let left = Arc::new(AtomicUsize::new(2));
    let app = App::start(move |request| {
        let code = if request.uri().path().ends_with("/Busy") {
            Code::Unavailable
        } else {
            Code::NotFound
        };
        let fails = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok();
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if fails {
                return grpc::failure(&Status::new(code, "not now"));
            }
            let message = grpc::messages(body).remove(0);
            grpc::response(&[], &[&message], &[("grpc-status", "0")])
        }
    })
    .await;
    let rule = "    retries:\n      some: {policy: constant, duration: 10ms, maxRetries: 3, matching: \
                {gRPCStatusCodes: \"14\"}}";
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let _callee = callee.start().await;
    let caller = net
        .sidecar("caller")
        .resource(&policies(rule, "{retry: some}"))
        .start()
        .await;
    let metadata = [("dapr-app-id", "callee")];
    let call = async |method: &str| grpc::call(caller.ports.grpc, method, &metadata, &[b"order"]).await;
    let outcome = call("/shop.v1.Orders/Other").await;
    assert_eq!(outcome.status.code(), Code::NotFound);
    assert_eq!(app.calls(), 1);
    let outcome = call("/shop.v1.Orders/Busy").await;
    assert_eq!(outcome.messages, ["order"], "{:?}", outcome.status);
    assert_eq!(app.calls(), 3);
}

#[tokio::test]
async fn broken_policy_file_affects_no_other() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let broken = policies("    retries:\n      odd: {policy: sometimes}", "{retry: odd}");
    let caller = net.sidecar("caller").resource(&broken).start().await;
    let answer = within(caller.ask(get("/v1.0/invoke/callee/method/m"))).await;
    assert_eq!(answer.status, 200);
    drop(callee);
}
