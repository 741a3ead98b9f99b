//! PostgreSQL and what speaks its protocol: `state.postgresql` v1 and v2, `configuration.postgresql`, in Dapr's
//! layouts; `bindings.postgresql`.

mod binding;
mod cell;
mod configuration;
mod connector;
mod dsn;
mod frames;
mod layout;
mod listener;
mod migration;
mod pool;
mod query;
mod session;
mod settings;
mod state;
mod sweep;
mod tls;

use std::sync::Arc;

use outrigger_component::{
    Catalog, ConfigurationStore, Entry, Metadata, OutputBinding, StateStore, catalog::Version,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::layout::Generation;
use self::settings::Settings;

/// What a connection string means: where the server is and as whom to sign in, and how the connection is protected.
/// Both forms of libpq are read, `key=value` pairs and `postgres://` URLs.
///
/// # Errors
/// A text that names what of it cannot be used.
pub fn connection(text: &str) -> Result<(tokio_postgres::Config, MakeRustlsConnect), String> {
    let properties = [("connectionString".to_owned(), text.to_owned())];
    let metadata = Metadata::new("PostgreSQL", properties).map_err(|error| error.to_string())?;
    let settings = Settings::read(&metadata).map_err(|error| error.to_string())?;
    let tls = settings.tls.connector().map_err(|error| error.to_string())?;
    Ok((settings.config, tls))
}

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    for (generation, name, default) in [(Generation::V1, "v1", true), (Generation::V2, "v2", false)] {
        let version = Version::Named { name, default };
        catalog.state.add(Entry::new(
            &["postgresql", "postgres"],
            version,
            move |setup| async move {
                let store = state::open(&setup.metadata, generation).await?;
                Ok(Arc::new(store) as Arc<dyn StateStore>)
            },
        ));
    }
    catalog.configuration.add(Entry::new(
        &["postgresql", "postgres"],
        Version::Only,
        |setup| async move {
            let store = configuration::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn ConfigurationStore>)
        },
    ));
    catalog.output_bindings.add(Entry::new(
        &["postgresql", "postgres"],
        Version::Only,
        |setup| async move {
            let binding = binding::open(&setup.metadata).await?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        },
    ));
}
