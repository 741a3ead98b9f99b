//! Rules for failing consumers. Invariant: every published message is eventually acknowledged, even if a
//! consumer of the group hangs, rejects or leaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use outrigger_component::{
    PubSub, Result,
    pubsub::{PARTITION_KEY, Publish},
};
use tokio::time::{sleep, timeout};

use super::{
    super::{Findings, Outcome, SOON, Step, ensure, unique},
    PubSubRules, PubSubs,
    consumer::{A_WHILE, Consumer, data, settled},
};

/// Deadline for another consumer to get the messages of one that left.
const RECOVERY: Duration = Duration::from_secs(60);
/// Messages of the rolling restart, and their number of keys.
const MESSAGES: u32 = 120;
const KEYS: u32 = 6;
/// Messages between two restarts, and the number of restarts.
const BETWEEN: usize = 15;
const RESTARTS: usize = 6;

/// Runs the rules for consumers that hang, reject and leave.
///
/// # Panics
/// If a rule is broken.
pub async fn pubsub_members(rules: PubSubRules, open: impl AsyncFn(&str) -> Result<Arc<dyn PubSub>>) {
    let mut findings = Findings::new("pub/sub with faulty consumers");
    let brokers = &PubSubs {
        open: &open,
        run: unique(),
        rules,
    };
    findings.note("a slow consumer holds up itself alone", slow(brokers).await);
    findings.note("poison holds up nobody else", poison(brokers).await);
    findings.note("rolling restarts under load lose nothing", rolling(brokers).await);
    findings.finish();
}

async fn publish(broker: &Arc<dyn PubSub>, topic: &str, key: &str, text: &str) -> Outcome {
    let message = Publish {
        topic: topic.to_owned(),
        data: text.to_owned().into(),
        metadata: [(PARTITION_KEY.to_owned(), key.to_owned())].into(),
        ..Publish::default()
    };
    timeout(SOON, broker.publish(&message))
        .await
        .step("publish")?
        .step("publish")
}

/// One of two consumers holds its message while the other one works.
async fn slow<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.groups {
        return Ok(());
    }
    let group = "share-slow";
    let (one, two) = (brokers.group(group).await?, brokers.group(group).await?);
    let topic = brokers.topic(group);
    let mut slow = Consumer::start(&one, &topic, 1).await?;
    let mut fast = Consumer::start(&two, &topic, 8).await?;
    let mut missing: BTreeSet<String> = (0..40).map(|number: u32| number.to_string()).collect();
    for (number, text) in missing.iter().enumerate() {
        publish(&one, &topic, &format!("key-{}", number % 8), text).await?;
    }
    let held = slow.take().await.step("the slow one gets a message")?;
    let before = missing.len();
    while let Ok(delivery) = fast.take_within(A_WHILE * 5).await {
        missing.remove(&data(&delivery));
        delivery.receipt.acknowledge();
    }
    ensure!(missing.len() < before, "the fast one got nothing meanwhile");
    missing.remove(&data(&held));
    held.receipt.acknowledge();
    while !missing.is_empty() {
        let delivery = tokio::select! {
            delivery = slow.take_within(RECOVERY) => delivery,
            delivery = fast.take_within(RECOVERY) => delivery,
        };
        let delivery = delivery.map_err(|error| format!("{error}; missing: {missing:?}"))?;
        missing.remove(&data(&delivery));
        delivery.receipt.acknowledge();
    }
    slow.end().await?;
    fast.end().await?;
    settled(&one).await?;
    settled(&two).await
}

/// A message that is always rejected, among others of its key and of other keys.
async fn poison<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.redelivers {
        return Ok(());
    }
    let broker = brokers.group("poison").await?;
    let topic = brokers.topic("poison");
    let mut consumer = Consumer::start(&broker, &topic, 8).await?;
    for (key, text) in [
        ("bad", "before"),
        ("bad", "poison"),
        ("good", "a"),
        ("other", "b"),
    ] {
        publish(&broker, &topic, key, text).await?;
    }
    let (mut missing, mut refused) = (BTreeSet::from(["before", "a", "b"]), 0);
    while !missing.is_empty() || refused < 3 {
        let delivery = consumer.take().await;
        let delivery =
            delivery.map_err(|error| format!("{error}; missing: {missing:?}, {refused} refused"))?;
        if data(&delivery) == "poison" {
            refused += 1;
            delivery.receipt.reject();
        } else {
            let text = data(&delivery);
            ensure!(missing.remove(text.as_str()), "{text:?} came again");
            delivery.receipt.acknowledge();
        }
    }
    publish(&broker, &topic, "bad", "after").await?;
    let mut missing = BTreeSet::from(["poison", "after"]);
    while !missing.is_empty() {
        let delivery = consumer.take().await?;
        let text = data(&delivery);
        // If keys keep their order, the rejected message stays first of its key.
        let early = brokers.rules.keys && text == "after" && missing.contains("poison");
        ensure!(!early, "a key went on past a message that was refused");
        ensure!(missing.remove(text.as_str()), "{text:?} came again");
        delivery.receipt.acknowledge();
    }
    consumer.quiet().await.step("all were acknowledged")?;
    consumer.end().await?;
    settled(&broker).await
}

/// Closes and replaces three consumers of a group in turn during work, each holding a message.
async fn rolling<F: AsyncFn(&str) -> Result<Arc<dyn PubSub>>>(brokers: &PubSubs<'_, F>) -> Outcome {
    if !brokers.rules.groups || !brokers.rules.keeps {
        return Ok(());
    }
    let topic = &brokers.topic("share-rolling");
    let open = async || {
        let broker = brokers.group("share-rolling").await?;
        let consumer = Consumer::start(&broker, topic, 4).await?;
        Ok::<_, String>((broker, consumer))
    };
    let mut members = [open().await?, open().await?, open().await?];
    let publisher = brokers.group("publisher").await?;
    let publishing = async {
        for number in 0..MESSAGES {
            let key = format!("key-{}", number % KEYS);
            publish(&publisher, topic, &key, &number.to_string()).await?;
            sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, String>(())
    };
    let consuming = async {
        let mut acknowledged: BTreeSet<u32> = BTreeSet::new();
        let mut by_key: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let (mut came, mut restarts) = (0, 0);
        while acknowledged.len() < MESSAGES as usize {
            let [one, two, three] = &mut members;
            let (index, delivery) = tokio::select! {
                delivery = one.1.take_within(RECOVERY) => (0, delivery),
                delivery = two.1.take_within(RECOVERY) => (1, delivery),
                delivery = three.1.take_within(RECOVERY) => (2, delivery),
            };
            let delivery = delivery.map_err(|error| format!("{error}; {} are done", acknowledged.len()))?;
            came += 1;
            if came % BETWEEN == 0 && restarts < RESTARTS {
                restarts += 1;
                let member = &mut members[index];
                settled(&member.0).await.step("while it has a message")?;
                drop(delivery);
                *member = open().await?;
                continue;
            }
            let number: u32 = data(&delivery).parse().step("number")?;
            delivery.receipt.acknowledge();
            if acknowledged.insert(number) {
                by_key.entry(number % KEYS).or_default().push(number);
            }
        }
        ensure!(restarts == RESTARTS, "only {restarts} restarts");
        let in_order = by_key.values().all(|numbers| numbers.is_sorted());
        ensure!(!brokers.rules.keys || in_order, "keys came as {by_key:?}");
        Ok(())
    };
    let (published, consumed) = tokio::join!(publishing, consuming);
    published?;
    consumed?;
    for (broker, consumer) in members {
        consumer.end().await?;
        settled(&broker).await?;
    }
    settled(&publisher).await
}
