mod consumer;
mod faults;
mod members;
mod order;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outrigger_component::{
    Kind, PubSub, Result,
    pubsub::{BulkEntry, BulkPublish, Features, Publish},
};
use tokio::time::{sleep, timeout};

use self::consumer::{A_WHILE, Consumer, data, publish, settled};
pub use self::{
    faults::{pubsub_outlives, pubsub_outlives_long, pubsub_outlives_silence},
    members::pubsub_members,
};
use super::{Findings, Outcome, SOON, Step, ensure, unique};

/// Behaviour that differs between brokers.
#[derive(Debug, Clone, Copy)]
pub struct PubSubRules {
    /// Consumers of a group share its messages. Otherwise every subscription gets all messages.
    pub groups: bool,
    /// A returned message is redelivered, to the same consumer if it is the only one.
    pub redelivers: bool,
    /// Messages published while an existing group has no consumer are kept for it.
    pub keeps: bool,
    /// Messages carry their ordering key.
    pub keys: bool,
    /// Suffixes of a topic: the pattern for topics below it, and a topic that matches it, e.g. `/+` and `/b`.
    pub wildcard: Option<(&'static str, &'static str)>,
}

/// Opens components on the broker under test by consumer group. The broker must be empty or exclusive to the run.
struct PubSubs<'a, F> {
    open: &'a F,
    run: String,
    rules: PubSubRules,
}

impl<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>> PubSubs<'_, F> {
    /// The component for group `name` of this run.
    async fn group(&self, name: &str) -> Result<Arc<dyn PubSub>, String> {
        let group = format!("{name}-{}", self.run);
        timeout(SOON * 3, (self.open)(&group))
            .await
            .step("open")?
            .step("open")
    }

    fn topic(&self, name: &str) -> String {
        format!("{name}-{}", self.run)
    }
}

/// Runs all rules for brokers. `open` opens a component for a consumer group.
///
/// # Panics
/// If a rule is broken.
pub async fn pubsub(rules: PubSubRules, open: impl AsyncFn(&str) -> Result<Arc<dyn PubSub>>) {
    let mut findings = Findings::new("pub/sub");
    let brokers = &PubSubs {
        open: &open,
        run: unique(),
        rules,
    };
    findings.note("published messages arrive", arrives(brokers).await);
    findings.note("a bulk arrives", bulk(brokers).await);
    findings.note("messages keep their order", order::one_consumer(brokers).await);
    findings.note("keys keep their order", order::keys(brokers).await);
    findings.note(
        "an ordering key comes again in its order",
        order::key(brokers).await,
    );
    findings.note("every group gets everything", groups(brokers).await);
    findings.note("consumers of a group share", competing(brokers).await);
    findings.note("returned messages come again", returned(brokers).await);
    findings.note("messages in flight are bounded", bounded(brokers).await);
    findings.note("draining waits for the app", drained(brokers).await);
    findings.note("messages wait for a consumer", waiting(brokers).await);
    findings.note(
        "unsettled messages outlive their consumer",
        unsettled(brokers).await,
    );
    findings.note("messages expire", expired(brokers).await);
    findings.note("patterns match topics", wildcard(brokers).await);
    findings.note("closing ends all", closed(brokers).await);
    findings.finish();
}

async fn arrives<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("arrives").await?;
    broker.ping().await.step("ping")?;
    let topic = brokers.topic("arrives");
    let mut consumer = Consumer::start(&broker, &topic, 8).await?;
    for payload in [&b"{\"a\":1}"[..], b"", b"\x00\xff\r\n", &[b'x'; 100_000]] {
        let message = Publish {
            topic: topic.clone(),
            data: payload.to_vec().into(),
            ..Publish::default()
        };
        broker.publish(&message).await.step("publish")?;
        let delivery = consumer.take().await?;
        ensure!(
            delivery.message.data == payload,
            "{} bytes came of {}",
            delivery.message.data.len(),
            payload.len()
        );
        ensure!(
            *delivery.message.topic == *topic,
            "topic {:?}",
            delivery.message.topic
        );
        delivery.receipt.acknowledge();
    }
    consumer.end().await?;
    settled(&broker).await
}

