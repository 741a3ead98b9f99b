//! Bodies that are streamed while the call is open, without waiting for their end.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use tokio::sync::mpsc;

use crate::common::client::{Answer, http1_client, with_host};
use crate::common::{App, Net, Node, TIMEOUT, app, eventually, fed, get, post, request, within};

/// The next piece of a response body.
async fn piece(body: &mut Incoming) -> Option<Bytes> {
    let frame = within(body.frame()).await?;
    Some(frame.expect("the body continues").into_data().unwrap())
}

async fn chain(net: &Net, app: &App) -> (Node, Node) {
    net.pair(app.port).await
}

#[tokio::test]
async fn streams_chunks_both_ways() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, _callee) = chain(&net, &app).await;
    let (sender, body) = fed();
    sender.send(Ok("first".into())).await.unwrap();
    let response = caller.send(post("/v1.0/invoke/callee/method/echo", body)).await;
    assert_eq!(response.status(), 200);
    let mut answer = response.into_body();
    assert_eq!(piece(&mut answer).await.unwrap(), "first");
    for round in 0..5 {
        let chunk = format!("chunk {round}");
        sender.send(Ok(chunk.clone().into())).await.unwrap();
        assert_eq!(piece(&mut answer).await.unwrap(), chunk);
    }
    drop(sender);
    assert!(piece(&mut answer).await.is_none());
}

#[tokio::test]
async fn streams_events_one_by_one() {
    let net = Net::plain();
    let (sender, body) = fed();
    let body = std::sync::Mutex::new(Some(body));
    let app = App::start(move |_| {
        let body = body.lock().unwrap().take();
        async move {
            let mut response = http::Response::new(body.unwrap_or_default());
            let headers = response.headers_mut();
            headers.insert("content-type", "text/event-stream".parse().unwrap());
            headers.insert("cache-control", "no-cache".parse().unwrap());
            response
        }
    })
    .await;
    // By default the first request is the sidecar's own for the app's configuration.
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--disable-init-endpoints=config");
    let _callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    let asked = request(
        "GET",
        "/v1.0/invoke/callee/method/events",
        &["accept: text/event-stream"],
        Body::Empty,
    );
    let response = caller.send(asked).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-cache");
    assert!(!response.headers().contains_key("content-length"));
    let mut answer = response.into_body();
    for number in 0..5 {
        let event = format!("data: {number}\n\n");
        sender.send(Ok(event.clone().into())).await.unwrap();
        assert_eq!(piece(&mut answer).await.unwrap(), event);
    }
    drop(sender);
    assert!(piece(&mut answer).await.is_none());
}

/// Byte `index` of the large body.
fn byte(index: usize) -> u8 {
    (index % 251) as u8
}

fn block(start: usize, length: usize) -> Bytes {
    (start..start + length).map(byte).collect()
}

#[tokio::test]
async fn delivers_large_body() {
    const BLOCK: usize = 64 * 1024;
    const TOTAL: usize = 64 * 1024 * 1024;
    let net = Net::plain();
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).flag("--max-body-size=0");
    let _callee = callee.start().await;
    let caller = net.sidecar("caller").flag("--max-body-size=0").start().await;
    let (sender, body) = fed();
    tokio::spawn(async move {
        for start in (0..TOTAL).step_by(BLOCK) {
            sender.send(Ok(block(start, BLOCK))).await.unwrap();
        }
    });
    let response = caller.send(post("/v1.0/invoke/callee/method/echo", body)).await;
    let mut answer = response.into_body();
    let mut received = 0;
    while let Some(data) = piece(&mut answer).await {
        let right = data.iter().enumerate().all(|(i, b)| *b == byte(received + i));
        assert!(right, "wrong bytes after {received}");
        received += data.len();
    }
    assert_eq!(received, TOTAL);
}

/// Sends until backpressure stops it; returns the number of bytes accepted.
async fn flood(sender: &mpsc::Sender<Result<Bytes, outrigger_transport::body::BoxError>>) -> usize {
    let block = block(0, 64 * 1024);
    let mut taken = 0;
    let quiet = std::time::Duration::from_secs(1);
    while let Ok(sent) = tokio::time::timeout(quiet, sender.send(Ok(block.clone()))).await {
        sent.expect("the call is open");
        taken += block.len();
        assert!(taken < 1 << 30, "no back pressure");
    }
    taken
}

