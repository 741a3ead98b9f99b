//! Calls that stall, overlap or have an unusual shape, next to calls that must not be affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use http_body_util::BodyExt;
use outrigger_transport::body::{Body, BoxError};
use tokio::sync::{mpsc, watch};

use crate::common::client::{self, http1_client, raw, with_host};
use crate::common::{Answer, App, Net, app, eventually, fed, get, grpc, post, request, within};

type Feed = mpsc::Sender<Result<Bytes, BoxError>>;

/// Sends until backpressure stops it.
async fn fill(sender: &Feed) {
    let block = Bytes::from(vec![0; 64 * 1024]);
    let quiet = Duration::from_millis(500);
    while let Ok(Ok(())) = tokio::time::timeout(quiet, sender.send(Ok(block.clone()))).await {}
}

#[tokio::test]
async fn stalled_uploads_block_no_calls() {
    let net = Net::plain();
    let (go, gate) = watch::channel(false);
    let app = App::start(move |request| {
        let mut gate = gate.clone();
        async move {
            if request.uri().path() == "/stall" {
                gate.wait_for(|open| *open).await.unwrap();
            }
            app::echo(request).await
        }
    })
    .await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--max-body-size=0")
        .start()
        .await;
    let caller = net.sidecar("caller").flag("--max-body-size=0").start().await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let (sender, body) = fed();
        let port = caller.ports.http;
        let call = tokio::spawn(async move {
            let mut client = http1_client(port).await;
            client
                .send_request(with_host(post("/v1.0/invoke/callee/method/stall", body)))
                .await
        });
        stalled.push((sender, call));
    }
    let filling: Vec<_> = stalled.iter().map(|(sender, _)| fill(sender)).collect();
    futures::future::join_all(filling).await;
    for round in 0..5 {
        let text = format!("small {round}");
        let answer = caller
            .ask(post("/v1.0/invoke/callee/method/m", text.clone()))
            .await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, &*text));
    }
    go.send(true).unwrap();
    for (_, call) in &stalled {
        call.abort();
    }
    drop(callee);
}

#[tokio::test]
async fn unread_downloads_block_no_calls() {
    let net = Net::plain();
    let blocks = Arc::new(AtomicUsize::new(0));
    let sent = Arc::clone(&blocks);
    let app = App::start(move |request| {
        let sent = Arc::clone(&sent);
        async move {
            if request.uri().path() != "/endless" {
                return app::echo(request).await;
            }
            let (sender, body) = fed();
            tokio::spawn(async move {
                let block = Bytes::from(vec![0; 64 * 1024]);
                while sender.send(Ok(block.clone())).await.is_ok() {
                    sent.fetch_add(1, Ordering::SeqCst);
                }
            });
            http::Response::new(body)
        }
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let mut unread = Vec::new();
    for _ in 0..20 {
        let response = caller.send(get("/v1.0/invoke/callee/method/endless")).await;
        assert_eq!(response.status(), 200);
        unread.push(response);
    }
    // All buffers are full.
    eventually(async || {
        let before = blocks.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(200)).await;
        before > 0 && blocks.load(Ordering::SeqCst) == before
    })
    .await;
    for round in 0..5 {
        let text = format!("small {round}");
        let answer = caller
            .ask(post("/v1.0/invoke/callee/method/m", text.clone()))
            .await;
        assert_eq!((answer.status.as_u16(), answer.text()), (200, &*text));
    }
    drop(unread);
}

#[tokio::test]
async fn accepts_response_before_upload_ends() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        drop(request);
        app::text(403, "not you")
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let (sender, body) = fed();
    sender.send(Ok("begun".into())).await.unwrap();
    let response = caller.send(post("/v1.0/invoke/callee/method/m", body)).await;
    assert_eq!(response.status(), 403);
    assert_eq!(Answer::read(response).await.text(), "not you");
    drop(sender);
}

