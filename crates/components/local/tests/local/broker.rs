//! The in-memory broker.
use std::{num::NonZeroUsize, sync::Arc};

use outrigger_component::{
    Kind, PubSub,
    pubsub::{Event, Publish, Subscribe},
};
use outrigger_component_conformance::{self as conformance, PubSubRules};
use outrigger_components_testing::Components;

async fn open() -> Arc<dyn PubSub> {
    let components = Components::of(outrigger_components_local::add);
    components.pubsub("pubsub.in-memory", "v1", &[]).await.unwrap()
}

fn message(topic: &str, data: &str) -> Publish {
    Publish {
        topic: topic.to_owned(),
        data: data.to_owned().into(),
        ..Publish::default()
    }
}

fn request(topic: &str) -> Subscribe {
    Subscribe {
        topic: topic.to_owned(),
        metadata: Default::default(),
        in_flight: NonZeroUsize::MIN,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_conformance() {
    let rules = PubSubRules {
        groups: false,
        redelivers: false,
        keeps: false,
        keys: true,
        wildcard: Some(("*", "/b")),
    };
    conformance::pubsub(rules, async |_: &str| Ok(open().await)).await;
}

#[tokio::test]
async fn every_subscription_gets_all_messages() {
    let broker = open().await;
    let mut one = broker.subscribe(request("orders")).await.unwrap();
    let mut two = broker.subscribe(request("ord*")).await.unwrap();
    broker.publish(&message("orders", "a")).await.unwrap();
    broker.publish(&message("other", "b")).await.unwrap();
    broker.publish(&message("ord", "c")).await.unwrap();
    broker.publish(&message("orders", "d")).await.unwrap();
    for subscription in [&mut one, &mut two] {
        for expected in ["a", "d"] {
            let Some(Event::Message(delivery)) = subscription.next().await else {
                panic!("it ended");
            };
            assert_eq!(delivery.message.data, expected);
            // At most once: it is not redelivered.
            delivery.receipt.reject();
        }
    }
}

#[tokio::test]
async fn bounds_queued_messages() {
    nobody_takes(Publish {
        data: vec![0; 64 << 20].into(),
        ..message("orders", "")
    })
    .await;
    nobody_takes(Publish {
        metadata: [("x".to_owned(), "y".repeat(64 << 20))].into(),
        ..message("orders", "1")
    })
    .await;
}

async fn nobody_takes(large: Publish) {
    let broker = open().await;
    let subscription = broker.subscribe(request("orders")).await.unwrap();
    let mut refused = None;
    for _ in 0..8 {
        if let Err(error) = broker.publish(&large).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.kind(), Kind::Unavailable);
    assert!(refused.to_string().contains("orders"), "{refused}");
    subscription.ended().await.unwrap();
    broker.publish(&large).await.unwrap();
}