#[tokio::test]
async fn slow_app_applies_backpressure() {
    let net = Net::plain();
    let (reading, gate) = tokio::sync::watch::channel(false);
    let app = App::start(move |request| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            let read = request.into_body().collect().await.unwrap().to_bytes().len();
            app::text(200, &read.to_string())
        }
    })
    .await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--disable-init-endpoints=config");
    let _callee = callee.flag("--max-body-size=0").start().await;
    let caller = net.sidecar("caller").flag("--max-body-size=0").start().await;
    let (sender, body) = fed();
    let port = caller.ports.http;
    let call = tokio::spawn(async move {
        let mut client = http1_client(port).await;
        let sent = client.send_request(with_host(post("/v1.0/invoke/callee/method/slow", body)));
        Answer::read(sent.await.unwrap()).await
    });
    let taken = flood(&sender).await;
    // Socket buffers, flow-control windows and one replay buffer; what matters is that there is a limit.
    assert!(taken < 48 * 1024 * 1024, "{taken} bytes are held somewhere");
    reading.send(true).unwrap();
    drop(sender);
    let answer = within(call).await.unwrap();
    assert_eq!(answer.text().parse::<usize>().unwrap(), taken);
}

/// Sends a value when dropped.
struct DropNotice(mpsc::UnboundedSender<()>);

impl Drop for DropNotice {
    fn drop(&mut self) {
        // The receiver is gone when the test is over.
        let _over = self.0.send(());
    }
}

#[tokio::test]
async fn disconnect_cancels_app_request() {
    let net = Net::plain();
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let gone = gone.clone();
        async move {
            if request.uri().path() == "/stuck" {
                let _told = DropNotice(gone);
                std::future::pending::<()>().await;
            }
            app::text(200, "")
        }
    })
    .await;
    let (caller, _callee) = chain(&net, &app).await;
    let mut client = http1_client(caller.ports.http).await;
    let call = tokio::spawn(async move {
        let sent = client.send_request(with_host(get("/v1.0/invoke/callee/method/stuck")));
        sent.await.is_ok()
    });
    eventually(async || app.calls() == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    within(is_gone.recv())
        .await
        .expect("the app's request was dropped");
}

#[tokio::test]
async fn abandoned_stream_ends_at_app() {
    let net = Net::plain();
    let (gone, mut is_gone) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let gone = gone.clone();
        async move {
            if request.uri().path() != "/endless" {
                return app::text(200, "");
            }
            let (sender, body) = fed();
            tokio::spawn(async move {
                let _told = DropNotice(gone);
                while sender.send(Ok("tick".into())).await.is_ok() {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            });
            http::Response::new(body)
        }
    })
    .await;
    let (caller, _callee) = chain(&net, &app).await;
    let response = caller.send(get("/v1.0/invoke/callee/method/endless")).await;
    let mut answer = response.into_body();
    piece(&mut answer).await.unwrap();
    drop(answer);
    within(is_gone.recv())
        .await
        .expect("the app's stream was dropped");
}

#[tokio::test]
async fn dying_app_breaks_response() {
    let net = Net::plain();
    let (die, gate) = tokio::sync::watch::channel(false);
    let app = App::start(move |_| {
        let mut gate = gate.clone();
        async move {
            let (sender, body) = fed();
            tokio::spawn(async move {
                // The sidecar's own request to the app ends with the test.
                let _sent = sender.send(Ok("the first half".into())).await;
                gate.wait_for(|dead| *dead).await.unwrap();
                let _sent = sender.send(Err("the app crashed".into())).await;
            });
            http::Response::new(body)
        }
    })
    .await;
    let callee = net
        .sidecar("callee")
        .app(app.port)
        .flag("--disable-init-endpoints=config");
    let _callee = callee.start().await;
    let caller = net.sidecar("caller").start().await;
    let response = caller.send(get("/v1.0/invoke/callee/method/half")).await;
    assert_eq!(response.status(), 200);
    let mut answer = response.into_body();
    assert_eq!(piece(&mut answer).await.unwrap(), "the first half");
    die.send(true).unwrap();
    let rest = tokio::time::timeout(TIMEOUT, answer.collect()).await;
    assert!(
        rest.expect("it hangs").is_err(),
        "half a body must not look whole"
    );
}

#[tokio::test]
async fn aborted_upload_fails_at_app() {
    let net = Net::plain();
    let (results_in, mut results) = mpsc::unbounded_channel();
    let app = App::start(move |request| {
        let results_in = results_in.clone();
        async move {
            let upload = request.uri().path() == "/upload";
            let whole = request.into_body().collect().await.is_ok();
            if upload {
                results_in.send(whole).unwrap();
            }
            app::text(200, "")
        }
    })
    .await;
    let (caller, _callee) = chain(&net, &app).await;
    let (sender, body) = fed();
    let port = caller.ports.http;
    let call = tokio::spawn(async move {
        let mut client = http1_client(port).await;
        let sent = client.send_request(with_host(post("/v1.0/invoke/callee/method/upload", body)));
        sent.await.is_ok()
    });
    sender.send(Ok("half".into())).await.unwrap();
    eventually(async || app.calls() == 1).await;
    sender.send(Err("the client crashed".into())).await.unwrap();
    assert!(
        !within(results.recv()).await.unwrap(),
        "the app took half for the whole"
    );
    // The caller's connection is broken, so its response does not matter.
    call.abort();
}
