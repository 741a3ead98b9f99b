//! The components in this build, one crate per client library. To add a backend, add a crate and a line in
//! [`builtin`].
//!
//! Storage layouts match Dapr's stores, so both can share data.

use outrigger_component::Catalog;

#[cfg(feature = "pluggable")]
pub use outrigger_components_pluggable as pluggable;

/// All implementations in this build.
pub fn builtin() -> Catalog {
    #[allow(unused_mut, reason = "a build without backends")]
    let mut catalog = Catalog::empty();
    #[cfg(feature = "conversation")]
    outrigger_components_conversation::add(&mut catalog);
    #[cfg(feature = "crypto")]
    outrigger_components_crypto::add(&mut catalog);
    #[cfg(feature = "etcd")]
    outrigger_components_etcd::add(&mut catalog);
    #[cfg(feature = "http")]
    outrigger_components_http::add(&mut catalog);
    #[cfg(feature = "kafka")]
    outrigger_components_kafka::add(&mut catalog);
    #[cfg(feature = "kubernetes")]
    outrigger_components_kubernetes::add(&mut catalog);
    #[cfg(any(
        feature = "cron",
        feature = "in-memory",
        feature = "local-secrets",
        feature = "local-storage"
    ))]
    outrigger_components_local::add(&mut catalog);
    #[cfg(feature = "middleware")]
    outrigger_components_middleware::add(&mut catalog);
    #[cfg(feature = "mqtt")]
    outrigger_components_mqtt::add(&mut catalog);
    #[cfg(feature = "jetstream")]
    outrigger_components_nats::add(&mut catalog);
    #[cfg(feature = "postgres")]
    outrigger_components_postgres::add(&mut catalog);
    #[cfg(feature = "pulsar")]
    outrigger_components_pulsar::add(&mut catalog);
    #[cfg(not(feature = "pulsar"))]
    catalog.pubsub.elsewhere(
        "pulsar",
        "build one that has it with cargo build --release -p outrigger-sidecar --features pulsar; protoc has to be installed",
    );
    #[cfg(feature = "rabbitmq")]
    outrigger_components_rabbitmq::add(&mut catalog);
    #[cfg(feature = "redis")]
    outrigger_components_redis::add(&mut catalog);
    #[cfg(feature = "sqlite")]
    outrigger_components_sqlite::add(&mut catalog);
    catalog
}
