use std::{collections::BTreeSet, sync::Arc, time::Duration};

use outrigger_component::{PubSub, Result, pubsub::Publish};
use tokio::time::{Instant, sleep, timeout};

use super::{
    super::{Findings, Link, Outcome, SOON, Step, ensure, unique},
    PubSubRules, PubSubs,
    consumer::{A_WHILE, Consumer, data, publish, settled},
};

/// Deadline for redelivery after an outage.
const RECOVERY: Duration = Duration::from_secs(60);

/// An outage longer than leases and sessions in tests, unless `OUTAGE_SECONDS` is set.
const LONG: Duration = Duration::from_secs(6);

fn long() -> Duration {
    let given = std::env::var("OUTAGE_SECONDS").ok();
    let given = given.and_then(|seconds| seconds.parse().ok());
    given.map_or(LONG, Duration::from_secs)
}

/// In-flight limit of a consumer: more than the messages published before the outage.
const IN_FLIGHT: usize = 4;

/// Parameters of an outage.
#[derive(Clone, Copy)]
struct Outage {
    lasts: Duration,
    /// Deadline for publishing to work again after it.
    noticed: Duration,
}

/// Runs the rules for a temporary outage of the broker. Invariant: published and unacknowledged messages
/// arrive at least once. `link` is the connection to the broker, or the broker itself.
///
/// # Panics
/// If a rule is broken.
pub async fn pubsub_outlives(
    rules: PubSubRules,
    open: impl AsyncFn(&str) -> Result<Arc<dyn PubSub>>,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("pub/sub without its broker");
    let brokers = &PubSubs {
        open: &open,
        run: unique(),
        rules,
    };
    let outage = Outage {
        lasts: A_WHILE,
        noticed: SOON,
    };
    findings.note(
        "nothing is lost",
        nothing_lost(brokers, link, outage, IN_FLIGHT).await,
    );
    // The app holds all messages in flight when the connection breaks.
    findings.note(
        "one at a time, nothing is lost",
        nothing_lost(brokers, link, outage, 1).await,
    );
    findings.note(
        "a broker that is away is reported",
        reported(brokers, link, SOON * 3).await,
    );
    findings.finish();
}

/// Checks the same invariant over an outage longer than leases and sessions (at most 3 s in tests), with
/// publish attempts throughout.
///
/// # Panics
/// If a message is lost.
pub async fn pubsub_outlives_long(
    rules: PubSubRules,
    open: impl AsyncFn(&str) -> Result<Arc<dyn PubSub>>,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("pub/sub without its broker for long");
    let brokers = &PubSubs {
        open: &open,
        run: unique(),
        rules,
    };
    let outage = Outage {
        lasts: long(),
        // Backoff between connection attempts has grown.
        noticed: SOON * 2,
    };
    findings.note(
        "nothing is lost",
        nothing_lost(brokers, link, outage, IN_FLIGHT).await,
    );
    findings.finish();
}

/// The same rules for an outage without notice: connections stay open but carry nothing, even after it.
/// Heartbeats must detect the dead connections within 60 s.
///
/// # Panics
/// If a rule is broken.
pub async fn pubsub_outlives_silence(
    rules: PubSubRules,
    open: impl AsyncFn(&str) -> Result<Arc<dyn PubSub>>,
    link: &mut impl Link,
) {
    let mut findings = Findings::new("pub/sub without a word from its broker");
    let brokers = &PubSubs {
        open: &open,
        run: unique(),
        rules,
    };
    let outage = Outage {
        lasts: long(),
        noticed: RECOVERY,
    };
    findings.note(
        "nothing is lost",
        nothing_lost(brokers, link, outage, IN_FLIGHT).await,
    );
    findings.note(
        "a broker that is away is reported",
        reported(brokers, link, RECOVERY).await,
    );
    findings.finish();
}

async fn nothing_lost<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(
    brokers: &PubSubs<'_, F>,
    link: &mut impl Link,
    outage: Outage,
    in_flight: usize,
) -> Outcome {
    let name = format!("lost-{in_flight}");
    let broker = brokers.group(&name).await?;
    let topic = brokers.topic(&name);
    let mut consumer = Consumer::start(&broker, &topic, in_flight).await?;
    publish(&broker, &topic, &["done"]).await?;
    consumer.acknowledge(1).await?;
    publish(&broker, &topic, &["held", "waiting"]).await?;
    let held = consumer.take().await?;
    ensure!(data(&held) == "held", "{:?}", data(&held));
    link.cut();
    let attempts = async {
        loop {
            publish(&broker, &topic, &["during"]).await.ok();
            sleep(A_WHILE).await;
        }
    };
    // Messages published during the outage may fail or arrive; the rule ignores them.
    timeout(outage.lasts, attempts).await.ok();
    link.restore();
    let attempts = async {
        while publish(&broker, &topic, &["after"]).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(outage.noticed, attempts)
        .await
        .step("publishing works again")?;
    // The broker either takes it or redelivers it.
    drop(held);
    let mut missing = BTreeSet::from(["after", "held", "waiting"]);
    if !brokers.rules.keeps {
        missing = BTreeSet::from(["after"]);
    }
    let deadline = Instant::now() + RECOVERY;
    while !missing.is_empty() {
        ensure!(Instant::now() < deadline, "not within {RECOVERY:?}: {missing:?}");
        let Ok(delivery) = consumer.take_within(SOON).await else {
            ensure!(
                !consumer.subscription.has_ended(),
                "the subscription ended with the connection; missing: {missing:?}"
            );
            continue;
        };
        missing.remove(data(&delivery).as_str());
        delivery.receipt.acknowledge();
    }
    // This may report that the last acknowledged messages are redelivered, because the outage ended a lease
    // or membership.
    let _repeats = timeout(SOON, consumer.subscription.ended())
        .await
        .step("the subscription ends")?;
    settled(&broker).await
}

async fn reported<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(
    brokers: &PubSubs<'_, F>,
    link: &mut impl Link,
    limit: Duration,
) -> Outcome {
    let broker = brokers.group("away").await?;
    publish(&broker, &brokers.topic("away"), &["before"]).await?;
    link.cut();
    let message = Publish {
        topic: brokers.topic("away"),
        ..Publish::default()
    };
    let outcome = timeout(limit, broker.publish(&message)).await;
    link.restore();
    match outcome.step("publishing without the broker")? {
        Err(error) if error.retryable() => settled(&broker).await,
        other => Err(format!("publishing without the broker: {other:?}")),
    }
}
