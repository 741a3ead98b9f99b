use std::{path::PathBuf, time::Duration};

use outrigger_component::{Error, Kind, Metadata, Result, Unit};
use outrigger_sqlite::ConnectionString;

/// Settings for opening a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// The property that names the database.
    pub(super) property: &'static str,
    /// SQLite `file:` URI.
    pub(super) uri: String,
    /// The file to create if missing.
    pub(super) creates: Option<PathBuf>,
    /// In memory, visible to exactly one connection.
    pub(super) memory: bool,
    /// Statements for each new connection.
    pub(super) pragmas: Vec<String>,
    pub(super) journal_mode: &'static str,
    /// SQLite's busy timeout; zero disables waiting.
    pub(super) busy_timeout: Duration,
    /// Timeout of a caller.
    pub(super) timeout: Duration,
}

const NAMES: &[&str] = &["connectionString", "url"];
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);
const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(2);

impl Settings {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        let text = metadata.filled(NAMES).ok_or_else(|| {
            // Dapr's text, which tools match.
            let text = "missing connection string; set the metadata property connectionString";
            Error::new(Kind::Configuration, text)
        });
        let connection = text.and_then(|text| {
            let parsed = ConnectionString::parse(text);
            parsed.map_err(|error| metadata.wrong(NAMES, &error.to_string()).into())
        });
        let timeout = metadata.span(
            &["timeout", "timeoutInSeconds"],
            DEFAULT_TIMEOUT,
            Duration::from_secs(1),
        );
        let busy_timeout = metadata.duration(&["busyTimeout"], Unit::Seconds);
        let times = both(timeout.map_err(Error::from), busy_timeout.map_err(Error::from));
        let (connection, (timeout, busy_timeout)) = both(connection, times)?;
        if let Some(txlock) = &connection.txlock
            && !txlock.eq_ignore_ascii_case("immediate")
        {
            tracing::warn!(
                target: "dapr.contrib",
                "component {}: _txlock={txlock} has no effect, transactions are always immediate",
                metadata.component()
            );
        }
        let given = NAMES.iter().find(|name| metadata.text(&[name]).is_some());
        Ok(Self {
            property: given.copied().unwrap_or_default(),
            // A shared cache would join databases of several components.
            uri: connection.uri(None),
            creates: connection.creates(),
            memory: connection.memory,
            journal_mode: connection.journal(metadata.flag(&["disableWAL"], false)),
            pragmas: connection.pragmas,
            busy_timeout: busy_timeout
                .map_or(DEFAULT_BUSY_TIMEOUT, |given| given.positive().unwrap_or_default()),
            timeout,
        })
    }
}