async fn bulk<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("bulk").await?;
    let topic = brokers.topic("bulk");
    let mut consumer = Consumer::start(&broker, &topic, 100).await?;
    let entry = |number: usize| BulkEntry {
        id: format!("id-{number}"),
        data: format!("{number}").into(),
        ..BulkEntry::default()
    };
    let mut request = BulkPublish {
        topic: topic.clone(),
        ..BulkPublish::default()
    };
    let failed = broker.publish_bulk(&request).await.step("an empty bulk")?;
    ensure!(failed.is_empty(), "of no entries some failed: {failed:?}");
    request.entries = (0..100).map(entry).collect();
    let failed = broker.publish_bulk(&request).await.step("bulk")?;
    ensure!(failed.is_empty(), "{failed:?}");
    let texts = consumer.acknowledge(100).await?;
    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    ensure!(texts == expected, "a bulk came as {texts:?}");
    // One invalid entry does not affect the others.
    if broker.features().ttl {
        request.entries.truncate(3);
        request.entries[1]
            .metadata
            .insert("ttlInSeconds".to_owned(), "soon".to_owned());
        let failed = broker.publish_bulk(&request).await.step("bulk")?;
        let ids: Vec<_> = failed.iter().map(|failed| failed.id.as_str()).collect();
        ensure!(ids == ["id-1"], "failed: {failed:?}");
        ensure!(failed[0].error.kind() == Kind::InvalidRequest, "{failed:?}");
        let texts = consumer.acknowledge(2).await?;
        ensure!(texts == ["0", "2"], "{texts:?}");
    }
    consumer.end().await?;
    settled(&broker).await
}

async fn groups<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let (one, two) = (brokers.group("one").await?, brokers.group("two").await?);
    if !brokers.rules.groups {
        return Ok(());
    }
    let topic = brokers.topic("groups");
    let mut first = Consumer::start(&one, &topic, 8).await?;
    let mut second = Consumer::start(&two, &topic, 8).await?;
    publish(&one, &topic, &["a", "b", "c"]).await?;
    for consumer in [&mut first, &mut second] {
        let texts = consumer.acknowledge(3).await?;
        ensure!(texts == ["a", "b", "c"], "{texts:?}");
    }
    first.end().await?;
    second.end().await?;
    settled(&one).await?;
    settled(&two).await
}

async fn competing<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.groups {
        return Ok(());
    }
    let (one, two) = (brokers.group("share").await?, brokers.group("share").await?);
    let topic = brokers.topic("share");
    let mut first = Consumer::start(&one, &topic, 4).await?;
    let mut second = Consumer::start(&two, &topic, 4).await?;
    let texts: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    publish(&one, &topic, &borrowed).await?;
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let (mut each, mut held) = ([0, 0], Vec::new());
    while seen.len() < texts.len() {
        let (index, delivery) = tokio::select! {
            delivery = first.take() => (0, delivery?),
            delivery = second.take() => (1, delivery?),
        };
        each[index] += 1;
        *seen.entry(data(&delivery)).or_default() += 1;
        held.push(delivery);
        // Neither consumer settles before both have received a message.
        if each.iter().all(|count| *count > 0) {
            held.drain(..).for_each(|delivery| delivery.receipt.acknowledge());
        }
    }
    ensure!(seen.values().all(|count| *count == 1), "duplicates: {seen:?}");
    first.end().await?;
    second.end().await?;
    settled(&one).await?;
    settled(&two).await
}

async fn returned<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.redelivers {
        return Ok(());
    }
    let broker = brokers.group("again").await?;
    let topic = brokers.topic("again");
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    publish(&broker, &topic, &["again"]).await?;
    consumer.take().await?.receipt.reject();
    // Dropping a delivery returns it.
    drop(consumer.take().await.step("after it was returned")?);
    let last = consumer.take().await.step("after it was dropped")?;
    ensure!(data(&last) == "again", "{:?}", data(&last));
    ensure!(
        last.message.redelivered.is_none_or(|count| count > 0),
        "it does not count as delivered again"
    );
    last.receipt.acknowledge();
    consumer.quiet().await.step("after it was acknowledged")?;
    consumer.end().await?;
    settled(&broker).await
}

async fn bounded<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("bounded").await?;
    let topic = brokers.topic("bounded");
    let mut consumer = Consumer::start(&broker, &topic, 3).await?;
    publish(&broker, &topic, &["a", "b", "c", "d", "e"]).await?;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(consumer.take().await?);
    }
    consumer.quiet().await.step("three are in flight")?;
    held.remove(0).receipt.acknowledge();
    held.push(consumer.take().await?);
    consumer.quiet().await.step("three are in flight again")?;
    for delivery in held {
        delivery.receipt.acknowledge();
    }
    consumer.acknowledge(1).await?;
    consumer.end().await?;
    settled(&broker).await
}

