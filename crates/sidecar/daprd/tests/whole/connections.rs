//! Apps and peers that restart between calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{App, Net, app, eventually, get, grpc, post, request, within};

#[tokio::test]
async fn http_app_may_restart() {
    let net = Net::plain();
    let first = App::echo().await;
    let port = first.port;
    let (caller, _callee) = net.pair(port).await;
    for round in 0..3 {
        let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "before")).await;
        assert_eq!(answer.status, 200, "{round}");
    }
    first.stop().await;
    let answer = caller
        .ask(post("/v1.0/invoke/callee/method/m", "while it is away"))
        .await;
    answer.error(500, "ERR_DIRECT_INVOKE");
    let second = App::listen(port, app::echo).await;
    for target in ["/v1.0/invoke/callee/method/m", "/v1.0/invoke/callee/method/n"] {
        let answer = caller.ask(post(target, "after")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "after"));
    }
    assert_eq!(second.calls(), 2);
}

#[tokio::test]
async fn grpc_app_may_restart() {
    let answer = |_| async { grpc::ok(&grpc::invoked("done", "")) };
    let net = Net::plain();
    let first = App::start(answer).await;
    let port = first.port;
    let callee = net.sidecar("callee").app(port).flag("--app-protocol=grpc");
    let _callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    let call = async || caller.ask(get("/v1.0/invoke/callee/method/m")).await;
    assert_eq!(call().await.status, 200);
    first.stop().await;
    assert_eq!(call().await.status, 503);
    let _second = App::listen(port, answer).await;
    for _ in 0..3 {
        assert_eq!(call().await.status, 200);
    }
}

/// An HTTP/2 app that accepts header lists of 4 KiB; its port and its number of connections.
async fn takes_small_heads() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (port, connections) = (
        listener.local_addr().unwrap().port(),
        Arc::new(AtomicUsize::new(0)),
    );
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let server = h2::server::Builder::new()
                    .max_header_list_size(4096)
                    .handshake::<_, bytes::Bytes>(socket);
                // Not the port probe, which sends nothing.
                let Ok(mut server) = server.await else { return };
                counted.fetch_add(1, Ordering::Relaxed);
                while let Some(Ok((_, mut respond))) = server.accept().await {
                    respond.send_response(http::Response::new(()), true).unwrap();
                }
            });
        }
    });
    (port, connections)
}

#[tokio::test]
async fn refused_head_fails_only_its_call() {
    let (port, connections) = takes_small_heads().await;
    let net = Net::plain();
    let sidecar = net
        .sidecar("app")
        .app(port)
        .flag("--app-protocol=h2c")
        .start()
        .await;
    let target = "/v1.0/invoke/app/method/m";
    assert_eq!(sidecar.ask(get(target)).await.status, 200);
    let mut large = get(target);
    let value = http::HeaderValue::from_str(&"x".repeat(6000)).unwrap();
    large.headers_mut().insert("x-large", value);
    assert_eq!(sidecar.ask(large).await.status, 431);
    assert_eq!(sidecar.ask(get(target)).await.status, 200);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

/// An app that answers one request per connection, then closes it without announcement.
struct Rude {
    port: u16,
    answered: Arc<AtomicUsize>,
}

impl Rude {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answered = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&answered);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_once(stream, Arc::clone(&count)));
            }
        });
        Self { port, answered }
    }
}

async fn serve_once(mut stream: TcpStream, count: Arc<AtomicUsize>) {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => head.extend_from_slice(&buffer[..read]),
            _ => return,
        }
    }
    // Before the response, because the test may check as soon as it arrives.
    if !head.starts_with(b"GET /dapr/config") {
        count.fetch_add(1, Ordering::Relaxed);
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await
        .unwrap();
}

#[tokio::test]
async fn silently_closed_connections_fail_no_call() {
    let net = Net::plain();
    let app = Rude::start().await;
    let (caller, _callee) = net.pair(app.port).await;
    for round in 1..=50 {
        let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, "ok"), "{round}");
        assert_eq!(app.answered.load(Ordering::Relaxed), round);
    }
}

