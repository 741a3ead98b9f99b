//! Peers of older versions, and peers that violate the protocol.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outrigger_transport::body::Body;
use outrigger_wire::common::v1::StreamPayload;
use outrigger_wire::internals::v1::{
    InternalInvokeRequest, InternalInvokeRequestStream, InternalInvokeResponse, InternalInvokeResponseStream,
    ListStringValue, Status as InternalStatus,
};
use prost::Message;
use tonic::{Code, Status};

use crate::common::client::send;
use crate::common::grpc::{self, framed};
use crate::common::{Answer, App, Net, Node, app, fed, get, post, request, within};

const UNARY: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallLocal";
const STREAM: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallLocalStream";

/// A caller that takes `peer` for the sidecar of `callee`.
async fn caller(net: &Net, peer: &App) -> Node {
    let caller = net.sidecar("caller").start().await;
    net.register("callee", peer.port);
    caller
}

fn values(map: &HashMap<String, ListStringValue>, name: &str) -> Vec<String> {
    let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, list)| list.values.clone()).unwrap_or_default()
}

/// A sidecar from before streamed calls.
async fn old(request: Request<Incoming>) -> Response<Body> {
    if request.uri().path() != UNARY {
        return grpc::failure(&Status::unimplemented("unknown method CallLocalStream"));
    }
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let call = InternalInvokeRequest::decode(grpc::messages(body).remove(0)).unwrap();
    let message = call.message.unwrap();
    assert_eq!(message.method, "orders/7");
    assert_eq!(values(&call.metadata, "x-asked"), ["1", "2"]);
    assert_eq!(values(&call.metadata, "dapr-caller-app-id"), ["caller"]);
    let data = message.data.unwrap().value;
    let list = |value: &str| ListStringValue {
        values: vec![value.to_owned()],
    };
    grpc::ok(&InternalInvokeResponse {
        status: Some(InternalStatus {
            code: 202,
            ..InternalStatus::default()
        }),
        headers: HashMap::from([("X-Answer".to_owned(), list("yes"))]),
        trailers: HashMap::new(),
        message: Some(grpc::invoked(std::str::from_utf8(&data).unwrap(), "text/csv")),
    })
}

#[tokio::test]
async fn calls_old_peer_without_streaming() {
    let net = Net::plain();
    let peer = App::start(old).await;
    let caller = caller(&net, &peer).await;
    let target = "/v1.0/invoke/callee/method/orders/7";
    let (sender, streamed) = fed();
    tokio::spawn(async move {
        for piece in ["1,", "2,", "3"] {
            sender.send(Ok(piece.into())).await.unwrap();
        }
    });
    for body in [Body::from("1,2,3"), streamed] {
        let sent = request("POST", target, &["x-asked: 1", "x-asked: 2"], body);
        let answer = caller.ask(sent).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text()),
            (202, "1,2,3"),
            "{}",
            answer.text()
        );
        assert_eq!(answer.header("x-answer"), Some("yes"));
        assert_eq!(answer.header("content-type"), Some("text/csv"));
    }
}

/// Messages of a response stream, and the status.
fn stream(messages: &[InternalInvokeResponseStream]) -> Response<Body> {
    let encoded: Vec<_> = messages.iter().map(Message::encode_to_vec).collect();
    let sent: Vec<_> = encoded.iter().map(Vec::as_slice).collect();
    grpc::response(&[], &sent, &[("grpc-status", "0")])
}

fn head() -> InternalInvokeResponseStream {
    head_of(200)
}

fn head_of(code: i32) -> InternalInvokeResponseStream {
    InternalInvokeResponseStream {
        response: Some(InternalInvokeResponse {
            status: Some(InternalStatus {
                code,
                ..InternalStatus::default()
            }),
            message: Some(grpc::invoked("", "text/plain")),
            ..InternalInvokeResponse::default()
        }),
        payload: None,
    }
}

