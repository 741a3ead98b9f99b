//! Settings of the SQLite resolver.

use std::time::Duration;

use outrigger_sqlite::{ConnectionString, PragmaError};
use serde_json::Value;

use crate::{
    Registration,
    settings::{Settings, SettingsError},
};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_millis(800);
const DEFAULT_UPDATE_INTERVAL: Duration = Duration::from_secs(5);
const DEFAULT_CLEANUP_INTERVAL: Duration = Duration::from_secs(3600);

/// Why a SQLite configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SqliteConfigError {
    /// A setting has the wrong form.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Neither `connectionString` nor its alias `url` is set.
    #[error("missing connection string: set `connectionString` to the path of the database file")]
    MissingConnectionString,
    /// `timeout` is below a second.
    #[error("invalid value for 'timeout': must be greater than 1s")]
    Timeout,
    /// A table name that would need quoting.
    #[error("invalid identifier for {what}: {name} (ASCII letters, digits and underscores only)")]
    Identifier {
        /// The setting that names the table.
        what: &'static str,
        /// The configured name.
        name: String,
    },
    /// `updateInterval` has a fraction of a second.
    #[error("update interval must not contain fractions of seconds")]
    FractionalInterval,
    /// `updateInterval` is too close to `timeout`.
    #[error("update interval must be at least 1s greater than timeout")]
    ShortInterval,
    /// An invalid pragma in the connection string.
    #[error(transparent)]
    Pragma(#[from] PragmaError),
    /// A property of the sidecar is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// Validated settings of the SQLite resolver.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// `file:` URI.
    pub(crate) uri: String,
    pub(crate) memory: bool,
    pub(crate) journal: &'static str,
    /// Pragma statements of the connection string.
    pub(crate) pragmas: Vec<String>,
    pub(crate) timeout: Duration,
    pub(crate) busy_timeout: Duration,
    pub(crate) table: String,
    pub(crate) metadata_table: String,
    pub(crate) update_interval: Duration,
    /// Zero disables clean-up.
    pub(crate) cleanup_interval: Duration,
    pub(crate) app_id: String,
    /// `HOST:PORT` in Dapr's form: IPv6 in brackets.
    pub(crate) address: String,
}

impl Config {
    pub(crate) fn read(
        configuration: &Value,
        registration: &Registration,
    ) -> Result<Self, SqliteConfigError> {
        let settings = Settings::new(configuration)?;
        let config = Self::of(&settings, registration);
        settings.show_unused("sqlite", config.is_ok());
        config
    }

