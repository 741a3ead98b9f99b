//! Interpretation of a connection string.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::dsn::Pairs;
use crate::tls::{Tls, Trust};

/// Idle time of a connection before TCP keep-alive probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Server address, credentials and TLS settings.
#[derive(Debug)]
pub struct Connection {
    /// Configuration of the driver.
    pub config: Config,
    /// TLS settings.
    pub tls: Tls,
}

impl Connection {
    /// Interprets the pairs of a connection string; `timeout` limits the connect time. Settings of pgx's
    /// pool are ignored.
    ///
    /// # Errors
    /// Why a pair is invalid.
    pub fn new(mut pairs: Pairs, timeout: Duration) -> Result<Self, String> {
        pairs.retain(|name, _| !name.starts_with("pool_"));
        let tls = tls(&mut pairs)?;
        let config = config(pairs, &tls, timeout)?;
        Ok(Self { config, tls })
    }
}

/// Whether a `default_query_exec_mode` of pgx prepares statements once per connection; the default does.
///
/// # Errors
/// The valid modes.
pub fn prepares(mode: Option<&str>) -> Result<bool, &'static str> {
    match mode {
        None | Some("cache_statement") => Ok(true),
        // pgx caches the description, not a prepared statement.
        Some("cache_describe" | "describe_exec" | "exec" | "simple_protocol") => Ok(false),
        Some(_) => Err("it must be cache_statement, cache_describe, describe_exec, exec or simple_protocol"),
    }
}

fn tls(pairs: &mut Pairs) -> Result<Tls, String> {
    let root = pairs.remove("sslrootcert");
    let (mode, trust) = match pairs.remove("sslmode").as_deref() {
        Some("disable") => (SslMode::Disable, Trust::Anything),
        None | Some("" | "allow" | "prefer") => (SslMode::Prefer, Trust::Anything),
        // Like libpq, for compatibility: with a root certificate, the server is verified.
        Some("require") if root.is_none() => (SslMode::Require, Trust::Anything),
        Some("require" | "verify-ca") => (SslMode::Require, Trust::Authority),
        Some("verify-full") => (SslMode::Require, Trust::AuthorityAndName),
        Some(_) => {
            let expected = "sslmode must be disable, allow, prefer, require, verify-ca or verify-full";
            return Err(expected.to_owned());
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

fn config(mut pairs: Pairs, tls: &Tls, timeout: Duration) -> Result<Config, String> {
    let mut config = Config::new();
    config
        .ssl_mode(tls.mode)
        .connect_timeout(timeout)
        .keepalives(true)
        .keepalives_idle(KEEPALIVE)
        .keepalives_interval(KEEPALIVE / 3)
        .keepalives_retries(3)
        .tcp_user_timeout(KEEPALIVE * 2)
        .target_session_attrs(target(&mut pairs)?);
    refuse_client_keys(&mut pairs)?;
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
                .map_err(|_| "hostaddr must be an IP address")?,
        );
    }
    for port in pairs.remove("port").iter().flat_map(|text| text.split(',')) {
        config.port(port.trim().parse().map_err(|_| "port must be a number")?);
    }
    if let Some(seconds) = pairs.remove("connect_timeout") {
        let seconds: u64 = seconds.parse().map_err(|_| "connect_timeout must be a number")?;
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
    // The remaining pairs are session settings.
    let mut options = pairs.remove("options").unwrap_or_default();
    for (name, value) in pairs {
        if !name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        {
            return Err("it has a key that is not a valid name of a PostgreSQL setting".to_owned());
        }
        let value = value.replace('\\', "\\\\").replace(' ', "\\ ");
        options.push_str(&format!(" -c {name}={value}"));
    }
    if !options.is_empty() {
        config.options(options.trim());
    }
    Ok(config)
}

/// Which of several hosts is acceptable.
fn target(pairs: &mut Pairs) -> Result<TargetSessionAttrs, String> {
    match pairs.remove("target_session_attrs").as_deref() {
        None | Some("" | "any") => Ok(TargetSessionAttrs::Any),
        Some("read-write" | "primary") => Ok(TargetSessionAttrs::ReadWrite),
        Some("read-only" | "standby") => Ok(TargetSessionAttrs::ReadOnly),
        Some(_) => {
            let expected = "target_session_attrs must be any, read-write, primary, read-only or standby";
            Err(expected.to_owned())
        }
    }
}

/// Rejects or ignores keys for the client, which the server does not know.
fn refuse_client_keys(pairs: &mut Pairs) -> Result<(), String> {
    for (key, instead) in [
        ("passfile", "use password"),
        ("sslpassword", "use a key file that is not encrypted"),
        ("service", "write out what the service file has"),
        ("servicefile", "write out what the service file has"),
    ] {
        if pairs.remove(key).is_some_and(|text| !text.is_empty()) {
            return Err(format!("this build does not support {key} in it; {instead}"));
        }
    }
    // Ignored: the server name for Kerberos, and the cache sizes of pgx.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Connection, String> {
        Connection::new(crate::parse(text)?, Duration::from_secs(1))
    }

    #[test]
    fn ssl_modes_match_libpq() {
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
            let tls = read(text).unwrap().tls;
            assert_eq!((tls.mode, tls.trust), (mode, trust), "{text}");
        }
        assert!(read("host=a sslmode=maybe").is_err());
    }

    #[test]
    fn client_keys_are_not_sent() {
        let text = "host=a,b target_session_attrs=read-write sslsni=0 krbsrvname=postgres pool_max_conns=7 \
                    statement_cache_capacity=0 search_path=x";
        let Connection { config, tls } = read(text).unwrap();
        assert_eq!(config.get_options(), Some("-c search_path=x"));
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert!(!tls.name_server);
        for (key, value) in [
            ("passfile", "/p"),
            ("sslpassword", "x"),
            ("service", "s"),
            ("servicefile", "/s"),
            ("target_session_attrs", "prefer-standby"),
        ] {
            let error = read(&format!("host=a {key}={value}")).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
