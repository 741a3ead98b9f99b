use std::{sync::Arc, time::Duration};

use outrigger_component::{
    Kind, Metadata, PubSub, Result, Setup,
    pubsub::{Delivery, Event, Publish, Subscribe, Subscription},
};
use outrigger_component_conformance::{self as conformance, Link, PubSubRules};
use tonic::Status;

use super::{Fault, Ship, within};

const RULES: PubSubRules = PubSubRules {
    groups: true,
    redelivers: true,
    keeps: true,
    keys: false,
    wildcard: None,
};

impl Ship {
    async fn broker(&self, group: &str) -> Result<Arc<dyn PubSub>> {
        let entry = self.catalog.pubsub.find("pubsub.Ship", "v1").unwrap();
        let properties = [("consumerID".to_owned(), group.to_owned())];
        let setup = Setup {
            metadata: Metadata::new(group, properties).unwrap(),
            app_id: "app".to_owned(),
        };
        entry.build(setup).await
    }
}

/// Kills and restarts the process.
impl Link for Ship {
    fn cut(&mut self) {
        self.kill();
    }

    fn restore(&mut self) {
        self.start();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_passes_conformance() {
    let ship = Ship::new().await;
    conformance::pubsub(RULES, async |group: &str| ship.broker(group).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_nothing_when_process_dies() {
    let mut ship = Ship::new().await;
    let catalog = std::mem::replace(&mut ship.catalog, outrigger_component::Catalog::empty());
    let entry = catalog.pubsub.find("pubsub.Ship", "v1").unwrap();
    let open = async |group: &str| {
        let properties = [("consumerID".to_owned(), group.to_owned())];
        let setup = Setup {
            metadata: Metadata::new(group, properties).unwrap(),
            app_id: "app".to_owned(),
        };
        entry.build(setup).await
    };
    conformance::pubsub_outlives(RULES, open, &mut ship).await;
}

fn request() -> Subscribe {
    Subscribe {
        topic: "orders".to_owned(),
        metadata: Default::default(),
        in_flight: std::num::NonZeroUsize::MIN,
    }
}

/// A broker, and a subscription with `count` messages.
async fn delivered(ship: &Ship, count: usize) -> (Arc<dyn PubSub>, Subscription, Vec<Delivery>) {
    let broker = ship.broker("app").await.unwrap();
    let request = Subscribe {
        in_flight: count.try_into().unwrap(),
        ..request()
    };
    let mut subscription = within(broker.subscribe(request)).await.unwrap();
    let message = Publish {
        topic: "orders".to_owned(),
        data: "x".into(),
        ..Publish::default()
    };
    let mut deliveries = Vec::new();
    for _ in 0..count {
        within(broker.publish(&message)).await.unwrap();
        let Some(Event::Message(delivery)) = within(subscription.next()).await else {
            panic!("no message");
        };
        deliveries.push(delivery);
    }
    (broker, subscription, deliveries)
}

/// A rejection could dead-letter it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unattempted_messages_get_no_answer() {
    let ship = Ship::new().await;
    let (_broker, subscription, deliveries) = delivered(&ship, 3).await;
    subscription.drain();
    let [done, waiting, failed] = <[Delivery; 3]>::try_from(deliveries).unwrap();
    waiting.receipt.release(false);
    failed.receipt.reject();
    done.receipt.acknowledge();
    within(subscription.ended()).await.unwrap();
    let mut answers = ship.desk.answers.lock().unwrap().clone();
    answers.sort();
    assert_eq!(answers, [("0".to_owned(), false), ("2".to_owned(), true)]);
}

/// A message sent after the last acknowledgement arrives on the ending stream without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_stays_open_after_last_answer() {
    let ship = Ship::new().await;
    let (_broker, subscription, mut deliveries) = delivered(&ship, 1).await;
    subscription.drain();
    deliveries.remove(0).receipt.acknowledge();
    let acknowledged = std::time::Instant::now();
    within(subscription.ended()).await.unwrap();
    assert!(acknowledged.elapsed() >= Duration::from_millis(400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_without_pause_is_ignored() {
    let ship = Ship::new().await;
    let broker = ship.broker("app").await.unwrap();
    within(broker.pause()).await.unwrap();
    ship.desk.faulty(Some(Fault::Answer(Status::internal("no"))));
    let error = within(broker.pause()).await.unwrap_err();
    assert!(error.to_string().contains("no"), "{error}");
    assert_eq!(*ship.desk.pauses.lock().unwrap(), 2);
}

/// Publishers and subscribers get a component's errors; an existing subscription continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_broker_errors() {
    let ship = Ship::new().await;
    let broker = ship.broker("app").await.unwrap();
    let message = Publish {
        topic: "orders".to_owned(),
        data: "x".into(),
        ..Publish::default()
    };
    let denied = Fault::Answer(Status::permission_denied("not yours"));
    ship.desk.faulty(Some(denied));
    let error = within(broker.publish(&message)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    let error = within(broker.subscribe(request())).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("not yours"), "{error}");
    ship.desk.faulty(None);
    let mut subscription = within(broker.subscribe(request())).await.unwrap();
    within(broker.publish(&message)).await.unwrap();
    let Some(Event::Message(delivery)) = within(subscription.next()).await else {
        panic!("no message");
    };
    assert_eq!(delivery.message.data, "x");
    delivery.receipt.acknowledge();
    within(subscription.ended()).await.unwrap();
}

/// A process that sends nothing before its first message does not block subscribing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_stream_counts_as_subscribed() {
    let ship = Ship::new().await;
    let broker = ship.broker("app").await.unwrap();
    ship.desk.faulty(Some(Fault::Hang));
    let subscription = tokio::time::timeout(Duration::from_secs(20), broker.subscribe(request()));
    let subscription = subscription.await.unwrap().unwrap();
    assert!(!subscription.has_ended());
    within(broker.close()).await;
    within(subscription.ended()).await.unwrap();
}
