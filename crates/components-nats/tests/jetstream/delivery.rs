//! When a real server delivers a message again.

use std::{fmt, sync::Mutex, time::Instant};

use tracing::{Event as LogEvent, Metadata, Subscriber, field, span};

use super::*;

const ORDER: &str = r#"{"specversion":"1.0","id":"order-1","data":1}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_failed_comes_again_after_ack_wait() {
    let Some(server) = started().await else { return };
    let broker = open(&server.url(), "app", &[]).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", ORDER)).await.unwrap();
    let failed = next(&mut subscription).await;
    let begun = Instant::now();
    failed.receipt.give_back();
    let again = next(&mut subscription).await;
    let pause = begun.elapsed();
    assert!(
        pause >= Duration::from_millis(2900),
        "ackWait is 3s, not {pause:?}"
    );
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Neither its acknowledgement nor its refusal comes: the server has to notice by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_vanished_consumer_had_comes_again_after_ack_wait() {
    let Some(server) = started().await else { return };
    let mut proxy = Proxy::start(server.port()).await;
    let url = format!("nats://127.0.0.1:{}", proxy.port);
    let vanishing = open(&url, "app", &[]).await.unwrap();
    let mut subscription = subscribe(&vanishing, "orders").await.unwrap();
    vanishing.publish(&message("orders", ORDER)).await.unwrap();
    let held = next(&mut subscription).await;
    let other = open(&server.url(), "app", &[]).await.unwrap();
    let mut waiting = subscribe(&other, "orders").await.unwrap();
    // It was said to be in progress a second ago at most.
    let begun = Instant::now();
    proxy.cut();
    let again = next(&mut waiting).await;
    let pause = begun.elapsed();
    assert!(
        pause >= Duration::from_millis(1500),
        "ackWait is 3s, not {pause:?}"
    );
    assert_eq!(again.message.data, ORDER);
    assert_eq!(again.message.redelivered, Some(1));
    again.receipt.acknowledge();
    waiting.ended().await.unwrap();
    other.close().await;
    drop((held, subscription));
}

/// The server counts it as done when it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_acknowledgements_messages_come_at_most_once() {
    let Some(server) = started().await else { return };
    // No acknowledgements are waited for, so there is no time for them.
    let none = [("ackPolicy", "none"), ("ackWait", "")];
    let broker = open(&server.url(), "app", &none).await.unwrap();
    assert!(!broker.features().at_least_once);
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    for text in ["refused", "held"] {
        broker.publish(&message("orders", text)).await.unwrap();
    }
    let refused = next(&mut subscription).await;
    assert_eq!(refused.message.data, "refused");
    refused.receipt.give_back();
    let held = next(&mut subscription).await;
    assert_eq!(held.message.data, "held");
    quiet(&mut subscription, Duration::from_secs(2)).await;
    // Its consumer vanishes with it.
    drop((subscription, held));
    broker.close().await;
    let broker = open(&server.url(), "app", &none).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    quiet(&mut subscription, Duration::from_secs(2)).await;
    broker.publish(&message("orders", "later")).await.unwrap();
    let later = next(&mut subscription).await;
    assert_eq!(later.message.data, "later");
    later.receipt.acknowledge();
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// On one thread: the log is the thread's.
#[tokio::test]
async fn a_message_that_the_server_gives_up_has_a_line_in_the_log() {
    let Some(server) = started().await else { return };
    let lines = Lines::default();
    let _logging = tracing::subscriber::set_default(lines.clone());
    let few = [("ackWait", "1s"), ("maxDeliver", "2")];
    let broker = open(&server.url(), "app", &few).await.unwrap();
    let mut subscription = subscribe(&broker, "orders").await.unwrap();
    broker.publish(&message("orders", "first")).await.unwrap();
    next(&mut subscription).await.receipt.acknowledge();
    broker.publish(&message("orders", ORDER)).await.unwrap();
    for attempt in 0..2 {
        let delivery = next(&mut subscription).await;
        assert_eq!(delivery.message.redelivered, Some(attempt));
        assert_eq!(lines.errors(), [] as [String; 0]);
        delivery.receipt.give_back();
    }
    quiet(&mut subscription, Duration::from_secs(3)).await;
    let errors = lines.errors();
    let [error] = &errors[..] else {
        panic!("{errors:#?}")
    };
    for part in [
        "topic orders",
        "message order-1 ",
        "sequence 2 ",
        "stream all",
        "maxDeliver 2",
        "deadLetterTopic",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    subscription.ended().await.unwrap();
    broker.close().await;
}

/// Keeps the errors of the component's log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn errors(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "dapr.contrib" && *metadata.level() == tracing::Level::ERROR
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &LogEvent<'_>) {
        struct Text(String);
        impl field::Visit for Text {
            fn record_debug(&mut self, _: &field::Field, value: &dyn fmt::Debug) {
                self.0 = format!("{value:?}");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
