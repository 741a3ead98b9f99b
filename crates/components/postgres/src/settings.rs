use std::time::Duration;

use outrigger_component::{Error, GoDuration, Kind, Metadata, MetadataError, Result, Unit};
use outrigger_postgres::{Connection, Pairs, Tls, TlsError, parse, prepares};

use super::connector::Connector;

const NAMES: &[&str] = &["connectionString", "url"];

/// Properties shared by all PostgreSQL components.
pub(super) struct Settings {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: Tls,
    /// Timeout per operation.
    pub(super) timeout: Duration,
    pub(super) most_connections: usize,
    pub(super) idle: Duration,
    /// Whether statements are prepared once per connection; connection poolers may forbid it.
    pub(super) prepare: bool,
}

impl Settings {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        for (name, what) in [("useAzureAD", "Entra ID"), ("useAWSIAM", "AWS IAM")] {
            if metadata.flag(&[name], false) {
                let expected = format!("this build cannot sign in with {what}; use a user and a password");
                return Err(metadata.wrong(&[name], &expected).into());
            }
        }
        let mut pairs = pairs(metadata)?;
        let timeout = metadata.span(
            &["timeout", "timeoutInSeconds"],
            Duration::from_secs(20),
            Duration::from_secs(1),
        )?;
        let most: Option<usize> = metadata.number(&["maxConns"])?;
        let from_text = pairs.remove("pool_max_conns").and_then(|text| text.parse().ok());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let idle = metadata.duration(&["connectionMaxIdleTime", "connMaxIdleTime"], Unit::Seconds)?;
        let in_text = pairs.remove("default_query_exec_mode");
        let mode = metadata.filled(&["queryExecMode"]).map(str::to_owned).or(in_text);
        let wrong = |expected: &str| metadata.wrong(&["queryExecMode"], expected);
        let prepare = prepares(mode.as_deref()).map_err(wrong)?;
        let read = Connection::new(pairs, timeout);
        let Connection { config, tls } = read.map_err(|expected| metadata.wrong(NAMES, &expected))?;
        Ok(Self {
            config,
            tls,
            timeout,
            most_connections: most
                .filter(|most| *most > 1)
                .or(from_text)
                .unwrap_or_else(|| processors.max(4)),
            idle: idle
                .and_then(GoDuration::positive)
                .unwrap_or(Duration::from_secs(30 * 60)),
            prepare,
        })
    }
}

impl Settings {
    /// A connector with this answer limit, and the configuration for it.
    pub(super) fn connector(&self, max_answer: usize) -> Result<(Connector, tokio_postgres::Config)> {
        let wrong = |error: TlsError| Error::new(Kind::Configuration, error.what).because(error.cause);
        let tls = self.tls.connector().map_err(wrong)?;
        Ok(Connector::new(tls, self.tls.mode, &self.config, max_answer))
    }
}

/// The connection string overridden by the separate properties.
fn pairs(metadata: &Metadata) -> Result<Pairs, MetadataError> {
    let text = metadata.text(NAMES).unwrap_or_default();
    let mut pairs = parse(text.trim()).map_err(|expected| metadata.wrong(NAMES, &expected))?;
    for (property, name) in [
        ("host", "host"),
        ("hostaddr", "hostaddr"),
        ("port", "port"),
        ("database", "dbname"),
        ("user", "user"),
        ("password", "password"),
        ("sslRootCert", "sslrootcert"),
    ] {
        if let Some(value) = metadata.filled(&[property]) {
            pairs.insert(name.to_owned(), value.to_owned());
        }
    }
    if pairs.is_empty() {
        metadata.required(NAMES)?;
    }
    Ok(pairs)
}

/// A table name, optionally with a schema.
pub(super) fn table(metadata: &Metadata, property: &str, default: &str) -> Result<String, MetadataError> {
    let name = metadata.filled(&[property]).unwrap_or(default);
    check_table(metadata, property, name)?;
    Ok(name.to_owned())
}

pub(super) fn check_table(metadata: &Metadata, property: &str, name: &str) -> Result<(), MetadataError> {
    let fine = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | '"');
    if name.chars().all(fine) && name.matches('"').count().is_multiple_of(2) {
        return Ok(());
    }
    Err(metadata.wrong(&[property], "it must be a table name, or SCHEMA.TABLE"))
}

/// `cleanupInterval`: one hour by default; disabled by zero or a negative value.
pub(super) fn cleanup_interval(metadata: &Metadata) -> Result<Option<Duration>, MetadataError> {
    let names = ["cleanupInterval", "cleanupIntervalInSeconds"];
    let default = Duration::from_secs(3600);
    if metadata.text(&names).is_some_and(str::is_empty) {
        return Ok(Some(default));
    }
    let given = metadata.duration(&names, Unit::Seconds)?;
    Ok(given.map_or(Some(default), GoDuration::positive))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(properties: &[(&str, &str)]) -> Result<Settings> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Metadata::new("store", owned).unwrap())
    }

    #[test]
    fn properties_override_connection_string() {
        let read = settings(&[
            (
                "connectionString",
                "host=a user=me password=old search_path=x pool_max_conns=7",
            ),
            ("host", "b"),
            ("password", "new"),
            ("port", "5433"),
        ])
        .unwrap();
        assert_eq!(read.config.get_password(), Some(&b"new"[..]));
        assert_eq!(read.config.get_user(), Some("me"));
        assert_eq!(read.config.get_ports(), [5433]);
        assert_eq!(read.config.get_options(), Some("-c search_path=x"));
        assert_eq!(read.most_connections, 7);
        assert!(read.prepare);
    }

    #[test]
    fn errors_name_property_and_hide_password() {
        for properties in [
            &[][..],
            &[("connectionString", "hunter2")],
            &[("connectionString", "host=a password=hunter2 port=x")],
            &[("connectionString", "host=a"), ("queryExecMode", "fast")],
            &[("connectionString", "host=a"), ("timeout", "10ms")],
            &[("connectionString", "host=a"), ("useAzureAD", "true")],
        ] {
            let error = settings(properties).map(drop).unwrap_err().to_string();
            assert!(
                error.contains("component store") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn only_default_mode_prepares_statements() {
        for (mode, prepare) in [
            ("cache_statement", true),
            ("cache_describe", false),
            ("describe_exec", false),
            ("exec", false),
            ("simple_protocol", false),
        ] {
            let read = settings(&[("url", "host=a"), ("queryExecMode", mode)]).unwrap();
            assert_eq!(read.prepare, prepare, "{mode}");
            let text = format!("host=a default_query_exec_mode={mode}");
            assert_eq!(settings(&[("url", &text)]).unwrap().prepare, prepare, "{mode}");
        }
        let both = [
            ("url", "host=a default_query_exec_mode=exec"),
            ("queryExecMode", "cache_statement"),
        ];
        assert!(settings(&both).unwrap().prepare);
    }

    #[test]
    fn table_names_cannot_inject_sql() {
        for (name, fine) in [
            ("state", true),
            ("my.state", true),
            ("\"A\".b", true),
            ("a;b", false),
            ("a b", false),
        ] {
            let metadata = Metadata::new("s", [("tableName".to_owned(), name.to_owned())]).unwrap();
            assert_eq!(table(&metadata, "tableName", "state").is_ok(), fine, "{name}");
        }
    }
}
