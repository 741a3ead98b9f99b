//! Queues that exist with other arguments.

use lapin::{Channel, types::AMQPValue};

use super::*;

async fn declare(channel: &Channel, name: &str, arguments: &[(&str, &str)]) {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), AMQPValue::LongString((*value).into()));
    }
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel.queue_declare(name.into(), durable, table).await.unwrap();
}

pub(super) async fn uses_compatible_existing_queues(url: &str) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    const QUORUM: &[(&str, &str)] = &[("x-queue-type", "quorum")];
    for (topic, letters, queue) in [
        ("quorum-letters", Some(QUORUM), None),
        ("letters-in-memory", Some(&[][..]), None),
        (
            "letters-that-expire",
            Some(&[("x-overflow", "drop-head")][..]),
            None,
        ),
        (
            "quorum-queue",
            None,
            Some([QUORUM, &[("x-dead-letter-exchange", "dlx-e-quorum-queue")]].concat()),
        ),
        (
            "untyped-queue",
            None,
            Some(vec![("x-dead-letter-exchange", "dlx-e-untyped-queue")]),
        ),
    ] {
        if let Some(arguments) = letters {
            declare(&channel, &format!("dlq-e-{topic}"), arguments).await;
        }
        if let Some(arguments) = queue {
            declare(&channel, &format!("e-{topic}"), &arguments).await;
        }
        let broker = open(url, "e", &[("enableDeadLetter", "true")]).await.unwrap();
        let mut subscription = subscribe(&broker, topic, &[]).await.unwrap();
        broker.publish(&message(topic, topic, &[])).await.unwrap();
        next(&mut subscription).await.receipt.reject();
        let letter = async {
            loop {
                let queue = format!("dlq-e-{topic}");
                let got = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true });
                if let Some(got) = got.await.unwrap() {
                    break got.delivery.data;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert_eq!(
            tokio::time::timeout(SOON, letter).await.unwrap(),
            topic.as_bytes()
        );
        subscription.ended().await.unwrap();
        broker.close().await;
    }
    connection.close(200, "OK".into()).await.unwrap();
}

/// RabbitMQ rejects auto-delete quorum queues, and auto-delete is the default.
pub(super) async fn quorum_queue_works_with_defaults(url: &str) {
    let broker = open(url, "q", &[("enableDeadLetter", "true")]).await.unwrap();
    for (topic, metadata) in [
        ("quorum-new", &[("queueType", "quorum")][..]),
        ("quorum-again", &[]),
        ("quorum-again", &[("queueType", "quorum")]),
    ] {
        let mut subscription = subscribe(&broker, topic, metadata).await.unwrap();
        broker.publish(&message(topic, "x", &[])).await.unwrap();
        next(&mut subscription).await.receipt.acknowledge();
        if metadata.is_empty() {
            // The queue must survive until the next consumer subscribes.
            let second = subscribe(&broker, topic, &[("queueType", "quorum")])
                .await
                .unwrap();
            second.ended().await.unwrap();
        }
        subscription.ended().await.unwrap();
    }
    broker.close().await;
}

pub(super) async fn names_missing_requirement_and_remedy(url: &str) {
    let connection = Connection::connect(url, ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    declare(&channel, "n-plain", &[]).await;
    declare(&channel, "n-stream", &[("x-queue-type", "stream")]).await;
    let letters = [("enableDeadLetter", "true"), ("deletedWhenUnused", "false")];
    for (settings, metadata, named) in [
        (
            &letters[..],
            &[][..],
            ["x-dead-letter-exchange", "enableDeadLetter"],
        ),
        (
            &letters[1..],
            &[("singleActiveConsumer", "true")],
            ["x-single-active-consumer", "singleActiveConsumer"],
        ),
        (&letters[1..], &[("maxLen", "5")], ["x-max-length", "maxLen"]),
    ] {
        let broker = open(url, "n", settings).await.unwrap();
        let error = subscribe(&broker, "plain", metadata).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), Kind::Configuration, "{error}");
        let error = error.to_string();
        for part in named.into_iter().chain(["n-plain", "delete the queue"]) {
            assert!(error.contains(part), "{part}: {error}");
        }
        broker.close().await;
    }
    let broker = open(url, "n", &[]).await.unwrap();
    let error = subscribe(&broker, "stream", &[]).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("x-queue-type stream"), "{error}");
    let metadata = [("queueType", "quorum"), ("maxPriority", "3")];
    let error = subscribe(&broker, "priority", &metadata)
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("maxPriority"), "{error}");
    broker.close().await;
    connection.close(200, "OK".into()).await.unwrap();
}
