//! Actors of apps that open a stream to their sidecar.

use hyper::body::Incoming;
use outrigger_transport::body::BoxError;
use outrigger_wire::runtime::v1::subscribe_actor_events_request_alpha1::RequestType as Said;
use outrigger_wire::runtime::v1::subscribe_actor_events_response_alpha1::ResponseType as Asked;
use outrigger_wire::runtime::v1::{
    SubscribeActorEventsRequestAlpha1, SubscribeActorEventsRequestDeactivateResponseAlpha1,
    SubscribeActorEventsRequestInitialAlpha1, SubscribeActorEventsRequestInvokeResponseAlpha1,
    SubscribeActorEventsResponseAlpha1,
};

use super::*;
use crate::common::fed;

const STREAM: &str = "/dapr.proto.runtime.v1.Dapr/SubscribeActorEventsAlpha1";

fn said(said: Said) -> bytes::Bytes {
    let message = SubscribeActorEventsRequestAlpha1 {
        request_type: Some(said),
    };
    grpc::framed(&message.encode_to_vec())
}

fn initial() -> bytes::Bytes {
    said(Said::InitialRequest(SubscribeActorEventsRequestInitialAlpha1 {
        entities: vec!["T".to_owned()],
        ..SubscribeActorEventsRequestInitialAlpha1::default()
    }))
}

async fn asked(stream: &mut Incoming) -> Asked {
    let message = grpc::next(stream).await.unwrap();
    let message = SubscribeActorEventsResponseAlpha1::decode(message).unwrap();
    message.response_type.unwrap()
}

/// A stream of an app that hosts `T`, with the sender of its messages.
async fn subscribed(node: &Node) -> (mpsc::Sender<Result<bytes::Bytes, BoxError>>, Incoming) {
    let (tell, body) = fed();
    tell.send(Ok(initial())).await.unwrap();
    let mut stream = grpc::start(node.ports.grpc, STREAM, &[], body).await.into_body();
    assert!(matches!(asked(&mut stream).await, Asked::InitialResponse(_)));
    (tell, stream)
}

#[tokio::test]
async fn app_without_port_hosts_actors() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let plan = net.sidecar("me").flag(&placement.flag()).resource(ACTOR_STORE);
    let node = plan.start().await;
    let (tell, mut stream) = subscribed(&node).await;
    eventually(async || placement.has("T", 1)).await;
    let serve = async {
        let Asked::InvokeRequest(call) = asked(&mut stream).await else {
            panic!("not a call");
        };
        assert_eq!((call.method.as_str(), &call.data[..]), ("m", &b"asked"[..]));
        let answer = SubscribeActorEventsRequestInvokeResponseAlpha1 {
            id: call.id,
            data: "answered".into(),
            metadata: [("content-type".to_owned(), "text/plain".to_owned())].into(),
            error: false,
        };
        tell.send(Ok(said(Said::InvokeResponse(answer)))).await.unwrap();
    };
    let called = node.ask(post("/v1.0/actors/T/1/method/m", "asked"));
    let (answer, ()) = futures::join!(called, serve);
    assert_eq!((answer.status.as_u16(), answer.text()), (200, "answered"));
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let active = async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        metadata["actorRuntime"]["activeActors"].clone()
    };
    assert_eq!(active().await, json!([{"type": "T", "count": 1}]));
    drop((tell, stream));
    eventually(async || placement.has("T", 0) && active().await.is_null()).await;
}

/// A stopping sidecar deactivates its actors over the stream, which ends afterwards.
#[tokio::test]
async fn stop_deactivates_actors_over_stream() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let plan = net.sidecar("me").flag(&placement.flag()).resource(ACTOR_STORE);
    let node = plan.start().await;
    let (tell, mut stream) = subscribed(&node).await;
    eventually(async || placement.has("T", 1)).await;
    let serve = async {
        let Asked::InvokeRequest(call) = asked(&mut stream).await else {
            panic!("not a call");
        };
        let answer = SubscribeActorEventsRequestInvokeResponseAlpha1 {
            id: call.id,
            ..SubscribeActorEventsRequestInvokeResponseAlpha1::default()
        };
        tell.send(Ok(said(Said::InvokeResponse(answer)))).await.unwrap();
    };
    let called = node.ask(post("/v1.0/actors/T/1/method/m", ""));
    let (answer, ()) = futures::join!(called, serve);
    assert_eq!(answer.status, 200);
    let serve = async {
        let Asked::DeactivateRequest(call) = asked(&mut stream).await else {
            panic!("not a deactivation");
        };
        assert_eq!((call.actor_type.as_str(), call.actor_id.as_str()), ("T", "1"));
        let answer = SubscribeActorEventsRequestDeactivateResponseAlpha1 { id: call.id };
        tell.send(Ok(said(Said::DeactivateResponse(answer))))
            .await
            .unwrap();
        assert!(grpc::next(&mut stream).await.is_none());
    };
    let (stopped, ()) = futures::join!(node.stop(), serve);
    stopped.unwrap();
}

#[tokio::test]
async fn rejects_streams_of_other_kinds() {
    let net = Net::plain();
    let app = host(json!({"entities": ["T"]}), async |_| text(200, "")).await;
    let http = net.sidecar("http").app(app.port).start().await;
    let portless = net.sidecar("me").start().await;
    let answer = said(Said::DeactivateResponse(
        SubscribeActorEventsRequestDeactivateResponseAlpha1::default(),
    ));
    for (node, first, code, text) in [
        (
            http,
            initial(),
            Code::FailedPrecondition,
            "actor callback streaming requires a gRPC app channel",
        ),
        (
            portless,
            answer,
            Code::InvalidArgument,
            "first message must be SubscribeActorEventsRequestInitialAlpha1",
        ),
    ] {
        let (tell, body) = fed();
        tell.send(Ok(first)).await.unwrap();
        let response = grpc::start(node.ports.grpc, STREAM, &[], body).await;
        let status = tonic::Status::from_header_map(response.headers()).unwrap();
        assert_eq!((status.code(), status.message()), (code, text));
    }
}