#[tokio::test]
async fn supports_expect_continue() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let sent = b"POST /v1.0/invoke/callee/method/m HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\
                 content-length: 5\r\nconnection: close\r\n\r\nhello";
    let answer = raw(caller.ports.http, sent).await;
    assert!(answer.contains("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("\r\nhello"), "{answer}");
}

#[tokio::test]
async fn handles_unusual_bodies() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        if request.method() == http::Method::HEAD {
            let mut response = app::text(200, "");
            response
                .headers_mut()
                .insert("content-length", HeaderValue::from(1234));
            return response;
        }
        app::echo(request).await
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    for verb in ["GET", "DELETE", "OPTIONS"] {
        let sent = request(verb, "/v1.0/invoke/callee/method/m", &[], "a body");
        assert_eq!(caller.ask(sent).await.text(), "a body", "{verb}");
    }
    let answer = caller
        .ask(request("HEAD", "/v1.0/invoke/callee/method/m", &[], Body::Empty))
        .await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (200, 0));
    let (sender, body) = fed();
    drop(sender);
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", body)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, ""),
        "chunked and empty"
    );
}

#[tokio::test]
async fn accepts_non_ascii_header_values() {
    let net = Net::plain();
    let app = App::start(|request| async move {
        let mut response = app::text(200, "fine");
        let name = request.headers().get("x-name").cloned();
        if let Some(name) = name {
            response.headers_mut().insert("x-name", name);
        }
        response
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    for value in [&b"caf\xc3\xa9"[..], b"caf\xe9", b""] {
        let mut sent = get("/v1.0/invoke/callee/method/m");
        sent.headers_mut()
            .insert("x-name", HeaderValue::from_bytes(value).unwrap());
        let answer = caller.ask(sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (200, "fine"),
            "{value:?}"
        );
    }
    let mut sent = get("/v1.0/invoke/callee/method/m");
    sent.headers_mut()
        .insert("x-name", HeaderValue::from_bytes("café".as_bytes()).unwrap());
    let answer = caller.ask(sent).await;
    assert_eq!(answer.headers["x-name"].as_bytes(), "café".as_bytes());
}

#[tokio::test]
async fn passes_headers_up_to_limit() {
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let caller = net
        .sidecar("caller")
        .flag("--read-buffer-size=32Ki")
        .start()
        .await;
    let names: Vec<_> = (0..500).map(|number| format!("x-n{number}: {number}")).collect();
    let headers: Vec<_> = names.iter().map(String::as_str).collect();
    let answer = caller
        .ask(request(
            "GET",
            "/v1.0/invoke/callee/method/m",
            &headers,
            Body::Empty,
        ))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let seen = app.last();
    assert!((0..500).all(|number| seen.header(&format!("x-n{number}")) == Some(&*number.to_string())));
    drop(callee);
}

#[tokio::test]
async fn cancels_grpc_invocation_at_app() {
    struct Dropped(mpsc::UnboundedSender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _over = self.0.send(());
        }
    }
    let net = Net::plain();
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let gone = gone.clone();
        async move {
            if request.uri().path() == "/stuck" {
                let _dropped = Dropped(gone);
                std::future::pending::<()>().await;
            }
            app::text(200, "")
        }
    })
    .await;
    let (caller, _callee) = net.pair(app.port).await;
    let port = caller.ports.grpc;
    let call = tokio::spawn(async move { grpc::invoke(port, "callee", "stuck", &[], "").await });
    eventually(async || app.calls() == 1).await;
    call.abort();
    within(is_gone.recv())
        .await
        .expect("the app's request was dropped");
}

#[tokio::test]
async fn answers_pipelined_requests_in_order() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let mut bytes = Vec::new();
    for number in 0..5 {
        let close = if number == 4 { "connection: close\r\n" } else { "" };
        let head = format!(
            "POST /v1.0/invoke/callee/method/m HTTP/1.1\r\nhost: a\r\n{close}content-length: 5\r\n\r\nbody{number}"
        );
        bytes.extend_from_slice(head.as_bytes());
    }
    let answer = raw(caller.ports.http, &bytes).await;
    let places: Vec<_> = (0..5)
        .map(|number| answer.find(&format!("body{number}")))
        .collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{answer}"
    );
    let mut client = client::http1_client(caller.ports.http).await;
    let response = client
        .send_request(with_host(get("/v1.0/healthz")))
        .await
        .unwrap();
    assert_eq!(response.status(), 204);
    response.into_body().collect().await.unwrap();
}
