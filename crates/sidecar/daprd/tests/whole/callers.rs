//! The caller's identity is the one in the certificate, whatever the request claims.

use outrigger_wire::common::v1::http_extension::Verb;
use outrigger_wire::internals::v1::{
    Actor, InternalInvokeRequest, InternalInvokeResponse, ListStringValue, Reminder,
};
use outrigger_wire::runtime::v1::{InvokeActorRequest, InvokeActorResponse};
use tonic::Code;

use crate::common::client::peer_client;
use crate::common::worker::ACTOR_STORE;
use crate::common::{App, Net, Node, Placement, app, eventually, get, grpc, post, request};

const CALL_LOCAL: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallLocal";
const CALL_ACTOR: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActor";
const CALL_ACTOR_REMINDER: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActorReminder";
const CALL_ACTOR_STREAM: &str = "/dapr.proto.internals.v1.ServiceInvocation/CallActorStream";
const INVOKE_ACTOR: &str = "/dapr.proto.runtime.v1.Dapr/InvokeActor";

fn local_call(method: &str, metadata: &[(&str, &str)]) -> InternalInvokeRequest {
    let metadata = metadata.iter().map(|&(name, value)| {
        let values = vec![value.to_owned()];
        (name.to_owned(), ListStringValue { values })
    });
    InternalInvokeRequest {
        ver: 1,
        metadata: metadata.collect(),
        message: grpc::invocation("", method, Verb::Post, "").message,
        actor: None,
    }
}

/// Claims of a peer with a genuine certificate.
const CLAIMS: [&[(&str, &str)]; 3] = [
    &[
        ("dapr-caller-app-id", "admin"),
        ("dapr-caller-namespace", "kube-system"),
    ],
    &[
        ("Connection", "dapr-caller-app-id, dapr-caller-namespace"),
        ("dapr-caller-app-id", "admin"),
    ],
    &[],
];

#[tokio::test]
async fn caller_is_identified_by_certificate() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let callee = net.sidecar("callee").app(app.port).start().await;
    let identity = net.identity("a").await;
    let mut peer = peer_client(&identity, "callee", callee.ports.internal).await;
    let mut calls = 0.0;
    for claims in CLAIMS {
        let outcome = grpc::unary_over(&mut peer, CALL_LOCAL, &[], &local_call("m", claims)).await;
        let _answer: InternalInvokeResponse = outcome.message();
        let seen = app.last();
        assert_eq!(seen.header("dapr-caller-app-id"), Some("a"), "{claims:?}");
        assert_eq!(
            seen.header("dapr-caller-namespace"),
            Some("default"),
            "{claims:?}"
        );
        assert_eq!(seen.header("dapr-callee-app-id"), Some("callee"));
        let received = "dapr_runtime_service_invocation_req_recv_total";
        calls += 1.0;
        callee.counts(received, &["src_app_id=\"a\""], calls).await;
        assert_eq!(callee.metric(received, &["src_app_id=\"admin\""]).await, None);
    }
}

