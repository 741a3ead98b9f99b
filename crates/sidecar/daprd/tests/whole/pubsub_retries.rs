//! Publishing with an outbound policy: which failures are retried, and which part of a bulk.

use std::sync::Arc;

use outrigger_wire::runtime::v1::{BulkPublishRequest, BulkPublishRequestEntry, PublishEventRequest};
use serde_json::json;
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::common::{Net, Node, grpc, post};
use crate::process::{Desk, Fault, Process};

const DAPR: &str = "/dapr.proto.runtime.v1.Dapr";

/// A sidecar with a broker in a separate process. Publishing has four attempts if `matching` allows it.
struct Harbour {
    desk: Arc<Desk>,
    node: Node,
    _process: Process,
    _folder: TempDir,
}

impl Harbour {
    async fn new(matching: &str) -> Self {
        let (folder, desk) = (tempfile::tempdir().unwrap(), Desk::new());
        let process = Process::start(folder.path(), "ship", &desk);
        let broker = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: pubsub.ship\n  \
                      version: v1\n";
        let policy = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    retries:\n      \
             some: {{policy: constant, duration: 1ms, maxRetries: 3, matching: {matching}}}\n  targets:\n    \
             components:\n      broker: {{outbound: {{retry: some}}}}\n"
        );
        let node = Net::plain()
            .sidecar("me")
            .env("DAPR_COMPONENTS_SOCKETS_FOLDER", folder.path().to_str().unwrap())
            .resource(broker)
            .resource(&policy)
            .start()
            .await;
        Self {
            desk,
            node,
            _process: process,
            _folder: folder,
        }
    }

    /// The component's publish requests since the last call.
    fn tries(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut *self.desk.published.lock().unwrap())
    }

    /// Publishes; returns whether that succeeded.
    async fn publish(&self, way: Way) -> bool {
        let (node, grpc_port) = (&self.node, self.node.ports.grpc);
        match way {
            Way::Http => node.ask(post("/v1.0/publish/broker/a", "x")).await.status == 204,
            Way::HttpBulk => {
                let entry = |id| json!({"entryId": id, "event": "x", "contentType": "text/plain"});
                let bulk = json!([entry("1"), entry("2"), entry("3")]).to_string();
                node.ask(post("/v1.0/publish/bulk/broker/a", bulk)).await.status == 204
            }
            Way::Grpc => {
                let event = PublishEventRequest {
                    pubsub_name: "broker".to_owned(),
                    topic: "a".to_owned(),
                    data: "x".into(),
                    ..PublishEventRequest::default()
                };
                let outcome = grpc::unary(grpc_port, &format!("{DAPR}/PublishEvent"), &[], &event).await;
                outcome.status.code() == Code::Ok
            }
            Way::GrpcBulk => {
                let entry = |id: &str| BulkPublishRequestEntry {
                    entry_id: id.to_owned(),
                    event: "x".into(),
                    content_type: "text/plain".to_owned(),
                    ..BulkPublishRequestEntry::default()
                };
                let bulk = BulkPublishRequest {
                    pubsub_name: "broker".to_owned(),
                    topic: "a".to_owned(),
                    entries: ["1", "2", "3"].map(entry).into(),
                    ..BulkPublishRequest::default()
                };
                let outcome = grpc::unary(grpc_port, &format!("{DAPR}/BulkPublishEvent"), &[], &bulk).await;
                outcome.status.code() == Code::Ok
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Http,
    HttpBulk,
    Grpc,
    GrpcBulk,
}

const WAYS: [Way; 4] = [Way::Http, Way::HttpBulk, Way::Grpc, Way::GrpcBulk];

#[tokio::test]
async fn retries_publish_on_matching_code() {
    let harbour = Harbour::new("{gRPCStatusCodes: \"14\", httpStatusCodes: \"503\"}").await;
    for way in WAYS {
        for (status, tries) in [
            (Status::failed_precondition("not so"), 1),
            (Status::internal("no"), 1),
            (Status::unavailable("not now"), 4),
        ] {
            let code = status.code();
            harbour.desk.faulty(Some(Fault::Answer(status)));
            assert!(!harbour.publish(way).await, "{way:?} {code:?}");
            assert_eq!(harbour.tries().len(), tries, "{way:?} {code:?}");
        }
        harbour.desk.faulty(None);
        assert!(harbour.publish(way).await, "{way:?}");
        assert_eq!(harbour.tries().len(), 1, "{way:?}");
    }
}

/// Codes of one protocol do not affect callers over the other.
#[tokio::test]
async fn protocols_have_separate_code_lists() {
    let harbour = Harbour::new("{gRPCStatusCodes: \"14\"}").await;
    let refusal = Status::failed_precondition("not so");
    harbour.desk.faulty(Some(Fault::Answer(refusal)));
    for (way, tries) in [
        (Way::Grpc, 1),
        (Way::GrpcBulk, 1),
        (Way::Http, 4),
        (Way::HttpBulk, 4),
    ] {
        assert!(!harbour.publish(way).await, "{way:?}");
        assert_eq!(harbour.tries().len(), tries, "{way:?}");
    }
}

#[tokio::test]
async fn retries_only_failed_bulk_entries() {
    let harbour = Harbour::new("{gRPCStatusCodes: \"14\", httpStatusCodes: \"503\"}").await;
    for way in [Way::HttpBulk, Way::GrpcBulk] {
        *harbour.desk.refused.lock().unwrap() = [("1".to_owned(), 1), ("3".to_owned(), 2)].into();
        assert!(harbour.publish(way).await, "{way:?}: all are there in the end");
        let tries = harbour.tries();
        assert_eq!(tries, [vec!["1", "2", "3"], vec!["1", "3"], vec!["3"]], "{way:?}");
    }
}
