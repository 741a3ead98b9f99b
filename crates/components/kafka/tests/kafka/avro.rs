//! Payloads with schemas of a registry.

use outrigger_component::pubsub::{BulkEntry, BulkPublish};
use outrigger_components_testing::registry::{SchemaRegistry, Trouble};

use super::{form::records, group::positions, *};

const ORDER: &str = r#"{"type":"record","name":"Order","fields":[
    {"name":"id","type":"int"},{"name":"note","type":["null","string"],"default":null}]}"#;
/// Credentials `key` and `secret`.
const AUTHORIZATION: &str = "Basic a2V5OnNlY3JldA==";
const AVRO: (&str, &str) = ("valueSchemaType", "Avro");

async fn subscribe_avro(broker: &Arc<dyn PubSub>, topic: &str) -> Subscription {
    let request = Subscribe {
        topic: topic.to_owned(),
        metadata: [("valueschematype".to_owned(), "avro".to_owned())].into(),
        in_flight: NonZeroUsize::new(8).unwrap(),
    };
    broker.subscribe(request).await.unwrap()
}

async fn send(broker: &Arc<dyn PubSub>, topic: &str, key: &str, json: &str) -> Result<()> {
    let message = message(
        topic,
        json,
        &[("partitionKey", key), AVRO, ("rawPayload", "true")],
    );
    broker.publish(&message).await
}

/// A record of another producer.
async fn write(address: &str, topic: &str, key: &str, value: &'static [u8]) {
    let producer = client(address).await.producer().build().await.unwrap();
    let record = krafka::Record::new(topic, value).key(key.to_owned());
    let _sent = producer.send(record).await.unwrap();
}

async fn receive(subscription: &mut Subscription) -> String {
    let delivery = next(subscription).await;
    let text = text(&delivery);
    delivery.receipt.acknowledge();
    text
}

pub(super) async fn payloads_use_registry_schemas(address: &str) {
    let registry = SchemaRegistry::start(Some(AUTHORIZATION)).await;
    registry.register("avro-value", ORDER);
    let url = registry.url();
    let more = [
        ("schemaRegistryURL", url.as_str()),
        ("schemaRegistryAPIKey", "key"),
        ("schemaRegistryAPISecret", "secret"),
    ];
    let plain = open(address, "avro-plain", &more).await.unwrap();
    let with_tags = [&more[..], &[("useAvroJSON", "true")]].concat();
    let tagged = open(address, "avro-tagged", &with_tags).await.unwrap();
    let (mut first, mut second) = (
        subscribe_avro(&plain, "avro").await,
        subscribe_avro(&tagged, "avro").await,
    );
    let mut untouched = {
        let broker = open(address, "avro-bytes", &more).await.unwrap();
        subscribe(&broker, "avro", 8).await
    };
    send(&plain, "avro", "a", "{\"id\":1,\"note\":\"x\"}")
        .await
        .unwrap();
    send(&tagged, "avro", "a", "{\"id\":2,\"note\":{\"string\":\"y\"}}")
        .await
        .unwrap();
    send(&plain, "avro", "a", "null").await.unwrap();
    let written = records(address, "avro", 3).await;
    let values: Vec<_> = written.iter().map(|record| record.value.as_deref()).collect();
    assert_eq!(values[0], Some(&[0, 0, 0, 0, 1, 2, 2, 2, b'x'][..]));
    assert_eq!((values[1].map(<[u8]>::len), values[2]), (Some(9), None));
    for expected in ["{\"id\":1,\"note\":\"x\"}", "{\"id\":2,\"note\":\"y\"}", "null"] {
        assert_eq!(receive(&mut first).await, expected);
    }
    for note in [
        "{\"id\":1,\"note\":{\"string\":\"x\"}}",
        "{\"id\":2,\"note\":{\"string\":\"y\"}}",
        "null",
    ] {
        assert_eq!(receive(&mut second).await, note);
    }
    let bytes = next(&mut untouched).await;
    assert_eq!(bytes.message.data.as_ref(), [0, 0, 0, 0, 1, 2, 2, 2, b'x']);
    bytes.receipt.acknowledge();
    // A schema of another producer.
    registry.register("else", "{\"type\":\"array\",\"items\":\"string\"}");
    write(address, "avro", "b", b"\0\0\0\0\x02\x02\x02z\0").await;
    assert_eq!(receive(&mut first).await, "[\"z\"]");
    // A large payload is offloaded and keeps its place.
    let large = format!("{{\"id\":1,\"note\":\"{}\"}}", "x".repeat(200_000));
    let small = "{\"id\":2,\"note\":null}";
    for json in [&large, small, &large] {
        send(&plain, "avro", "a", json).await.unwrap();
    }
    for json in [&large, small, &large] {
        assert_eq!(&receive(&mut first).await, json);
    }
    bulks(&plain, &mut first).await;
    envelopes(&plain).await;
    for subscription in [first, second, untouched] {
        subscription.ended().await.unwrap();
    }
    plain.close().await;
    tagged.close().await;
}

