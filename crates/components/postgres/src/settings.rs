use std::{collections::BTreeMap, time::Duration};

use outrigger_component::{GoDuration, Metadata, MetadataError, Result, Unit};
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::{
    connector::Connector,
    dsn,
    tls::{Tls, Trust},
};

const NAMES: &[&str] = &["connectionString", "url"];
/// How long a connection may be silent before the system asks whether the server is still there.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The properties all stores on PostgreSQL share.
pub(super) struct Settings {
    pub(super) config: tokio_postgres::Config,
    pub(super) tls: Tls,
    /// Per operation.
    pub(super) timeout: Duration,
    pub(super) most_connections: usize,
    pub(super) idle: Duration,
    /// Whether statements are prepared once per connection; poolers in between may forbid it.
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
        pairs.retain(|name, _| !name.starts_with("pool_"));
        let in_text = pairs.remove("default_query_exec_mode");
        let mode = metadata.filled(&["queryExecMode"]).map(str::to_owned).or(in_text);
        let prepare = match mode.as_deref() {
            None | Some("cache_statement") => true,
            // What is kept is the description, not a statement on the server.
            Some("cache_describe" | "describe_exec" | "exec" | "simple_protocol") => false,
            Some(_) => {
                let expected =
                    "it must be cache_statement, cache_describe, describe_exec, exec or simple_protocol";
                return Err(metadata.wrong(&["queryExecMode"], expected).into());
            }
        };
        let tls = tls(metadata, &mut pairs)?;
        Ok(Self {
            config: config(metadata, pairs, &tls, timeout)?,
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
    /// What connects, with answers of at most so many bytes, and the configuration for it.
    pub(super) fn connector(&self, max_answer: usize) -> Result<(Connector, tokio_postgres::Config)> {
        let tls = self.tls.connector()?;
        Ok(Connector::new(tls, self.tls.mode, &self.config, max_answer))
    }
}

/// The connection string with the separate properties over it.
fn pairs(metadata: &Metadata) -> Result<BTreeMap<String, String>, MetadataError> {
    let text = metadata.text(NAMES).unwrap_or_default();
    let mut pairs = dsn::parse(text.trim()).map_err(|expected| metadata.wrong(NAMES, &expected))?;
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

fn tls(metadata: &Metadata, pairs: &mut BTreeMap<String, String>) -> Result<Tls, MetadataError> {
    let root = pairs.remove("sslrootcert");
    let (mode, trust) = match pairs.remove("sslmode").as_deref() {
        Some("disable") => (SslMode::Disable, Trust::Anything),
        None | Some("" | "allow" | "prefer") => (SslMode::Prefer, Trust::Anything),
        // As libpq does for compatibility: with a root certificate it is checked.
        Some("require") if root.is_none() => (SslMode::Require, Trust::Anything),
        Some("require" | "verify-ca") => (SslMode::Require, Trust::Authority),
        Some("verify-full") => (SslMode::Require, Trust::AuthorityAndName),
        Some(_) => {
            let expected = "sslmode must be disable, allow, prefer, require, verify-ca or verify-full";
            return Err(metadata.wrong(NAMES, expected));
        }
    };
    Ok(Tls {
        mode,
        trust,
        root,
        name_server: pairs.remove("sslsni").is_none_or(|text| text != "0"),
        certificate: pairs.remove("sslcert"),
        key: pairs.remove("sslkey"),
    })
}

fn config(
    metadata: &Metadata,
    mut pairs: BTreeMap<String, String>,
    tls: &Tls,
    timeout: Duration,
) -> Result<tokio_postgres::Config, MetadataError> {
    let wrong = |what: &str| metadata.wrong(NAMES, what);
    let mut config = tokio_postgres::Config::new();
    config
        .ssl_mode(tls.mode)
        .connect_timeout(timeout)
        .keepalives(true)
        .keepalives_idle(KEEPALIVE)
        .keepalives_interval(KEEPALIVE / 3)
        .keepalives_retries(3)
        .tcp_user_timeout(KEEPALIVE * 2)
        .target_session_attrs(target(metadata, &mut pairs)?);
    refuse_client_keys(metadata, &mut pairs)?;
    let host = pairs.remove("host");
    let address = pairs.remove("hostaddr");
    for host in host
        .as_deref()
        .or(address.as_deref())
        .unwrap_or("localhost")
        .split(',')
    {
        config.host(host.trim());
    }
    for address in address.iter().flat_map(|text| text.split(',')) {
        config.hostaddr(
            address
                .trim()
                .parse()
                .map_err(|_| wrong("hostaddr must be an IP address"))?,
        );
    }
    for port in pairs.remove("port").iter().flat_map(|text| text.split(',')) {
        config.port(port.trim().parse().map_err(|_| wrong("port must be a number"))?);
    }
    if let Some(seconds) = pairs.remove("connect_timeout") {
        let seconds: u64 = seconds
            .parse()
            .map_err(|_| wrong("connect_timeout must be a number"))?;
        if seconds > 0 {
            config.connect_timeout(Duration::from_secs(seconds).min(timeout));
        }
    }
    if let Some(user) = pairs.remove("user") {
        config.user(user);
    }
    if let Some(password) = pairs.remove("password") {
        config.password(password);
    }
    if let Some(database) = pairs.remove("dbname") {
        config.dbname(database);
    }
    config.application_name(
        pairs
            .remove("application_name")
            .unwrap_or_else(|| "daprd".to_owned()),
    );
    // What is left are settings of the session.
    let mut options = pairs.remove("options").unwrap_or_default();
    for (name, value) in pairs {
        if !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        {
            return Err(wrong(
                "it has a key that is not a valid name of a PostgreSQL setting",
            ));
        }
        let value = value.replace('\\', "\\\\").replace(' ', "\\ ");
        options.push_str(&format!(" -c {name}={value}"));
    }
    if !options.is_empty() {
        config.options(options.trim());
    }
    Ok(config)
}

/// Which of several hosts will do.
fn target(
    metadata: &Metadata,
    pairs: &mut BTreeMap<String, String>,
) -> Result<TargetSessionAttrs, MetadataError> {
    match pairs.remove("target_session_attrs").as_deref() {
        None | Some("" | "any") => Ok(TargetSessionAttrs::Any),
        Some("read-write" | "primary") => Ok(TargetSessionAttrs::ReadWrite),
        Some("read-only" | "standby") => Ok(TargetSessionAttrs::ReadOnly),
        Some(_) => {
            let expected = "target_session_attrs must be any, read-write, primary, read-only or standby";
            Err(metadata.wrong(NAMES, expected))
        }
    }
}

/// Keys that are for the client: the server knows no such settings.
fn refuse_client_keys(
    metadata: &Metadata,
    pairs: &mut BTreeMap<String, String>,
) -> Result<(), MetadataError> {
    for (key, instead) in [
        ("passfile", "use password"),
        ("sslpassword", "use a key file that is not encrypted"),
        ("service", "write out what the service file has"),
        ("servicefile", "write out what the service file has"),
    ] {
        if pairs.remove(key).is_some_and(|text| !text.is_empty()) {
            let expected = format!("this build does not support {key} in it; {instead}");
            return Err(metadata.wrong(NAMES, &expected));
        }
    }
    // Without meaning here: how Kerberos names the server, and the sizes of the original's caches.
    for key in [
        "krbspn",
        "krbsrvname",
        "statement_cache_capacity",
        "description_cache_capacity",
    ] {
        pairs.remove(key);
    }
    Ok(())
}

/// A table name, perhaps with a schema.
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

/// `cleanupInterval`: an hour, unless switched off with zero or less.
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
    fn properties_win_over_the_connection_string() {
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
    fn the_ssl_modes_are_those_of_libpq() {
        for (text, mode, trust) in [
            ("host=a", SslMode::Prefer, Trust::Anything),
            ("host=a sslmode=require", SslMode::Require, Trust::Anything),
            (
                "host=a sslmode=require sslrootcert=/ca",
                SslMode::Require,
                Trust::Authority,
            ),
            (
                "host=a sslmode=verify-full",
                SslMode::Require,
                Trust::AuthorityAndName,
            ),
            ("postgres://a?sslmode=disable", SslMode::Disable, Trust::Anything),
        ] {
            let read = settings(&[("url", text)]).unwrap();
            assert_eq!((read.tls.mode, read.tls.trust), (mode, trust), "{text}");
        }
        assert!(settings(&[("url", "host=a sslmode=maybe")]).is_err());
    }

    #[test]
    fn mistakes_name_the_property_and_keep_the_password() {
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
    fn keys_for_the_client_do_not_reach_the_server() {
        let read = settings(&[
            (
                "connectionString",
                "host=a,b target_session_attrs=read-write sslsni=0 krbsrvname=postgres \
                 default_query_exec_mode=exec statement_cache_capacity=0 search_path=x",
            ),
            ("queryExecMode", "cache_statement"),
        ])
        .unwrap();
        assert_eq!(read.config.get_options(), Some("-c search_path=x"));
        assert_eq!(
            read.config.get_target_session_attrs(),
            TargetSessionAttrs::ReadWrite
        );
        assert!(read.prepare && !read.tls.name_server);
        for (key, value) in [
            ("passfile", "/p"),
            ("sslpassword", "x"),
            ("service", "s"),
            ("servicefile", "/s"),
            ("target_session_attrs", "prefer-standby"),
        ] {
            let text = format!("host=a {key}={value}");
            let error = settings(&[("url", &text)]).map(drop).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn only_one_mode_keeps_statements_on_the_server() {
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
    }

    #[test]
    fn table_names_cannot_carry_statements() {
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
