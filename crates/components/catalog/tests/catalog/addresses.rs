//! Errors must not show passwords from addresses.
use outrigger_component::{Metadata, Section, Setup};
use outrigger_components::builtin;

const PASSWORD: &str = "hunter2-hush";

/// The start error of a component whose address is invalid or has no listener.
async fn failure<T: ?Sized>(section: &Section<T>, kind: &str, properties: &[(&str, &str)]) -> String {
    let pairs = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.replace("PASSWORD", PASSWORD)));
    let setup = Setup {
        metadata: Metadata::new("under-test", pairs).unwrap(),
        app_id: "app".to_owned(),
    };
    let built = section.find(kind, "v1").unwrap().build(setup).await;
    built.map(drop).unwrap_err().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hides_passwords_in_addresses() {
    let catalog = builtin();
    let (state, pubsub) = (&catalog.state, &catalog.pubsub);
    let postgres = [("connectionString", "postgres://me:PASSWORD@127.0.0.1:1/x")];
    let failures = [
        failure(state, "state.redis", &[("redisHost", "me:PASSWORD@127.0.0.1:1")]).await,
        failure(
            state,
            "state.redis",
            &[("redisHost", "redis://:PASSWORD@127.0.0.1:1")],
        )
        .await,
        failure(state, "state.etcd", &[("endpoints", "http://me:PASSWORD@host")]).await,
        failure(state, "state.postgresql", &postgres).await,
        failure(
            pubsub,
            "pubsub.kafka",
            &[("brokers", "me:PASSWORD@127.0.0.1:1"), ("authType", "none")],
        )
        .await,
        failure(
            pubsub,
            "pubsub.rabbitmq",
            &[("connectionString", "amqp://me:PASSWORD@127.0.0.1:1")],
        )
        .await,
        failure(
            pubsub,
            "pubsub.jetstream",
            &[("natsURL", "nats://me:PASSWORD@127.0.0.1:1")],
        )
        .await,
        failure(
            pubsub,
            "pubsub.mqtt5",
            &[("url", "mqtt://me:PASSWORD@127.0.0.1:1")],
        )
        .await,
    ];
    for failure in failures {
        assert!(!failure.contains(PASSWORD), "{failure}");
    }
}