fn payload(seq: u64, data: &'static str) -> InternalInvokeResponseStream {
    InternalInvokeResponseStream {
        response: None,
        payload: Some(StreamPayload {
            data: data.as_bytes().to_vec().into(),
            seq,
        }),
    }
}

#[tokio::test]
async fn invalid_responses_fail_only_their_call() {
    let net = Net::plain();
    let peer = App::start(|request| async move {
        assert_eq!(request.uri().path(), STREAM);
        let mut body = request.into_body();
        let first = grpc::next(&mut body).await.unwrap();
        let call = InternalInvokeRequestStream::decode(first).unwrap();
        let method = call.request.unwrap().message.unwrap().method;
        match method.as_str() {
            "fine" => stream(&[head(), payload(0, "al"), payload(1, "l")]),
            "empty" => stream(&[head()]),
            "nothing" => stream(&[]),
            "headless" => stream(&[payload(0, "data")]),
            "garbage" => grpc::response(&[], &[b"\xff\xff\xff\xff"], &[("grpc-status", "0")]),
            "huge" => Response::new(Body::from(Bytes::from_static(b"\0\xff\xff\xff\xffabc"))),
            "compressed" => Response::new(Body::from(Bytes::from_static(b"\x01\0\0\0\x01a"))),
            "html" => app::text(502, "<h1>Bad Gateway</h1>"),
            "gap" => stream(&[head(), payload(0, "a"), payload(2, "c")]),
            "twice" => stream(&[head(), head()]),
            _ => grpc::failure(&Status::unknown("what?")),
        }
    })
    .await;
    let caller = caller(&net, &peer).await;
    let call = async |method: &str| {
        caller
            .send(get(&format!("/v1.0/invoke/callee/method/{method}")))
            .await
    };
    for method in ["nothing", "headless", "garbage", "huge", "compressed", "other"] {
        let answer = Answer::read(call(method).await).await;
        answer.error(500, "ERR_DIRECT_INVOKE");
        let fine = Answer::read(call("fine").await).await;
        assert_eq!(
            (fine.status.as_u16(), fine.text()),
            (200, "all"),
            "after {method}"
        );
    }
    let empty = Answer::read(call("empty").await).await;
    assert_eq!((empty.status.as_u16(), empty.text()), (200, ""));
    // An error after the head cuts the body, or fails the call if it is detected in time.
    for method in ["gap", "twice"] {
        let sent = get(&format!("/v1.0/invoke/callee/method/{method}"));
        let Ok(response) = send(caller.ports.http, sent).await else {
            continue;
        };
        let status = response.status();
        let whole = within(response.into_body().collect()).await.is_ok();
        assert!(status == 500 || !whole, "{method}: {status}, whole: {whole}");
    }
    let fine = Answer::read(call("fine").await).await;
    assert_eq!(fine.text(), "all");
}