async fn drained<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("drained").await?;
    let topic = brokers.topic("drained");
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    publish(&broker, &topic, &["under way"]).await?;
    let delivery = consumer.take().await?;
    let mut ending = Box::pin(consumer.end());
    let early = timeout(A_WHILE, &mut ending).await;
    ensure!(early.is_err(), "it ended before the app did: {early:?}");
    delivery.receipt.acknowledge();
    ending.await?;
    if brokers.rules.keeps {
        let mut consumer = Consumer::start(&broker, &topic, 4).await?;
        consumer
            .quiet()
            .await
            .step("it was acknowledged while draining")?;
        consumer.end().await?;
    }
    settled(&broker).await
}

async fn waiting<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.keeps {
        return Ok(());
    }
    let topic = brokers.topic("waiting");
    let broker = brokers.group("waiting").await?;
    Consumer::start(&broker, &topic, 4).await?.end().await?;
    publish(&broker, &topic, &["a", "b"]).await?;
    settled(&broker).await?;
    let broker = brokers.group("waiting").await?;
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    let texts = consumer.acknowledge(2).await?;
    ensure!(texts == ["a", "b"], "{texts:?}");
    consumer.end().await?;
    settled(&broker).await
}

async fn unsettled<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.keeps {
        return Ok(());
    }
    let topic = brokers.topic("unsettled");
    let broker = brokers.group("unsettled").await?;
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    publish(&broker, &topic, &["a"]).await?;
    let held = consumer.take().await?;
    settled(&broker).await?;
    let broker = brokers.group("unsettled").await?;
    let mut next = Consumer::start(&broker, &topic, 4).await?;
    let again = next.take().await.step("after its consumer was closed")?;
    // Too late: another consumer has it.
    held.receipt.acknowledge();
    ensure!(data(&again) == "a", "{:?}", data(&again));
    again.receipt.acknowledge();
    next.end().await?;
    settled(&broker).await
}

async fn expired<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("expired").await?;
    let Features { ttl, .. } = broker.features();
    if !ttl || !brokers.rules.keeps {
        return settled(&broker).await;
    }
    let topic = brokers.topic("expired");
    Consumer::start(&broker, &topic, 4).await?.end().await?;
    let message = |text: &str, ttl: &str| Publish {
        topic: topic.clone(),
        data: text.to_owned().into(),
        metadata: [("ttlInSeconds".to_owned(), ttl.to_owned())].into(),
        ..Publish::default()
    };
    broker.publish(&message("short", "1")).await.step("publish")?;
    broker.publish(&message("long", "600")).await.step("publish")?;
    let wrong = broker.publish(&message("none", "soon")).await;
    let kind = wrong.map_err(|error| error.kind());
    ensure!(kind == Err(Kind::InvalidRequest), "a TTL that is none: {kind:?}");
    sleep(Duration::from_millis(1500)).await;
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    let texts = consumer.acknowledge(1).await?;
    ensure!(texts == ["long"], "{texts:?}");
    consumer.quiet().await?;
    consumer.end().await?;
    settled(&broker).await
}

async fn wildcard<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("wildcard").await?;
    let Some((pattern, below)) = brokers.rules.wildcard else {
        ensure!(
            !broker.features().wildcards,
            "there are wildcards, but no pattern"
        );
        return settled(&broker).await;
    };
    let base = brokers.topic("wildcard");
    let topic = format!("{base}{below}");
    let mut consumer = Consumer::start(&broker, &format!("{base}{pattern}"), 4).await?;
    publish(&broker, &format!("other-{topic}"), &["not this"]).await?;
    publish(&broker, &topic, &["this"]).await?;
    let delivery = consumer.take().await?;
    ensure!(data(&delivery) == "this", "{:?}", data(&delivery));
    ensure!(
        *delivery.message.topic == *topic,
        "topic {:?}",
        delivery.message.topic
    );
    delivery.receipt.acknowledge();
    consumer.end().await?;
    settled(&broker).await
}

async fn closed<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    let broker = brokers.group("closed").await?;
    let topic = brokers.topic("closed");
    let mut consumer = Consumer::start(&broker, &topic, 4).await?;
    settled(&broker).await?;
    settled(&broker).await.step("close again")?;
    let ended = timeout(SOON, consumer.subscription.next()).await;
    let ended = ended.step("the subscription ends with its component")?;
    ensure!(ended.is_none(), "a message after closing: {ended:?}");
    let message = Publish {
        topic: topic.clone(),
        ..Publish::default()
    };
    let after = broker.publish(&message).await.map_err(|error| error.kind());
    ensure!(after == Err(Kind::Closed), "publishing after closing: {after:?}");
    let after = broker.subscribe(consumer::request(&topic, 4)).await;
    let after = after.map(drop).map_err(|error| error.kind());
    ensure!(after == Err(Kind::Closed), "subscribing after closing: {after:?}");
    Ok(())
}