/// An app with actors of type `T` and its sidecar `host`, and a sidecar `client` that calls them.
async fn actors(net: &Net) -> (Placement, App, Node, Node) {
    let placement = Placement::secure(&net.identity("dapr-placement").await).await;
    let app = App::start(|request| async move {
        match request.uri().path() {
            "/dapr/config" => app::text(200, r#"{"entities": ["T"]}"#),
            _ => app::text(200, ""),
        }
    })
    .await;
    let plan = |id| net.sidecar(id).flag(&placement.flag()).resource(ACTOR_STORE);
    let host = plan("host").app(app.port).start().await;
    let client = plan("client").start().await;
    eventually(async || placement.has("T", 1)).await;
    (placement, app, host, client)
}

fn identities(app: &App) -> [Option<String>; 4] {
    let seen = app.last();
    assert!(seen.target.starts_with("/actors/T/1/method/m"), "{}", seen.target);
    let names = [
        "dapr-caller-app-id",
        "dapr-caller-namespace",
        "dapr-callee-app-id",
        "destination-app-id",
    ];
    names.map(|name| seen.header(name).map(str::to_owned))
}

fn actor_call(metadata: &[(&str, &str)]) -> InternalInvokeRequest {
    InternalInvokeRequest {
        actor: Some(Actor {
            actor_type: "T".to_owned(),
            actor_id: "1".to_owned(),
        }),
        ..local_call("m", metadata)
    }
}

#[tokio::test]
async fn actor_caller_is_identified_by_certificate() {
    let net = Net::secure().await;
    let (_placement, app, host, client) = actors(&net).await;
    let as_by =
        |id: &str| [Some(id), Some("default"), Some("host"), None].map(|said| said.map(str::to_owned));
    let identity = net.identity("a").await;
    let mut peer = peer_client(&identity, "host", host.ports.internal).await;
    for claims in CLAIMS {
        let outcome = grpc::unary_over(&mut peer, CALL_ACTOR, &[], &actor_call(claims)).await;
        let _answer: InternalInvokeResponse = outcome.message();
        assert_eq!(identities(&app), as_by("a"), "{claims:?}");
    }
    // A forwarded call keeps its caller, if another sidecar of the app forwards it.
    let handed = [("outrigger-handed-over", "0-0")];
    for (id, wanted) in [("b", "b"), ("host", "admin")] {
        let identity = net.identity(id).await;
        let mut peer = peer_client(&identity, "host", host.ports.internal).await;
        let outcome = grpc::unary_over(&mut peer, CALL_ACTOR, &handed, &actor_call(CLAIMS[0])).await;
        let _answer: InternalInvokeResponse = outcome.message();
        assert_eq!(identities(&app)[0].as_deref(), Some(wanted));
    }
    // Callers of the APIs cannot set their identity.
    let forged = [
        ("dapr-caller-app-id", "admin"),
        ("dapr-caller-namespace", "kube-system"),
        ("dapr-callee-app-id", "x"),
        ("destination-app-id", "x"),
    ];
    let fields = forged.map(|(name, value)| format!("{name}: {value}"));
    let fields = fields.each_ref().map(String::as_str);
    let with_map = InvokeActorRequest {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        method: "m".to_owned(),
        metadata: forged
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        ..InvokeActorRequest::default()
    };
    let without = InvokeActorRequest {
        metadata: [].into(),
        ..with_map.clone()
    };
    for (node, wanted) in [(&host, [const { None }; 4]), (&client, as_by("client"))] {
        let answer = node
            .ask(request("POST", "/v1.0/actors/T/1/method/m", &fields, "x"))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(identities(&app), wanted, "HTTP");
        for (metadata, message) in [(&forged[..], &without), (&[], &with_map)] {
            let outcome = grpc::unary(node.ports.grpc, INVOKE_ACTOR, metadata, message).await;
            let _answer: InvokeActorResponse = outcome.message();
            assert_eq!(identities(&app), wanted, "gRPC, {metadata:?}");
        }
    }
}

#[tokio::test]
async fn refuses_actor_calls_across_namespaces() {
    let net = Net::secure().await;
    let (_placement, app, host, _client) = actors(&net).await;
    let identity = net.identity_in(Some("other"), "a").await;
    let mut peer = peer_client(&identity, "host", host.ports.internal).await;
    let before = app.calls();
    let reminder = Reminder {
        actor_type: "T".to_owned(),
        actor_id: "1".to_owned(),
        name: "r".to_owned(),
        ..Reminder::default()
    };
    for (path, outcome) in [
        (
            CALL_ACTOR,
            grpc::unary_over(&mut peer, CALL_ACTOR, &[], &actor_call(&[])).await,
        ),
        (
            CALL_ACTOR_REMINDER,
            grpc::unary_over(&mut peer, CALL_ACTOR_REMINDER, &[], &reminder).await,
        ),
        (
            CALL_ACTOR_STREAM,
            grpc::unary_over(&mut peer, CALL_ACTOR_STREAM, &[], &actor_call(&[])).await,
        ),
    ] {
        assert_eq!(outcome.status.code(), Code::PermissionDenied, "{path}");
        let expected = "actors of namespace default cannot be called from namespace other";
        assert_eq!(outcome.status.message(), expected, "{path}");
    }
    assert_eq!(app.calls(), before);
}

#[tokio::test]
async fn refuses_too_long_actor_id() {
    let net = Net::secure().await;
    let (_placement, app, host, _client) = actors(&net).await;
    let before = app.calls();
    let id = "i".repeat(1025);
    let expected = "invalid request: invalid actorId: 1025 bytes, the maximum is 1024";
    let path = format!("/v1.0/actors/T/{id}/method/m");
    let message = host.ask(post(&path, "")).await.error(400, "ERR_BAD_REQUEST");
    assert_eq!(message, expected);
    let message = InvokeActorRequest {
        actor_type: "T".to_owned(),
        actor_id: id.clone(),
        method: "m".to_owned(),
        ..InvokeActorRequest::default()
    };
    let outcome = grpc::unary(host.ports.grpc, INVOKE_ACTOR, &[], &message).await;
    let mut outcomes = vec![(INVOKE_ACTOR, outcome)];
    let identity = net.identity("a").await;
    let mut peer = peer_client(&identity, "host", host.ports.internal).await;
    let call = InternalInvokeRequest {
        actor: Some(Actor {
            actor_type: "T".to_owned(),
            actor_id: id.clone(),
        }),
        ..local_call("m", &[])
    };
    let outcome = grpc::unary_over(&mut peer, CALL_ACTOR, &[], &call).await;
    outcomes.push((CALL_ACTOR, outcome));
    let reminder = Reminder {
        actor_type: "T".to_owned(),
        actor_id: id,
        name: "r".to_owned(),
        ..Reminder::default()
    };
    let outcome = grpc::unary_over(&mut peer, CALL_ACTOR_REMINDER, &[], &reminder).await;
    outcomes.push((CALL_ACTOR_REMINDER, outcome));
    for (path, outcome) in outcomes {
        assert_eq!(outcome.status.code(), Code::InvalidArgument, "{path}");
        assert!(
            outcome.status.message().contains(expected),
            "{path}: {:?}",
            outcome.status
        );
    }
    assert_eq!(app.calls(), before);
    let runtime = host.ask(get("/v1.0/metadata")).await.json()["actorRuntime"].clone();
    assert_eq!(runtime["activeActors"], serde_json::json!([{"type": "T"}]));
}

#[tokio::test]
async fn proxy_caller_is_identified_by_certificate() {
    let net = Net::secure().await;
    let app = App::start(|_| async { grpc::response(&[], &[b"order"], &[("grpc-status", "0")]) }).await;
    let callee = net.sidecar("callee").app(app.port).flag("--app-protocol=grpc");
    let callee = callee.start().await;
    let identity = net.identity("a").await;
    let mut peer = peer_client(&identity, "callee", callee.ports.internal).await;
    for claims in [CLAIMS[0], CLAIMS[2]] {
        let metadata = [claims, &[("dapr-callee-app-id", "callee")]].concat();
        let outcome = grpc::unary_over(&mut peer, "/shop.v1.Orders/Get", &metadata, &()).await;
        assert_eq!(outcome.status.code(), Code::Ok, "{:?}", outcome.status);
        let seen = app.last();
        assert_eq!(seen.header("dapr-caller-app-id"), Some("a"), "{claims:?}");
        assert_eq!(
            seen.header("dapr-caller-namespace"),
            Some("default"),
            "{claims:?}"
        );
    }
}

#[tokio::test]
async fn app_cannot_impersonate_its_sidecar() {
    let net = Net::secure().await;
    let app = App::echo().await;
    let (caller, _callee) = net.pair(app.port).await;
    let before = app.calls();
    let call_local = "/dapr.proto.internals.v1.ServiceInvocation/CallLocal";
    for path in [CALL_ACTOR, CALL_ACTOR_REMINDER, CALL_ACTOR_STREAM, call_local] {
        for app_id in ["callee", "caller"] {
            let metadata = [("dapr-app-id", app_id)];
            let outcome = grpc::unary(caller.ports.grpc, path, &metadata, &actor_call(&[])).await;
            assert_eq!(outcome.status.code(), Code::Unimplemented, "{path} of {app_id}");
        }
    }
    assert_eq!(app.calls(), before);
}
