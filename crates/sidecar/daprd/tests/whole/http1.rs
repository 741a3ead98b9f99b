//! HTTP/1.1 of clients and apps.

use http::{Method, Response};
use outrigger_transport::body::Body;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::client::raw;
use crate::common::{App, Net, Node, app, post, request, within};

fn endpoint(name: &str, port: u16) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1\nkind: HTTPEndpoint\nmetadata:\n  name: {name}\nspec:\n  \
         baseUrl: http://127.0.0.1:{port}\n"
    )
}

/// Sends a request verbatim.
async fn written(node: &Node, request: &str) -> String {
    let request = format!("{request}\r\nhost: a\r\nconnection: close\r\n\r\n");
    raw(node.ports.http, request.as_bytes()).await
}

#[tokio::test]
async fn passes_unescaped_targets_to_app() {
    let net = Net::plain();
    let echo = App::echo().await;
    let (caller, callee) = net.pair(echo.port).await;
    let outside = App::echo().await;
    let other = net
        .sidecar("other")
        .resource(&endpoint("outside", outside.port))
        .start()
        .await;
    for (node, id, app) in [
        (&caller, "callee", &echo),
        (&callee, "callee", &echo),
        (&other, "outside", &outside),
    ] {
        for (sent, seen) in [
            (r#"a?filter={"a":1}&b=`|^[c]"#, "/a?filter={%22a%22:1}&b=`|^[c]"),
            ("<a>`b`?c=<d>&e=%3C", "/%3Ca%3E%60b%60?c=%3Cd%3E&e=%3C"),
            (r#"{a}|"b"^?x"#, "/%7Ba%7D%7C%22b%22%5E?x"),
            ("a?é", "/a?é"),
        ] {
            let answer = written(node, &format!("GET /v1.0/invoke/{id}/method/{sent} HTTP/1.1")).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{id} {sent}: {answer}");
            // The client of endpoints escapes non-ASCII characters.
            let seen = if id == "outside" {
                seen.replace('é', "%C3%A9")
            } else {
                seen.to_owned()
            };
            assert_eq!(app.last().target, seen, "{id} {sent}");
        }
    }
}

#[tokio::test]
async fn forwards_empty_chunked_body_as_none() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let other = net.sidecar("other").resource(&endpoint("outside", app.port));
    let other = other.start().await;
    for (node, id) in [(&caller, "callee"), (&callee, "callee"), (&other, "outside")] {
        for method in ["GET", "HEAD", "DELETE", "OPTIONS"] {
            let request = format!(
                "{method} /v1.0/invoke/{id}/method/m HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
                 transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            );
            let answer = raw(node.ports.http, request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{id} {method}: {answer}");
            let seen = app.last();
            assert_eq!(seen.header("transfer-encoding"), None, "{id} {method}");
            assert_eq!(seen.header("content-length"), None, "{id} {method}");
        }
    }
}

#[tokio::test]
async fn accepts_many_response_headers() {
    let net = Net::plain();
    let many = async |_| {
        let mut response = app::text(200, "");
        for number in 0..300 {
            let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
            response.headers_mut().insert(name, number.into());
        }
        response
    };
    let app = App::start(many).await;
    let (caller, callee) = net.pair(app.port).await;
    let other = net
        .sidecar("other")
        .resource(&endpoint("outside", app.port))
        .start()
        .await;
    for (node, id) in [(&caller, "callee"), (&callee, "callee"), (&other, "outside")] {
        let answer = written(node, &format!("GET /v1.0/invoke/{id}/method/m HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{id}: {answer}");
        assert!(
            answer.contains("\r\nx-0: 0\r\n") && answer.contains("\r\nx-299: 299\r\n"),
            "{id}: {answer}"
        );
    }
}

#[tokio::test]
async fn keeps_content_length() {
    let net = Net::plain();
    let echo = App::echo().await;
    let pipelines = "  httpPipeline:\n    handlers:\n    - {name: alias, type: middleware.http.routeralias}\n    \
                     - {name: capitals, type: middleware.http.uppercase}\n  \
                     appHttpPipeline:\n    handlers:\n    - {name: alias, type: middleware.http.routeralias}\n    \
                     - {name: capitals, type: middleware.http.uppercase}\n";
    let component = |name: &str, kind: &str, metadata: &str| {
        format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {name}\nspec:\n  \
             type: middleware.http.{kind}\n  version: v1\n  metadata:\n  - {metadata}\n"
        )
    };
    let through = net
        .sidecar("through")
        .app(echo.port)
        .spec(pipelines)
        .resource(&component("alias", "routeralias", "{name: /x, value: /y}"))
        .resource(&component(
            "capitals",
            "uppercase",
            "{name: direction, value: both}",
        ))
        .resource(&endpoint("outside", echo.port))
        .start()
        .await;
    let plain = net
        .sidecar("plain")
        .resource(&endpoint("outside", echo.port))
        .start()
        .await;
    let url = format!("http://127.0.0.1:{}", echo.port);
    for (node, id) in [
        (&through, "through"),
        (&through, "outside"),
        (&plain, "through"),
        (&plain, "outside"),
        (&plain, &*url),
    ] {
        for (method, length) in [
            (Method::GET, 0),
            (Method::POST, 0),
            (Method::POST, 5),
            (Method::PUT, 70_000),
        ] {
            let target = format!("/v1.0/invoke/{id}/method/m");
            let sent = request(method.as_str(), &target, &[], "x".repeat(length));
            let answer = node.ask(sent).await;
            assert_eq!(answer.status, 200, "{id} {method} {length}: {}", answer.text());
            let seen = echo.last();
            assert_eq!(seen.header("transfer-encoding"), None, "{id} {method} {length}");
            let expected = length.to_string();
            let expected = (method != Method::GET).then_some(&*expected);
            assert_eq!(seen.header("content-length"), expected, "{id} {method} {length}");
        }
    }
}

#[tokio::test]
async fn malformed_body_is_client_error() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let other = net
        .sidecar("other")
        .resource(&endpoint("outside", app.port))
        .start()
        .await;
    for (node, path) in [
        (&caller, "/v1.0/invoke/callee/method/m"),
        (&callee, "/v1.0/invoke/callee/method/m"),
        (&other, "/v1.0/invoke/outside/method/m"),
        (&callee, "/v1.0/actors/T/1/method/m"),
    ] {
        for end in ["0\r\n\n", "0\r\nx: y\n\r\n", "2\r\nabc\r\n0\r\n\r\n", "x\r\n"] {
            let mut stream = TcpStream::connect(("127.0.0.1", node.ports.http)).await.unwrap();
            let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(b"1\r\na\r\n").await.unwrap();
            stream.write_all(end.as_bytes()).await.unwrap();
            let mut answer = String::new();
            // Unread data may make the kernel reset the connection.
            let _closed = within(stream.read_to_string(&mut answer)).await;
            // The app may have begun to answer the previous request; then that response is truncated.
            let is_cut = answer.starts_with("HTTP/1.1 200") && !answer.ends_with("0\r\n\r\n");
            assert!(
                answer.starts_with("HTTP/1.1 400") || is_cut,
                "{path} {end:?}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn malformed_response_breaks_after_head() {
    let net = Net::plain();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n";
                stream.write_all(answer.as_bytes()).await
            });
        }
    });
    let (caller, callee) = net.pair(port).await;
    let other = net
        .sidecar("other")
        .resource(&endpoint("outside", port))
        .start()
        .await;
    for (node, id) in [(&caller, "callee"), (&callee, "callee"), (&other, "outside")] {
        let answer = written(node, &format!("GET /v1.0/invoke/{id}/method/m HTTP/1.1")).await;
        let is_broken_off = answer.starts_with("HTTP/1.1 200") && !answer.ends_with("0\r\n\r\n");
        assert!(
            is_broken_off || answer.starts_with("HTTP/1.1 500"),
            "{id}: {answer}"
        );
    }
}

