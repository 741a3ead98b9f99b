//! Apps with unusable responses: the message counts as failed and is redelivered.

use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use outrigger_transport::body::BoxError;

use super::*;

const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnTopicEvent";
/// More than the maximum of a response.
const LARGE: usize = 3000;

/// Sends the beginning of a response and breaks off.
fn cut(begin: &'static [u8]) -> Response<Body> {
    let frames: [Result<Frame<Bytes>, BoxError>; 2] =
        [Ok(Frame::data(begin.into())), Err("the app is gone".into())];
    Response::new(Body::stream(StreamBody::new(stream::iter(frames))))
}

/// Delivers one message to an app whose first response is `nonsense`, and waits until its second one has been
/// accepted.
async fn comes_again(
    way: &str,
    flags: &[&str],
    path: &'static str,
    nonsense: impl Fn() -> Response<Body> + Send + Sync + 'static,
    good: fn() -> Response<Body>,
) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let nonsense = Arc::new(nonsense);
    let app = App::start(move |request| {
        let (counted, nonsense) = (Arc::clone(&counted), Arc::clone(&nonsense));
        async move {
            let is_event = request.uri().path() == path;
            // The request must be read before its response can be aborted cleanly.
            request.into_body().collect().await.unwrap();
            if !is_event {
                return good();
            }
            let mut counted = counted.lock().unwrap();
            *counted += 1;
            if *counted == 1 { nonsense() } else { good() }
        }
    })
    .await;
    let net = Net::plain();
    let mut plan = net.sidecar("me").app(app.port).flag("--max-body-size=2Ki");
    for flag in flags {
        plan = plan.flag(flag);
    }
    let plan = plan.resource(&sqlite(&file)).resource(&to("orders", "/orders"));
    let node = plan.start().await;
    publish(&node, "orders", &json!(1)).await;
    let labels = ["component=\"broker\"", "topic=\"orders\""];
    let with = |status: &'static str| [&labels[..], &[status]].concat();
    let name = "dapr_component_pubsub_ingress_count";
    node.counts(name, &with("process_status=\"success\""), 1.0).await;
    assert_eq!(*calls.lock().unwrap(), 2, "{way}");
    let retries = node.metric(name, &with("process_status=\"retry\"")).await;
    assert!(
        retries.is_some_and(|retries| retries >= 1.0),
        "{way}: {retries:?}"
    );
    let messages = rusqlite::Connection::open(&file).unwrap();
    messages.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    let left = || {
        let count = messages.query_row("SELECT count(*) FROM pubsub_deliveries", [], |row| row.get(0));
        count.unwrap()
    };
    eventually(async || {
        let left: i64 = left();
        left == 0
    })
    .await;
}

#[tokio::test]
async fn unusable_http_response_is_failure() {
    let good = || app::text(200, "");
    comes_again("cut off", &[], "/orders", || cut(br#"{"status":"SUCC"#), good).await;
    let large = || app::text(200, &" ".repeat(LARGE));
    comes_again("too large", &[], "/orders", large, good).await;
    let unknown = || app::text(200, r#"{"status":"DONE"}"#);
    comes_again("unknown", &[], "/orders", unknown, good).await;
}

#[tokio::test]
async fn unusable_grpc_response_is_failure() {
    const FLAGS: [&str; 1] = ["--app-protocol=grpc"];
    let good = || grpc::ok(&TopicEventResponse::default());
    let unknown = || grpc::ok(&TopicEventResponse { status: 7 });
    comes_again("unknown", &FLAGS, ON_EVENT, unknown, good).await;
    let torn = || grpc::response(&[], &[b"\xff\xff"], &[("grpc-status", "0")]);
    comes_again("no message", &FLAGS, ON_EVENT, torn, good).await;
    let none = || grpc::response(&[], &[], &[("grpc-status", "0")]);
    comes_again("without a message", &FLAGS, ON_EVENT, none, good).await;
    let cut = || {
        let mut response = cut(b"\0\0\0\0\x02\x08");
        let kind = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert("content-type", kind);
        response
    };
    comes_again("cut off", &FLAGS, ON_EVENT, cut, good).await;
    let large = || {
        // An unknown field.
        let mut message = vec![0x7a];
        prost::encoding::encode_varint(LARGE as u64, &mut message);
        message.resize(message.len() + LARGE, b' ');
        grpc::response(&[], &[&message], &[("grpc-status", "0")])
    };
    comes_again("too large", &FLAGS, ON_EVENT, large, good).await;
}

/// A message that is not an event never reaches the app's route, and is dead-lettered for inspection.
#[tokio::test]
async fn dead_letters_non_events() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.db");
    let (app, got) = keeping(|_, _| app::text(200, "")).await;
    let net = Net::plain();
    let raw = "  metadata: {rawPayload: 'true'}\n  routes: {default: /dead}\n";
    let node = plan(&net, &app)
        .resource(&sqlite(&file))
        .resource(&subscription(
            "orders",
            "  deadLetterTopic: dead\n  routes: {default: /orders}\n",
        ))
        .resource(&subscription("dead", raw))
        .start()
        .await;
    let texts = ["no event", "[]", r#"{"id":"1","data":"#];
    for text in texts {
        let answer = node.ask(post("/v1.0/publish/broker/orders?metadata.rawPayload=true", text));
        assert_eq!(answer.await.status, 204);
    }
    let dead_letters = || {
        use base64::Engine;
        let got = got.lock().unwrap();
        let dead = got.iter().filter(|(target, _)| target == "/dead");
        let mut dead_letters: Vec<_> = dead
            .map(|(_, event)| {
                let text = event["data_base64"].as_str().unwrap();
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
                String::from_utf8(bytes).unwrap()
            })
            .collect();
        dead_letters.sort_unstable();
        dead_letters
    };
    let mut wanted = texts;
    wanted.sort_unstable();
    eventually(async || dead_letters() == wanted).await;
    assert_eq!(payloads(&got, "/orders"), Vec::<Value>::new());
    let labels = ["component=\"broker\"", "success=\"true\"", "topic=\"orders\""];
    node.counts("dapr_component_pubsub_dead_letter_count", &labels, 3.0)
        .await;
}
