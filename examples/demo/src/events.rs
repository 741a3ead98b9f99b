//! Publish/subscribe on the embedded broker (a file shared by both sidecars) or on Redis: rules route events, and rejected
//! events go to the dead-letter topic.

use std::path::Path;

use http_body_util::Full;
use hyper::Request;
use outrigger_wire::runtime::v1::PublishEventRequest;
use outrigger_wire::runtime::v1::dapr_client::DaprClient;
use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::Failure;
use crate::bindings::until_posted;
use crate::calls::send;
use crate::fleet::Fleet;

const NAME: &str = "signals";
const TOPIC: &str = "sightings";
const DEAD: &str = "wrecks";

/// The broker.
pub(crate) enum Broker {
    /// The embedded broker, which Dapr's sidecars do not have.
    Embedded,
    /// A Redis server: its host and port.
    Redis(String),
}

/// Writes the broker's component, shared by both apps, and the subscriptions of the app `reader`.
pub(crate) fn write_resources(
    dir: &Path,
    resources: &Path,
    reader: &str,
    broker: &Broker,
) -> Result<(), Failure> {
    let (kind, property, value) = match broker {
        Broker::Embedded => (
            "sqlite",
            "connectionString",
            dir.join("signals.db").display().to_string(),
        ),
        Broker::Redis(address) => ("redis", "redisHost", address.clone()),
    };
    let broker = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: {NAME}\nspec:\n  type: pubsub.{kind}\n  \
         version: v1\n  metadata:\n    - name: {property}\n      value: '{value}'\n"
    );
    let subscription = |topic: &str, more: &str| {
        format!(
            "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: to-{topic}\nspec:\n  pubsubname: \
             {NAME}\n  topic: {topic}\n{more}scopes:\n  - {reader}\n"
        )
    };
    let rules = format!(
        "  deadLetterTopic: {DEAD}\n  routes:\n    rules:\n      - match: event.data.kind == 'storm'\n        path: \
         /storm\n      - match: event.data.kind == 'leak'\n        path: /leaking\n    default: /calm\n"
    );
    let all = [
        broker,
        subscription(TOPIC, &rules),
        subscription(DEAD, "  routes:\n    default: /wrecks\n"),
    ];
    std::fs::write(resources.join("events.yaml"), all.join("---\n"))?;
    Ok(())
}

/// Publishes through both sidecars, and checks the path at which the HTTP app receives each event. Prints a line for each.
pub(crate) async fn all(fleet: &Fleet) -> Result<(), Failure> {
    over_grpc(fleet, &json!({"kind": "storm"})).await?;
    until_posted(fleet, "storm", 1).await?;
    line(
        "event, routed",
        "published over gRPC through one sidecar; the rule kind == 'storm' sent it to POST /storm of the other",
    );
    over_http(fleet, &json!({"kind": "breeze"})).await?;
    until_posted(fleet, "calm", 1).await?;
    line(
        "event, by default",
        "published over HTTP; no rule matched: POST /calm",
    );
    over_grpc(fleet, &json!({"kind": "leak"})).await?;
    let refused = until_posted(fleet, "leaking", 1).await?;
    until_posted(fleet, "wrecks", 1).await?;
    line(
        "event, dead letter",
        &format!("the app refused it {refused} time with 500; it went to the topic {DEAD}: POST /wrecks"),
    );
    Ok(())
}

fn line(name: &str, what: &str) {
    println!("{name:24} {what}");
}

async fn over_grpc(fleet: &Fleet, data: &Value) -> Result<(), Failure> {
    let grpc = Endpoint::from_shared(format!("http://127.0.0.1:{}", fleet.rust.grpc))?.connect_lazy();
    let request = PublishEventRequest {
        pubsub_name: NAME.into(),
        topic: TOPIC.into(),
        data: data.to_string().into(),
        data_content_type: "application/json".into(),
        ..PublishEventRequest::default()
    };
    DaprClient::new(grpc).publish_event(request).await?;
    Ok(())
}

async fn over_http(fleet: &Fleet, data: &Value) -> Result<(), Failure> {
    let url = format!(
        "http://127.0.0.1:{}/v1.0/publish/{NAME}/{TOPIC}",
        fleet.python.http
    );
    let request = Request::post(&url).header("content-type", "application/json");
    let (status, answer) = send(request.body(Full::from(data.to_string()))?).await?;
    if status != 204 {
        return Err(format!("{url}: status {status}: {}", String::from_utf8_lossy(&answer)).into());
    }
    Ok(())
}