#[tokio::test]
async fn refuses_interim_status_as_response() {
    let net = Net::plain();
    let peer = App::start(|request| async move {
        let streams = request.uri().path() == STREAM;
        let mut body = request.into_body();
        let first = grpc::next(&mut body).await.unwrap();
        let call = match streams {
            true => InternalInvokeRequestStream::decode(first)
                .unwrap()
                .request
                .unwrap(),
            false => InternalInvokeRequest::decode(first).unwrap(),
        };
        let method = call.message.unwrap().method;
        let (form, code) = method.split_once('/').unwrap();
        let code: i32 = code.parse().unwrap();
        match (form, streams) {
            ("new", _) => stream(&[head_of(code), payload(0, "secret")]),
            (_, true) => grpc::failure(&Status::unimplemented("unknown method CallLocalStream")),
            (_, false) => grpc::ok(&InternalInvokeResponse {
                status: Some(InternalStatus {
                    code,
                    ..InternalStatus::default()
                }),
                message: Some(grpc::invoked("secret", "text/plain")),
                ..InternalInvokeResponse::default()
            }),
        }
    })
    .await;
    let caller = caller(&net, &peer).await;
    for form in ["new", "old"] {
        for code in [100, 102, 103, 150, 199] {
            let answer = caller
                .ask(get(&format!("/v1.0/invoke/callee/method/{form}/{code}")))
                .await;
            let message = answer.error(500, "ERR_DIRECT_INVOKE");
            assert!(
                message.contains(&format!("status {code} is an interim one")),
                "{message}"
            );
            let outcome = grpc::invoke(caller.ports.grpc, "callee", &format!("{form}/{code}"), &[], "").await;
            assert_eq!(outcome.status.code(), Code::Internal, "{:?}", outcome.status);
            assert!(
                !outcome.status.message().contains("secret"),
                "{:?}",
                outcome.status
            );
        }
        let switched = caller
            .ask(get(&format!("/v1.0/invoke/callee/method/{form}/101")))
            .await;
        assert_eq!(switched.status, 502, "{}", switched.text());
        let fine = caller
            .ask(get(&format!("/v1.0/invoke/callee/method/{form}/200")))
            .await;
        assert_eq!((fine.status.as_u16(), fine.text()), (200, "secret"));
    }
}

#[tokio::test]
async fn retries_disconnecting_peer_three_times() {
    let net = Net::plain();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
    let seen = std::sync::Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            drop(stream);
        }
    });
    let caller = net.sidecar("caller").start().await;
    net.register("callee", port);
    let started = Instant::now();
    let answer = caller.ask(post("/v1.0/invoke/callee/method/m", "x")).await;
    let message = answer.error(500, "ERR_DIRECT_INVOKE");
    assert!(
        message.contains("failed to invoke target callee after 3 retries. Error: "),
        "{message}"
    );
    assert!(started.elapsed().as_secs() >= 3, "a second between attempts");
    assert!(count.load(std::sync::atomic::Ordering::SeqCst) >= 4);
    let outcome = grpc::invoke(caller.ports.grpc, "callee", "m", &[], "").await;
    assert_eq!(outcome.status.code(), Code::Internal);
}

#[tokio::test]
async fn invalid_callers_fail_only_their_call() {
    let net = Net::plain();
    let app = App::echo().await;
    let (caller, callee) = net.pair(app.port).await;
    let port = callee.ports.internal;
    let chunk = InternalInvokeRequestStream {
        request: None,
        payload: Some(StreamPayload {
            data: b"data".to_vec().into(),
            seq: 0,
        }),
    };
    let text = "parsing InternalInvokeRequest error: request does not contain the required fields in the leading chunk";
    for sent in [&[][..], &[chunk.encode_to_vec().as_slice()], &[b"".as_slice()]] {
        let outcome = grpc::call(port, STREAM, &[], sent).await;
        assert_eq!(
            outcome.status.code(),
            Code::InvalidArgument,
            "{:?}",
            outcome.status
        );
        assert_eq!(outcome.status.message(), text);
    }
    for garbage in [
        &b"\xff\xff\xff\xff"[..],
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\x12\x7f",
    ] {
        for method in [STREAM, UNARY] {
            let outcome = grpc::call(port, method, &[], &[garbage]).await;
            assert_ne!(outcome.status.code(), Code::Ok, "{method} {garbage:?}");
        }
    }
    let response = grpc::start(
        port,
        STREAM,
        &[],
        Bytes::from_static(b"\0\xff\xff\xff\xff").into(),
    )
    .await;
    assert_ne!(grpc::Outcome::read(response).await.status.code(), Code::Ok);
    let response = grpc::start(port, STREAM, &[], framed(b"\x0a").slice(..3).into()).await;
    assert_ne!(grpc::Outcome::read(response).await.status.code(), Code::Ok);
    assert_eq!(app.calls(), 0);
    assert_eq!(caller.ask(get("/v1.0/invoke/callee/method/m")).await.status, 200);
}