async fn bulks(broker: &Arc<dyn PubSub>, subscription: &mut Subscription) {
    let entry = |id: &str, data: &'static str| BulkEntry {
        id: id.to_owned(),
        data: data.into(),
        metadata: message("", "", &[AVRO]).metadata,
        ..BulkEntry::default()
    };
    let bulk = BulkPublish {
        topic: "avro".to_owned(),
        entries: vec![
            entry("one", "{\"id\":10}"),
            entry("wrong", "{\"id\":\"eleven\"}"),
            entry("two", "{\"id\":12}"),
        ],
        ..BulkPublish::default()
    };
    let failed = broker.publish_bulk(&bulk).await.unwrap();
    let ids: Vec<_> = failed.iter().map(|failed| failed.id.as_str()).collect();
    assert_eq!(ids, ["wrong"]);
    assert_eq!(failed[0].error.kind(), Kind::InvalidRequest);
    assert!(
        failed[0].error.to_string().contains("field \"id\""),
        "{}",
        failed[0].error
    );
    for id in [10, 12] {
        assert_eq!(
            receive(subscription).await,
            format!("{{\"id\":{id},\"note\":null}}")
        );
    }
}

async fn envelopes(broker: &Arc<dyn PubSub>) {
    let event = "{\"specversion\":\"1.0\",\"id\":\"1\",\"data\":{\"id\":1}}";
    let error = broker
        .publish(&message("avro", event, &[AVRO]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
    assert!(error.to_string().contains("rawPayload=true"), "{error}");
    let error = send(broker, "unknown", "a", "{}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert!(error.to_string().contains("\"unknown-value\""), "{error}");
}

pub(super) async fn unreadable_record_blocks_its_key_only(address: &str) {
    let registry = SchemaRegistry::start(None).await;
    registry.register("unreadable-value", ORDER);
    let url = registry.url();
    let more = [("schemaRegistryURL", url.as_str())];
    let broker = open(address, "unreadable", &more).await.unwrap();
    let mut subscription = subscribe_avro(&broker, "unreadable").await;
    write(address, "unreadable", "bad", b"{\"id\":1}").await;
    // Schema 2 is registered later.
    write(address, "unreadable", "late", b"\0\0\0\0\x02\x08").await;
    send(&broker, "unreadable", "good", "{\"id\":1}").await.unwrap();
    assert_eq!(receive(&mut subscription).await, "{\"id\":1,\"note\":null}");
    quiet(&mut subscription).await;
    registry.register("else", "\"int\"");
    assert_eq!(receive(&mut subscription).await, "4");
    assert_eq!(
        positions(address, "unreadable", "unreadable").await[&0],
        0,
        "the first is not done"
    );
    subscription.ended().await.unwrap();
    broker.close().await;
    // With this setting the record is skipped.
    let more = [&more[..], &[("consumeRetryEnabled", "false")]].concat();
    let broker = open(address, "unreadable", &more).await.unwrap();
    let mut subscription = subscribe_avro(&broker, "unreadable").await;
    let mut again = [receive(&mut subscription).await, receive(&mut subscription).await];
    again.sort();
    assert_eq!(
        again,
        ["4", "{\"id\":1,\"note\":null}"],
        "they were not committed"
    );
    subscription.ended().await.unwrap();
    assert_eq!(positions(address, "unreadable", "unreadable").await[&0], 3);
    broker.close().await;
}

pub(super) async fn loses_nothing_while_registry_is_down(address: &str) {
    let registry = SchemaRegistry::start(None).await;
    registry.register("down-value", ORDER);
    let url = registry.url();
    // Even without redelivery, because the record did not fail.
    let more = [
        ("schemaRegistryURL", url.as_str()),
        ("consumeRetryEnabled", "false"),
    ];
    let broker = open(address, "down", &more).await.unwrap();
    let mut subscription = subscribe_avro(&broker, "down").await;
    send(&broker, "down", "a", "{\"id\":1}").await.unwrap();
    assert_eq!(receive(&mut subscription).await, "{\"id\":1,\"note\":null}");
    registry.trouble(Some(Trouble::Answer(500, String::new(), String::new())));
    write(address, "down", "a", b"\0\0\0\0\x02\x08").await;
    send(&broker, "down", "a", "{\"id\":2}").await.unwrap();
    send(&broker, "down", "b", "{\"id\":3}").await.unwrap();
    assert_eq!(
        receive(&mut subscription).await,
        "{\"id\":3,\"note\":null}",
        "another key, a known schema"
    );
    quiet(&mut subscription).await;
    registry.register("else", "\"int\"");
    registry.trouble(None);
    for expected in ["4", "{\"id\":2,\"note\":null}"] {
        assert_eq!(receive(&mut subscription).await, expected, "in their order");
    }
    // A schema that never arrives delays neither other keys nor the shutdown.
    registry.trouble(Some(Trouble::Hang));
    write(address, "down", "a", b"\0\0\0\0\x03\x08").await;
    send(&broker, "down", "b", "{\"id\":4}").await.unwrap();
    assert_eq!(receive(&mut subscription).await, "{\"id\":4,\"note\":null}");
    subscription.ended().await.unwrap();
    assert_eq!(positions(address, "down", "down").await[&0], 4);
    registry.trouble(Some(Trouble::Answer(503, String::new(), String::new())));
    let other = open(address, "down", &more).await.unwrap();
    let error = send(&other, "down", "a", "{\"id\":1}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&url), "{error}");
    other.close().await;
    broker.close().await;
}

pub(super) async fn avro_needs_registry(address: &str) {
    let broker = open(address, "none", &[]).await.unwrap();
    let error = send(&broker, "none", "a", "{}").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Configuration);
    assert!(error.to_string().contains("schemaRegistryURL"), "{error}");
    let request = Subscribe {
        topic: "none".to_owned(),
        metadata: message("", "", &[AVRO]).metadata,
        in_flight: NonZeroUsize::new(8).unwrap(),
    };
    let error = broker.subscribe(request).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("schemaRegistryURL"), "{error}");
    broker.close().await;
}
