//! The scope of a policy's timeout: complete responses, but not streams.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use tonic::Code;

use crate::common::grpc::{self, Outcome, framed};
use crate::common::{App, Net, Node, app, fed, get, within};
use crate::resiliency::{RETRY, policies};

const BRIEF: Duration = Duration::from_millis(400);
/// After every attempt of a policy with `RETRY` and `BRIEF`.
const LATE: Duration = Duration::from_millis(2400);
const TIMEOUTS: &str = "    timeouts:\n      brief: 400ms\n";

/// A body that begins with `first` and never ends.
fn unfinished(first: &[u8]) -> Body {
    let (sender, body) = fed();
    let first = Bytes::copy_from_slice(first);
    tokio::spawn(async move {
        if !first.is_empty() {
            // The sidecar may stop reading at any time.
            let _read = sender.send(Ok(first)).await;
        }
        sender.closed().await;
    });
    body
}

/// A body that arrives complete after `LATE`.
fn late(body: Bytes) -> Body {
    let (sender, answer) = fed();
    tokio::spawn(async move {
        tokio::time::sleep(LATE).await;
        let _read = sender.send(Ok(body)).await;
    });
    answer
}

fn begun(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = "application/grpc".parse().unwrap();
    response.headers_mut().insert("content-type", kind);
    response
}

async fn orders(request: Request<Incoming>) -> Response<Body> {
    let whole = |text: &[u8]| grpc::response(&[], &[text], &[("grpc-status", "0")]);
    match request.uri().path() {
        "/shop.v1.Orders/Count" => {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            whole(grpc::messages(body).len().to_string().as_bytes())
        }
        "/shop.v1.Orders/Late" => {
            tokio::time::sleep(LATE).await;
            whole(b"first")
        }
        "/shop.v1.Orders/LateMessage" => {
            let trailers = async {
                let status = ("grpc-status".parse().unwrap(), "0".parse().unwrap());
                Some(Ok(http::HeaderMap::from_iter([status])))
            };
            begun(Body::stream(late(framed(b"first")).with_trailers(trailers)))
        }
        "/shop.v1.Orders/Head" => begun(unfinished(b"")),
        "/shop.v1.Orders/HalfMessage" => begun(unfinished(&framed(b"message")[..8])),
        "/shop.v1.Orders/NoEnd" => begun(unfinished(&framed(b"message"))),
        _ => whole(b"at once"),
    }
}

async fn pair(net: &Net, app: &App, target: &str) -> (Node, Node) {
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = callee.start().await;
    let rules = policies(&format!("{TIMEOUTS}{RETRY}"), target);
    (net.sidecar("caller").resource(&rules).start().await, callee)
}

#[tokio::test]
async fn streams_outlive_policy_timeout() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app, "{timeout: brief, retry: few}").await;
    let port = caller.ports.grpc;
    let stream = [("dapr-app-id", "callee"), ("dapr-stream", "true")];
    let (sender, body) = fed();
    let counted = async {
        let path = "/shop.v1.Orders/Count";
        Outcome::read(grpc::start(port, path, &stream, body).await).await
    };
    let sent = async {
        for _ in 0..2 {
            sender.send(Ok(framed(b"item"))).await.unwrap();
            tokio::time::sleep(LATE / 2).await;
        }
        drop(sender);
    };
    let (outcome, ()) = tokio::join!(counted, sent);
    assert_eq!(outcome.messages, ["2"], "{:?}", outcome.status);
    for method in ["Late", "LateMessage"] {
        let path = format!("/shop.v1.Orders/{method}");
        let outcome = grpc::call(port, &path, &stream, &[b"x"]).await;
        assert_eq!(
            (outcome.status.code(), outcome.messages),
            (Code::Ok, vec![Bytes::from_static(b"first")]),
            "{method}: {:?}",
            outcome.status
        );
    }
    assert_eq!(app.calls(), 3, "nothing is repeated");
}

