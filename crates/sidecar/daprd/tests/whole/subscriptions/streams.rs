//! Several streams on one topic, whose clients must not affect each other.

use tokio::sync::mpsc;

use outrigger_transport::body::BoxError;

use super::*;

const DONE: [&str; 3] = [
    "component=\"broker\"",
    "topic=\"a\"",
    "process_status=\"success\"",
];

/// A client with a stream.
struct Reader {
    tell: mpsc::Sender<Result<bytes::Bytes, BoxError>>,
    stream: Incoming,
}

impl Reader {
    async fn open(node: &Node, topic: &str) -> Self {
        let (tell, body) = fed();
        let initial = Said::InitialRequest(SubscribeTopicEventsRequestInitialAlpha1 {
            pubsub_name: "broker".to_owned(),
            topic: topic.to_owned(),
            ..SubscribeTopicEventsRequestInitialAlpha1::default()
        });
        tell.send(Ok(said(initial))).await.unwrap();
        let mut stream = grpc::start(node.ports.grpc, STREAM, &[], body).await.into_body();
        grpc::next(&mut stream).await.unwrap();
        Self { tell, stream }
    }

    /// The next event, which is acknowledged.
    async fn take(&mut self) -> Value {
        let event = next_event(&mut self.stream).await;
        self.tell
            .send(Ok(processed(&event, Status::Success)))
            .await
            .unwrap();
        serde_json::from_slice(&event.data).unwrap()
    }
}

/// Waits until the sidecar has this many streams.
async fn streams(node: &Node, count: usize) {
    eventually(async || {
        let metadata = node.ask(get("/v1.0/metadata")).await.json();
        let all = metadata["subscriptions"].as_array().map_or(0, Vec::len);
        all == count
    })
    .await;
}

/// In memory, every subscription gets every event.
#[tokio::test]
async fn leaving_reader_affects_no_other() {
    let net = Net::plain();
    let node = net.sidecar("me").resource(MEMORY).start().await;
    let (mut stays, mut leaves) = (Reader::open(&node, "a").await, Reader::open(&node, "a").await);
    publish(&node, "a", &json!(1)).await;
    assert_eq!((stays.take().await, leaves.take().await), (json!(1), json!(1)));
    drop(leaves);
    streams(&node, 1).await;
    for number in 2..5 {
        publish(&node, "a", &json!(number)).await;
        assert_eq!(stays.take().await, json!(number));
    }
}

/// Readers of one app share a consumer group: events not acknowledged by one are redelivered to another.
#[tokio::test]
async fn redelivers_unanswered_events() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let broker = sqlite(&folder.path().join("broker.db"));
    let node = net.sidecar("me").resource(&broker).start().await;
    let mut leaves = Reader::open(&node, "a").await;
    publish(&node, "a", &json!("left")).await;
    next_event(&mut leaves.stream).await;
    let mut stays = Reader::open(&node, "a").await;
    drop(leaves);
    assert_eq!(stays.take().await, json!("left"));
    streams(&node, 1).await;
}

/// A target that outlives its client would take messages of the group that no client gets.
#[tokio::test]
async fn reconnects_leave_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::plain();
    let broker = sqlite(&folder.path().join("broker.db"));
    let node = net.sidecar("me").resource(&broker).start().await;
    for round in 0..5 {
        let mut reader = Reader::open(&node, "a").await;
        for number in 0..8 {
            publish(&node, "a", &json!([round, number])).await;
        }
        let mut taken = Vec::new();
        for _ in 0..8 {
            taken.push(reader.take().await);
        }
        taken.sort_by_key(|data| data[1].as_u64());
        let expected: Vec<_> = (0..8).map(|number| json!([round, number])).collect();
        assert_eq!(taken, expected, "this client gets all of them");
        // An unread acknowledgement would leave its event to the next client.
        let counted = f64::from((round + 1) * 8);
        node.counts("dapr_component_pubsub_ingress_count", &DONE, counted)
            .await;
        drop(reader);
        streams(&node, 0).await;
    }
    node.counts("dapr_component_pubsub_ingress_in_flight", &DONE[..2], 0.0)
        .await;
    // Present only after an event had to wait.
    let waiting = node
        .metric("dapr_component_pubsub_ingress_waiting", &DONE[..2])
        .await;
    assert_eq!(waiting.unwrap_or(0.0), 0.0);
}