    fn of(settings: &Settings<'_>, registration: &Registration) -> Result<Self, SqliteConfigError> {
        let identity = [
            (registration.app_id.is_empty(), "name"),
            (registration.host_address.is_empty(), "address"),
            (registration.internal_port == 0, "port"),
        ];
        if let Some((_, what)) = identity.into_iter().find(|(missing, _)| *missing) {
            return Err(SqliteConfigError::Missing(what));
        }
        let connection = settings
            .filled(&["connectionString", "url"])?
            .ok_or(SqliteConfigError::MissingConnectionString)?;
        let connection = ConnectionString::parse(&connection)?;
        let identifier = |key: &'static str, what, default| {
            let name = settings.text_or(&[key], default)?;
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.is_empty() || !name.bytes().all(is_plain) {
                return Err(SqliteConfigError::Identifier { what, name });
            }
            Ok(name)
        };
        let config = Self {
            journal: connection.journal(settings.flag(&["disableWAL"])?),
            // All connections to an in-memory database must share it.
            uri: connection.uri(match connection.memory {
                true => Some("shared"),
                false => connection.cache.as_deref(),
            }),
            memory: connection.memory,
            pragmas: connection.pragmas,
            timeout: settings.duration(&["timeout", "timeoutInSeconds"], DEFAULT_TIMEOUT)?,
            busy_timeout: settings.duration(&["busyTimeout"], DEFAULT_BUSY_TIMEOUT)?,
            table: identifier("tableName", "table name", "hosts")?,
            metadata_table: identifier("metadataTableName", "metadata table name", "metadata")?,
            update_interval: settings.duration(&["updateInterval"], DEFAULT_UPDATE_INTERVAL)?,
            cleanup_interval: settings.duration(
                &["cleanupInterval", "cleanupIntervalInSeconds"],
                DEFAULT_CLEANUP_INTERVAL,
            )?,
            app_id: registration.app_id.clone(),
            address: crate::Address::new(&registration.host_address, registration.internal_port).to_string(),
        };
        config.check_intervals()?;
        Ok(config)
    }

    fn check_intervals(&self) -> Result<(), SqliteConfigError> {
        let second = Duration::from_secs(1);
        if self.timeout < second {
            return Err(SqliteConfigError::Timeout);
        }
        if self.update_interval.subsec_nanos() != 0 {
            return Err(SqliteConfigError::FractionalInterval);
        }
        if self.update_interval < self.timeout + second {
            return Err(SqliteConfigError::ShortInterval);
        }
        Ok(())
    }

    /// Interval of renewals: Dapr's (`updateInterval` minus `timeout`), minus a second where possible. Rows
    /// have a resolution of one second, so with Dapr's interval a slightly late renewal makes the app
    /// disappear briefly.
    pub(crate) fn renew_every(&self) -> Duration {
        let second = Duration::from_secs(1);
        (self.update_interval - self.timeout - second).max(second)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn registration() -> Registration {
        Registration {
            app_id: "orders".to_owned(),
            host_address: "10.0.0.1".to_owned(),
            internal_port: 50002,
            ..Registration::default()
        }
    }

    fn read(configuration: Value) -> Result<Config, SqliteConfigError> {
        Config::read(&configuration, &registration())
    }

    #[test]
    fn defaults_match_dapr() {
        let config = read(json!({"connectionString": "data.db"})).unwrap();
        assert_eq!(config.uri, "file:data.db");
        assert_eq!(
            (config.table.as_str(), config.metadata_table.as_str()),
            ("hosts", "metadata")
        );
        assert_eq!(config.journal, "WAL");
        assert_eq!(config.renew_every(), Duration::from_secs(3));
        assert_eq!(config.busy_timeout, Duration::from_millis(800));
        assert_eq!(config.address, "10.0.0.1:50002");
    }

    #[test]
    fn parses_connection_strings() {
        let config = read(json!({
            "url": "file:a.db?_txlock=deferred&mode=ro&_pragma=cache_size(100)", "disableWAL": "no"
        }))
        .unwrap();
        assert_eq!(
            (config.uri.as_str(), config.journal),
            ("file:a.db?mode=ro", "DELETE")
        );
        assert_eq!(config.pragmas, ["PRAGMA cache_size = 100"]);
        let memory = read(json!({"connectionString": ":memory:?cache=private"})).unwrap();
        assert_eq!(
            (memory.uri.as_str(), memory.journal),
            ("file::memory:?cache=shared", "MEMORY")
        );
    }

    #[test]
    fn docs_list_all_settings() {
        let configuration = json!({"connectionString": "data.db"});
        let settings = Settings::new(&configuration).unwrap();
        Config::of(&settings, &registration()).unwrap();
        crate::settings::tests::check_docs("SQLite", &settings);
    }

    #[test]
    fn warns_of_unknown_settings() {
        let warnings = |configuration: Value| crate::settings::tests::warnings(|| drop(read(configuration)));
        let told = warnings(json!({"connectionString": "x.db", "busyTimeut": "1s", "other": 1}));
        let place = "spec.nameResolution.configuration of the Configuration";
        assert_eq!(
            told,
            [
                format!(
                    "name resolver sqlite: the setting busyTimeut is not used ({place}: did you mean busyTimeout?)"
                ),
                format!(
                    "name resolver sqlite: the setting other is not used ({place}: check its name, or remove it)"
                ),
            ]
        );
        // The configuration was not read completely.
        let told = warnings(json!({"conectionString": "x.db", "other": 1}));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("did you mean connectionString?"), "{told:?}");
    }

    #[test]
    fn rejects_bad_settings() {
        type E = SqliteConfigError;
        let with =
            |key: &str, value: &str| read(json!({"connectionString": "x.db", key: value})).unwrap_err();
        assert_eq!(read(json!({})).unwrap_err(), E::MissingConnectionString);
        assert_eq!(with("timeout", "500ms"), E::Timeout);
        assert_eq!(with("updateInterval", "2500ms"), E::FractionalInterval);
        assert_eq!(with("updateInterval", "1s"), E::ShortInterval);
        assert!(matches!(with("tableName", "a;b"), E::Identifier { .. }));
        let pragma = read(json!({"connectionString": "x.db?_pragma=Journal_Mode(OFF)"})).unwrap_err();
        assert!(matches!(pragma, E::Pragma(PragmaError::Forbidden { .. })));
    }
}