#[tokio::test]
async fn peer_may_restart() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let ports = callee.ports;
    assert_eq!(
        caller.ask(post("/v1.0/invoke/callee/method/m", "x")).await.status,
        200
    );
    // Gracefully, on the same port.
    callee.stop().await.unwrap();
    let callee = net.sidecar("callee").app(app.port).ports(ports).start().await;
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "again")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "again"));
    // Killed, on the same port.
    drop(callee);
    let callee = net.sidecar("callee").app(app.port).ports(ports).start().await;
    let answer = caller
        .ask(post("/v1.0/invoke/callee/method/m", "and again"))
        .await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "and again"));
    // Restarted on other ports, which discovery announces.
    callee.stop().await.unwrap();
    let _callee = net.sidecar("callee").app(app.port).start().await;
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "moved")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "moved"));
    assert_eq!(app.calls(), 4, "no call reached the app twice");
}

#[tokio::test]
async fn proxied_calls_survive_peer_restart() {
    let net = Net::plain();
    let app = App::start(|_| async { grpc::response(&[], &[b"order"], &[("grpc-status", "0")]) }).await;
    let plan = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = plan.clone().start().await;
    let ports = callee.ports;
    let caller = net.sidecar("caller").start().await;
    let metadata = [("dapr-app-id", "callee")];
    let call = async || grpc::call(caller.ports.grpc, "/shop.v1.Orders/Get", &metadata, &[b""]).await;
    assert_eq!(call().await.messages, ["order"]);
    callee.stop().await.unwrap();
    let _callee = plan.ports(ports).start().await;
    let outcome = call().await;
    assert_eq!(outcome.messages, ["order"], "{:?}", outcome.status);
}

#[tokio::test]
async fn retries_silent_peer_like_contract() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    assert_eq!(caller.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
    // Killed: its registration stays for a while, without a listener.
    drop(callee);
    let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    let given_up = message.contains("failed to invoke target callee after 3 retries");
    assert!(given_up || message.contains("no host found"), "{message}");
}

#[tokio::test]
async fn balances_calls_and_survives_leave() {
    let net = Net::plain();
    let named = |name: &'static str| move |_| async move { app::text(200, name) };
    let (one, two) = (App::start(named("one")).await, App::start(named("two")).await);
    let _first = net.sidecar("callee").app(one.port).start().await;
    let second = net.sidecar("callee").app(two.port).start().await;
    let caller = net.sidecar("caller").start().await;
    let call = async || {
        let answer = caller.ask(get("/v1.0/invoke/callee/method/m")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text().to_owned()
    };
    let mut share = HashMap::new();
    for _ in 0..20 {
        *share.entry(call().await).or_insert(0) += 1;
    }
    assert_eq!(share.len(), 2, "{share:?}");
    assert!(share.values().all(|n| *n >= 5), "{share:?}");
    // Killed without drain: retryable calls go to the other one.
    drop(second);
    for _ in 0..10 {
        assert_eq!(call().await, "one");
    }
}

#[tokio::test]
async fn draining_peer_finishes_call() {
    let net = Net::plain();
    let (go, gate) = tokio::sync::watch::channel(false);
    let app = App::start(move |request| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/slow" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            app::text(200, "done")
        }
    })
    .await;
    let (caller, callee) = net.pair(app.port).await;
    let port = caller.ports.http;
    let call = tokio::spawn(async move {
        let response = crate::common::client::send(port, post("/v1.0/invoke/callee/method/slow", "x")).await;
        crate::common::Answer::read(response.unwrap()).await
    });
    eventually(async || app.calls() == 1).await;
    callee.shutdown.begin();
    // The drain has begun once new connections are refused; the open call continues.
    let refused = async || {
        TcpStream::connect(("127.0.0.1", callee.ports.internal))
            .await
            .is_err()
    };
    eventually(refused).await;
    assert!(!callee.is_over());
    go.send(true).unwrap();
    let answer = within(call).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "done"));
    callee.ended().await.unwrap();
    assert_eq!(app.calls(), 1);
}

#[tokio::test]
async fn concurrent_calls_share_connections() {
    let net = Net::secure().await;
    let app = App::start(|request| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        tokio::time::sleep(Duration::from_millis(20)).await;
        app::text(200, std::str::from_utf8(&body).unwrap())
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let port = caller.ports.http;
    let calls: Vec<_> = (0..300)
        .map(|number| {
            tokio::spawn(async move {
                let sent = request("POST", "/v1.0/invoke/callee/method/m", &[], number.to_string());
                let response = crate::common::client::send(port, sent).await.unwrap();
                let answer = crate::common::Answer::read(response).await;
                (answer.status.as_u16(), answer.text() == number.to_string())
            })
        })
        .collect();
    for call in calls {
        assert_eq!(within(call).await.unwrap(), (200, true));
    }
    assert_eq!(app.calls(), 300);
}
