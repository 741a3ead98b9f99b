use std::{collections::BTreeMap, sync::Arc};

use outrigger_component::{
    PubSub, Result,
    pubsub::{PARTITION_KEY, Publish},
};

use super::{
    super::{Outcome, Step, ensure},
    PubSubs,
    consumer::{Consumer, data, publish, settled},
};

/// One publisher and one consumer.
pub(super) async fn one_consumer<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(
    brokers: &PubSubs<'_, F>,
) -> Outcome {
    let broker = brokers.group("order").await?;
    let topic = brokers.topic("order");
    let mut consumer = Consumer::start(&broker, &topic, 16).await?;
    let texts: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    publish(&broker, &topic, &borrowed).await?;
    let came = consumer.acknowledge(texts.len()).await?;
    ensure!(came == texts, "they came as {came:?}");
    consumer.end().await?;
    settled(&broker).await
}

/// Two consumers of a group: messages of a key arrive in order and at one consumer at a time.
pub(super) async fn keys<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.keys {
        return Ok(());
    }
    let (one, two) = (brokers.group("keys").await?, brokers.group("keys").await?);
    let topic = brokers.topic("keys");
    let mut first = Consumer::start(&one, &topic, 4).await?;
    let mut second = Consumer::start(&two, &topic, 4).await?;
    for number in 0..30 {
        let message = Publish {
            topic: topic.clone(),
            data: number.to_string().into(),
            metadata: [(PARTITION_KEY.to_owned(), format!("key-{}", number % 3))].into(),
            ..Publish::default()
        };
        one.publish(&message).await.step("publish")?;
    }
    let mut came: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for _ in 0..30 {
        let delivery = tokio::select! {
            delivery = first.take() => delivery?,
            delivery = second.take() => delivery?,
        };
        let key = delivery.message.ordering_key.as_ref();
        let key = key.and_then(|key| key.key.as_ref());
        let Some(key) = key else {
            return Err(format!("{:?} has no key", data(&delivery)));
        };
        let key = String::from_utf8_lossy(key).into_owned();
        came.entry(key)
            .or_default()
            .push(data(&delivery).parse().step("number")?);
        delivery.receipt.acknowledge();
    }
    for (key, numbers) in &came {
        ensure!(
            numbers.is_sorted() && numbers.len() == 10,
            "{key} came as {numbers:?}"
        );
    }
    ensure!(came.len() == 3, "keys: {:?}", came.keys());
    first.end().await?;
    second.end().await?;
    settled(&one).await?;
    settled(&two).await
}

/// One consumer holds several messages of a key and rejects the first with its key. All are redelivered in
/// order, and no later one precedes them.
pub(super) async fn key<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.keys {
        return Ok(());
    }
    let broker = brokers.group("key").await?;
    let topic = brokers.topic("key");
    let mut consumer = Consumer::start(&broker, &topic, 16).await?;
    if !consumer.subscription.keeps_order() {
        consumer.end().await?;
        return settled(&broker).await;
    }
    let send = async |text: &str, key: &str| {
        let message = Publish {
            topic: topic.clone(),
            data: text.to_owned().into(),
            metadata: [(PARTITION_KEY.to_owned(), key.to_owned())].into(),
            ..Publish::default()
        };
        broker.publish(&message).await.step("publish")
    };
    for text in ["1", "2", "3"] {
        send(text, "failing").await?;
    }
    let (first, second, third) = (
        consumer.take().await?,
        consumer.take().await?,
        consumer.take().await?,
    );
    first.receipt.reject_key();
    second.receipt.release(true);
    // The third message, still held by the engine, blocks the others. A later one may already be in transit.
    send("4", "failing").await?;
    send("other", "fine").await?;
    loop {
        let delivery = consumer.take().await?;
        match data(&delivery).as_str() {
            "other" => {
                delivery.receipt.acknowledge();
                break;
            }
            "4" => delivery.receipt.release(true),
            text => return Err(format!("{text:?} came out of order")),
        }
    }
    consumer.quiet().await?;
    third.receipt.release(true);
    let came = consumer.acknowledge(4).await?;
    ensure!(came == ["1", "2", "3", "4"], "they came again as {came:?}");
    consumer.quiet().await?;
    consumer.end().await?;
    settled(&broker).await
}