#[tokio::test]
async fn accepts_half_closed_client() {
    const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\n";
    let net = Net::plain();
    let (go, gate) = tokio::sync::watch::channel(false);
    let slow = move |request: http::Request<hyper::body::Incoming>| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/m" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            app::echo(request).await
        }
    };
    let echo = App::start(slow).await;
    let (caller, _callee) = net.pair(echo.port).await;
    let mut stream = TcpStream::connect(("127.0.0.1", caller.ports.http))
        .await
        .unwrap();
    let request = "POST /v1.0/invoke/callee/method/m HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    // This detects whether the client is still connected.
    let mut interim = [0; INTERIM.len()];
    within(stream.read_exact(&mut interim)).await.unwrap();
    assert_eq!(interim, INTERIM.as_bytes());
    go.send(true).unwrap();
    let mut answer = String::new();
    within(stream.read_to_string(&mut answer)).await.unwrap();
    let answer = answer.replace(INTERIM, "");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"),
        "{answer}"
    );
}

/// Answers 101 to every request, then switches the protocol.
async fn switching() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut space = [0; 4096];
                while stream.read(&mut space).await.is_ok_and(|read| read > 0) {
                    let answer =
                        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nsecret";
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn refuses_protocol_switch_by_app() {
    let net = Net::plain();
    let (caller, callee) = net.pair(switching().await).await;
    for _ in 0..3 {
        for node in [&caller, &callee] {
            let answer = node.ask(post("/v1.0/invoke/callee/method/m", "x")).await;
            assert_eq!(answer.status, 502, "{}", answer.text());
            assert!(!answer.text().contains("secret"));
        }
    }

    // A policy that names the status expects it.
    let retry = "policy: constant, duration: 1ms, maxRetries: 1, matching: {httpStatusCodes: \"101\"}";
    let policy = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    \
         retries:\n      once: {{{retry}}}\n  targets:\n    apps:\n      callee: {{retry: once}}\n"
    );
    let expecting = net.sidecar("expecting").resource(&policy).start().await;
    let answer = expecting.ask(post("/v1.0/invoke/callee/method/m", "x")).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (101, ""));
}

/// The kernel timer of the sidecar's end of a connection: 2 means keep-alive.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn detects_vanished_peers() {
    let net = Net::plain();
    let app = App::start(async |_| Response::new(Body::Empty)).await;
    let node = net.sidecar("node").app(app.port).start().await;
    for port in [node.ports.http, node.ports.grpc, node.ports.internal] {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let theirs = format!(":{:04X}", stream.local_addr().unwrap().port());
        let ours = format!(":{port:04X}");
        let watched = || {
            let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
                .map(|path| std::fs::read_to_string(path).unwrap_or_default());
            tables.concat().lines().any(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                fields.len() > 5
                    && fields[1].ends_with(&ours)
                    && fields[2].ends_with(&theirs)
                    && fields[5].starts_with("02:")
            })
        };
        crate::common::eventually(async || watched()).await;
    }
}
