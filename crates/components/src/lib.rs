//! The built-in components. A backend is a module here and a line in [`builtin`].
//!
//! Storage layouts are Dapr's wherever Dapr has the store, so both can work on the same data.

#[cfg(feature = "conversation")]
mod conversation;
#[cfg(feature = "cron")]
mod cron;
#[cfg(feature = "crypto")]
mod crypto;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod deadline;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod distrust;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "in-memory")]
mod in_memory;
#[cfg(feature = "local-secrets")]
mod local_env;
#[cfg(feature = "local-secrets")]
mod local_file;
#[cfg(feature = "local-storage")]
mod local_storage;
#[cfg(feature = "middleware")]
mod middleware;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "pluggable")]
pub mod pluggable;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(
    feature = "conversation",
    feature = "crypto",
    feature = "http",
    feature = "middleware",
    feature = "mqtt",
    feature = "postgres"
))]
mod roots;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod subscriptions;
#[cfg(any(
    feature = "conversation",
    feature = "crypto",
    feature = "http",
    feature = "middleware",
    feature = "mqtt"
))]
mod tls;
#[cfg(any(feature = "conversation", feature = "crypto", feature = "middleware"))]
mod web;

use outrigger_component::Catalog;

#[cfg(all(feature = "crypto", feature = "fuzzing"))]
pub use crypto::fuzz_jwk;

/// Everything this build has.
pub fn builtin() -> Catalog {
    let mut catalog = Catalog::empty();
    #[cfg(feature = "conversation")]
    conversation::add(&mut catalog);
    #[cfg(feature = "cron")]
    cron::add(&mut catalog);
    #[cfg(feature = "crypto")]
    crypto::add(&mut catalog);
    #[cfg(feature = "http")]
    http::add(&mut catalog);
    #[cfg(feature = "in-memory")]
    in_memory::add(&mut catalog);
    #[cfg(feature = "local-secrets")]
    local_env::add(&mut catalog);
    #[cfg(feature = "local-secrets")]
    local_file::add(&mut catalog);
    #[cfg(feature = "local-storage")]
    local_storage::add(&mut catalog);
    #[cfg(feature = "middleware")]
    middleware::add(&mut catalog);
    #[cfg(feature = "mqtt")]
    mqtt::add(&mut catalog);
    #[cfg(feature = "postgres")]
    postgres::add(&mut catalog);
    #[cfg(feature = "redis")]
    redis::add(&mut catalog);
    #[cfg(feature = "sqlite")]
    sqlite::add(&mut catalog);
    catalog
}