#[tokio::test]
async fn timeout_covers_unary_response() {
    let net = Net::plain();
    let app = App::start(orders).await;
    let (caller, _callee) = pair(&net, &app, "{timeout: brief, retry: few}").await;
    let port = caller.ports.grpc;
    let target = [("dapr-app-id", "callee")];
    for (method, attempts, messages) in [("Head", 4, 0), ("HalfMessage", 4, 0), ("NoEnd", 1, 1)] {
        let (started, calls) = (Instant::now(), app.calls());
        let path = format!("/shop.v1.Orders/{method}");
        let outcome = grpc::call(port, &path, &target, &[b"x"]).await;
        assert_eq!(outcome.status.code(), Code::DeadlineExceeded, "{method}");
        assert_eq!(outcome.status.message(), "context deadline exceeded", "{method}");
        assert_eq!(outcome.messages.len(), messages, "{method}");
        assert!(started.elapsed() >= BRIEF * attempts, "{method}");
        // On a slow machine an attempt may time out before it reaches the app.
        let made = app.calls() - calls;
        assert!(made >= 1 && made <= attempts as usize, "{method}: {made} calls");
    }
    let outcome = grpc::call(port, "/shop.v1.Orders/Quick", &target, &[b"x"]).await;
    assert_eq!(outcome.messages, ["at once"], "{:?}", outcome.status);
}

async fn slow(request: Request<Incoming>) -> Response<Body> {
    let mut response = match request.uri().path() {
        "/stuck" | "/chunked" => Response::new(unfinished(b"")),
        "/half" => Response::new(unfinished(b"half")),
        "/events" => {
            let mut response = Response::new(late("data: 1\n\n".into()));
            let kind = "text/event-stream".parse().unwrap();
            response.headers_mut().insert("content-type", kind);
            response
        }
        _ => app::text(200, "at once"),
    };
    if matches!(request.uri().path(), "/stuck" | "/half") {
        response.headers_mut().insert("content-length", 8.into());
    }
    response
}

#[tokio::test]
async fn timeout_covers_http_response() {
    let net = Net::plain();
    let app = App::start(slow).await;
    let rules = policies(&format!("{TIMEOUTS}{RETRY}"), "{timeout: brief, retry: few}");
    let endpoint = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: callee\nspec:\n  \
         baseUrl: http://127.0.0.1:{}\n",
        app.port
    );
    let callee = net.sidecar("callee").app(app.port).resource(&rules).start().await;
    let remote = net.sidecar("remote").resource(&rules).start().await;
    let other = net.sidecar("other").resource(&rules).resource(&endpoint);
    let other = other.start().await;
    for (node, way) in [(&remote, "remote"), (&callee, "own"), (&other, "endpoint")] {
        let ask = |method: &str| node.ask(get(&format!("/v1.0/invoke/callee/method/{method}")));
        for method in ["stuck", "chunked"] {
            let (started, calls) = (Instant::now(), app.calls());
            let message = ask(method).await.error(500, "ERR_DIRECT_INVOKE");
            assert!(message.ends_with("context deadline exceeded"), "{way}: {message}");
            assert!(started.elapsed() >= BRIEF * 4, "{way} {method}");
            assert!((1..=4).contains(&(app.calls() - calls)), "{way} {method}");
        }
        // A started response is aborted, while an event stream continues.
        let (started, calls) = (Instant::now(), app.calls());
        let response = node.send(get("/v1.0/invoke/callee/method/half")).await;
        assert_eq!(response.status(), 200, "{way}");
        let broken = within(response.into_body().collect()).await;
        assert!(broken.is_err() && started.elapsed() >= BRIEF, "{way}");
        assert_eq!(app.calls() - calls, 1, "{way}");
        assert_eq!(ask("events").await.text(), "data: 1\n\n", "{way}");
        assert_eq!(ask("quick").await.text(), "at once", "{way}");
    }
}