/// Both values, or all errors.
pub(super) fn both<A, B>(first: Result<A>, second: Result<B>) -> Result<(A, B)> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(first), Err(second)) => Err(first.and(second)),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// A table name: ASCII letters, digits, underscores.
pub(super) fn identifier(metadata: &Metadata, property: &str, default: &str) -> Result<String> {
    let name = metadata.filled(&[property]).unwrap_or(default);
    if name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        return Ok(name.to_owned());
    }
    let expected = "invalid identifier: only letters, digits and _ are allowed";
    Err(metadata.wrong(&[property], expected).into())
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::{Components, named};

    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Result<Settings> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Metadata::new("store", owned).unwrap())
    }

    #[test]
    fn converts_paths_to_uris() {
        let read = settings(&[(
            "connectionString",
            "data.db?mode=rwc&_txlock=immediate&_pragma=synchronous(1)&cache=shared",
        )])
        .unwrap();
        assert_eq!(read.uri, "file:data.db?mode=rwc");
        assert_eq!(read.pragmas, ["PRAGMA synchronous = 1"]);
        assert_eq!(read.journal_mode, "WAL");
        assert_eq!(read.busy_timeout, Duration::from_secs(2));
    }

    #[test]
    fn journal_mode_depends_on_database() {
        for (text, wal_off, journal, memory) in [
            (":memory:", "", "MEMORY", true),
            ("file::memory:?cache=shared", "", "MEMORY", true),
            ("file:name?mode=memory&cache=shared", "", "MEMORY", true),
            ("file:x.db?mode=ro", "", "DELETE", false),
            ("x.db", "true", "DELETE", false),
        ] {
            let read = settings(&[("url", text), ("disableWAL", wal_off)]).unwrap();
            assert_eq!((read.journal_mode, read.memory), (journal, memory), "{text}");
        }
    }

    #[test]
    fn rejects_reserved_uri_options() {
        for text in [
            "x.db?_pragma=busy_timeout(1)",
            "x.db?_pragma=Journal_Mode(OFF)",
            "x.db?_pragma=a;b(1)",
        ] {
            assert_eq!(
                settings(&[("url", text)]).unwrap_err().kind(),
                Kind::Configuration
            );
        }
        let error = settings(&[]).unwrap_err().to_string();
        assert!(error.contains("missing connection string"), "{error}");
        assert!(settings(&[("url", "x.db"), ("timeout", "100ms")]).is_err());
    }

    #[test]
    fn reports_all_errors_at_once() {
        let pairs = [
            ("timeout", "100ms"),
            ("busyTimeout", "soon"),
            ("tableName", "a;b"),
        ];
        let wrong = settings(&pairs);
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let table = identifier(&Metadata::new("store", pairs).unwrap(), "tableName", "state");
        let error = both(wrong, table).unwrap_err();
        let text = error.to_string();
        for part in ["missing connection string", "100ms", "soon", "a;b"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let wrong = settings(&[("url", "x.db"), ("timeout", "100ms"), ("busyTimeout", "soon")]).unwrap_err();
        assert_eq!(
            (wrong.kind(), wrong.property()),
            (Kind::Configuration, Some("timeout"))
        );
    }

    /// Errors reported together with another one are not repeated when the rest is read without it.
    #[tokio::test]
    async fn reports_each_error_once() {
        let (names, table) = (["tableName", "metadataTableName"], "a-b");
        let wrong = names.map(|name| (name, table));
        let given = [&wrong[..], &[("timeout", "soon"), ("cleanupInterval", "soon")]].concat();
        let file = [&[("url", "x.db?_pragma=a;b(1)")][..], &given].concat();
        let all = ["timeout", "cleanupInterval", "tableName", "metadataTableName"];
        for (properties, connection) in [(&given, ""), (&file, "url")] {
            let opened = Components::of(crate::add).state("state.sqlite", "v1", properties);
            let told = named(opened.await);
            for name in all.iter().chain([&connection]) {
                let times = told.iter().filter(|told| told == name).count();
                assert_eq!(times, 1, "{name}: {told:?}");
            }
            assert_eq!(told.len(), 5, "{told:?}");
        }
        for kind in ["lock.sqlite", "configuration.sqlite"] {
            let properties = [&[("url", "x.db")][..], &wrong].concat();
            let told = match kind {
                "lock.sqlite" => named(Components::of(crate::add).lock(kind, "v1", &properties).await),
                _ => named(
                    Components::of(crate::add)
                        .configuration(kind, "v1", &properties)
                        .await,
                ),
            };
            assert_eq!(told, names, "{kind}");
        }
    }

    #[test]
    fn table_names_cannot_inject_sql() {
        let name = |value: &str| {
            let pairs = [("tableName".to_owned(), value.to_owned())];
            identifier(&Metadata::new("store", pairs).unwrap(), "tableName", "state")
        };
        assert_eq!(name("my_table2").unwrap(), "my_table2");
        assert_eq!(name("").unwrap(), "state");
        let error = name("x; DROP TABLE y").unwrap_err();
        assert_eq!(
            (error.kind(), error.property()),
            (Kind::Configuration, Some("tableName"))
        );
    }
}
