//! The MQTT components on a real broker.
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
mod five;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use outrigger_component::{
    Error, Kind, OutputBinding, Result,
    bindings::{Event, EventHandler},
};
use outrigger_component_conformance::{self as conformance, Source};
use tokio_util::sync::CancellationToken;

use outrigger_components_testing::{Components, call, server::Mosquitto, tls::Certificates};

/// Generous: other builds and tests share the machine.
const SOON: Duration = Duration::from_secs(20);

fn components() -> Components {
    Components::of(outrigger_components_mqtt::add)
}

const MQTT: &str = "bindings.mqtt3";

/// Publishes the events that the binding should receive.
struct Sender(Arc<dyn OutputBinding>);

#[async_trait]
impl Source for Sender {
    async fn cause(&self, text: &str) {
        // The broker may be briefly down; the suite retries.
        let _away = self.0.invoke(&call("create", &[], text)).await;
    }
}

fn properties<'a>(url: &'a str, topic: &'a str, consumer: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("url", url),
        ("topic", topic),
        ("consumerID", consumer),
        ("backOffMaxRetries", "-1"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_passes_conformance() {
    let Some(mut broker) = Mosquitto::start() else {
        return;
    };
    let url = broker.url();
    let output = |consumer| {
        let properties = properties(&url, "events", consumer);
        async move { components().output(MQTT, "v1", &properties).await.unwrap() }
    };
    let input = |consumer| {
        let properties = properties(&url, "events", consumer);
        async move {
            components()
                .input("bindings.mqtt", "v1", &properties)
                .await
                .unwrap()
        }
    };
    let sender = Sender(output("sender").await);
    conformance::input_binding(&input("first").await, &sender).await;
    conformance::input_binding_outlives(&input("second").await, &sender, &mut broker).await;
    let sample = call("create", &[("topic", "elsewhere")], "x");
    conformance::output_binding(&output("third").await, &sample).await;
    conformance::output_binding_outlives(&output("fourth").await, &sample, &mut broker).await;
}

/// Refuses all events until it is allowed to accept them.
#[derive(Default)]
struct Strict {
    refuses: Mutex<bool>,
    seen: Mutex<Vec<Event>>,
}

impl EventHandler for Strict {
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            self.seen.lock().unwrap().push(event);
            if *self.refuses.lock().unwrap() {
                return Err(Error::new(Kind::Internal, "not now"));
            }
            Ok(Bytes::new())
        })
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redelivers_refused_after_reconnect() {
    let Some(broker) = Mosquitto::start() else { return };
    let url = broker.url();
    let shared = properties(&url, "events/+", "app");
    let properties = &shared[..3];
    let binding = components().input(MQTT, "v1", properties).await.unwrap();
    let strict = Arc::new(Strict::default());
    *strict.refuses.lock().unwrap() = true;
    let read = |drain: &CancellationToken| {
        let (binding, strict, drain) = (binding.clone(), strict.clone(), drain.clone());
        tokio::spawn(async move { binding.read(strict, drain).await })
    };
    let drain = CancellationToken::new();
    let reading = read(&drain);
    let sender = components()
        .output(
            MQTT,
            "v1",
            &[shared[0], ("topic", "events/a"), ("consumerID", "s")],
        )
        .await
        .unwrap();
    // The first event may precede the subscription.
    let seen = async {
        while strict.seen.lock().unwrap().is_empty() {
            sender.invoke(&call("create", &[], "m")).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, seen).await.unwrap();
    drain.cancel();
    reading.await.unwrap().unwrap();
    let refused = strict.seen.lock().unwrap().len();
    assert_eq!(strict.seen.lock().unwrap()[0].metadata["topic"], "events/a");

    *strict.refuses.lock().unwrap() = false;
    let drain = CancellationToken::new();
    let reading = read(&drain);
    until(|| strict.seen.lock().unwrap().len() >= refused * 2).await;
    drain.cancel();
    reading.await.unwrap().unwrap();
    let known = strict.seen.lock().unwrap().len();

    // Accepted events are not redelivered; the broker would send them before new ones.
    sender.invoke(&call("create", &[], "new")).await.unwrap();
    let drain = CancellationToken::new();
    let reading = read(&drain);
    until(|| {
        strict
            .seen
            .lock()
            .unwrap()
            .iter()
            .any(|event| event.data == "new")
    })
    .await;
    drain.cancel();
    reading.await.unwrap().unwrap();
    assert_eq!(strict.seen.lock().unwrap().len(), known + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_over_tls() {
    let (certificates, others) = (Certificates::new(), Certificates::new());
    let Some(broker) = Mosquitto::start_tls(&certificates) else {
        return;
    };
    let url = broker.tls_url();
    let open = async |root: &str| {
        let mut properties = properties(&url, "events", "app");
        properties.extend([
            ("caCert", root),
            ("clientCert", certificates.client.as_str()),
            ("clientKey", certificates.client_key.as_str()),
        ]);
        components().output(MQTT, "v1", &properties).await.unwrap()
    };
    let binding = open(&certificates.root).await;
    binding.ping().await.unwrap();
    binding.invoke(&call("create", &[], "x")).await.unwrap();
    let error = open(&others.root).await.ping().await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn rejects_invalid_topics() {
    let Some(broker) = Mosquitto::start() else { return };
    let url = broker.url();
    let binding = components()
        .output(MQTT, "v1", &properties(&url, "events/#", "app"))
        .await
        .unwrap();
    let error = binding.invoke(&call("create", &[], "x")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest, "{error}");
    assert!(error.to_string().contains("events/#"), "{error}");
}
