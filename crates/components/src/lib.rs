//! The built-in components. A backend is a module here and a line in [`builtin`].
//!
//! Storage layouts are Dapr's wherever Dapr has the store, so both can work on the same data.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod deadline;
#[cfg(feature = "in-memory")]
mod in_memory;
#[cfg(feature = "local-secrets")]
mod local_env;
#[cfg(feature = "local-secrets")]
mod local_file;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
mod subscriptions;

use outrigger_component::Catalog;

/// Everything this build has.
pub fn builtin() -> Catalog {
    let mut catalog = Catalog::empty();
    #[cfg(feature = "in-memory")]
    in_memory::add(&mut catalog);
    #[cfg(feature = "local-secrets")]
    local_env::add(&mut catalog);
    #[cfg(feature = "local-secrets")]
    local_file::add(&mut catalog);
    #[cfg(feature = "postgres")]
    postgres::add(&mut catalog);
    #[cfg(feature = "redis")]
    redis::add(&mut catalog);
    #[cfg(feature = "sqlite")]
    sqlite::add(&mut catalog);
    catalog
}
