//! Connection strings in the formats of libpq and pgx: `key=value` pairs and `postgres://` URLs.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use url::Url;

/// The pairs of a connection string, by name.
pub type Pairs = BTreeMap<String, String>;

/// Port of a host without one, if other hosts have one.
const DEFAULT_PORT: u16 = 5432;

/// Parses a connection string. `database` becomes `dbname`.
///
/// # Errors
/// Why it is invalid. The text does not repeat the string, which may contain a password.
pub fn parse(text: &str) -> Result<Pairs, String> {
    let mut pairs = if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        from_url(text)?
    } else {
        from_pairs(text)?
    };
    if let Some(database) = pairs.remove("database") {
        pairs.insert("dbname".to_owned(), database);
    }
    Ok(pairs)
}

fn from_url(text: &str) -> Result<Pairs, String> {
    let (account, hosts, rest) = authority(text);
    // The hosts are parsed separately, because a URL has only one.
    let url = parsed(&format!("postgres://{account}host{rest}"))?;
    let mut pairs: Pairs = url
        .query_pairs()
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    if !url.username().is_empty() {
        pairs.insert("user".to_owned(), decoded(url.username()));
    }
    if let Some(password) = url.password() {
        pairs.insert("password".to_owned(), decoded(password));
    }
    let database = url.path().trim_start_matches('/');
    if !database.is_empty() {
        pairs.insert("dbname".to_owned(), decoded(database));
    }
    add_hosts(&mut pairs, hosts)?;
    Ok(pairs)
}

/// User and password up to the `@`, the hosts, and the rest.
fn authority(text: &str) -> (&str, &str, &str) {
    let (_scheme, text) = text.split_once("://").unwrap_or(("", text));
    let end = text.find(['/', '?', '#']).unwrap_or(text.len());
    let (authority, rest) = text.split_at(end);
    let at = authority.rfind('@').map_or(0, |at| at + 1);
    let (account, hosts) = authority.split_at(at);
    (account, hosts, rest)
}

fn parsed(url: &str) -> Result<Url, String> {
    Url::parse(url).map_err(|error| format!("it is not a valid URL: {error}"))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn add_hosts(pairs: &mut Pairs, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    let (mut hosts, mut ports) = (Vec::new(), Vec::new());
    for one in text.split(',') {
        let url = parsed(&format!("postgres://{one}"))?;
        let host = url.host_str().unwrap_or_default();
        hosts.push(decoded(host.trim_start_matches('[').trim_end_matches(']')));
        ports.push(url.port());
    }
    if hosts.iter().any(|host| !host.is_empty()) {
        pairs.insert("host".to_owned(), hosts.join(","));
    }
    if ports.iter().any(Option::is_some) {
        let ports: Vec<_> = ports
            .iter()
            .map(|port| port.unwrap_or(DEFAULT_PORT).to_string())
            .collect();
        pairs.insert("port".to_owned(), ports.join(","));
    }
    Ok(())
}

/// `key=value key='value with space'`; a backslash escapes a quote or backslash.
fn from_pairs(text: &str) -> Result<Pairs, String> {
    let mut pairs = BTreeMap::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, after) = rest
            .split_once('=')
            .ok_or("it must consist of key=value pairs, or be a postgres:// URL")?;
        let (value, after) = value(after.trim_start())?;
        pairs.insert(name.trim().to_owned(), value);
        rest = after.trim_start();
    }
    Ok(pairs)
}

fn value(text: &str) -> Result<(String, &str), String> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, next)| next)),
            '\'' if quoted => return Ok((value, &text[at + 1..])),
            space if !quoted && space.is_whitespace() => return Ok((value, &text[at..])),
            other => value.push(other),
        }
    }
    if quoted {
        return Err("a quoted value has no closing quote".to_owned());
    }
    Ok((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().into_iter().collect()
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn parses_quoted_pairs() {
        assert_eq!(
            pairs(r"password='a b\'c\\' database=x  port=5433"),
            expected(&[("dbname", "x"), ("password", r"a b'c\"), ("port", "5433")])
        );
        assert!(parse("nonsense").is_err());
        assert!(parse("password='open").is_err());
    }

    #[test]
    fn parses_urls() {
        assert_eq!(
            pairs("postgres://me:p%40ss+w@db:5433/my%20db?sslmode=disable"),
            expected(&[
                ("dbname", "my db"),
                ("host", "db"),
                ("password", "p@ss+w"),
                ("port", "5433"),
                ("sslmode", "disable"),
                ("user", "me"),
            ])
        );
        assert_eq!(pairs("postgresql://[::1]"), expected(&[("host", "::1")]));
        assert_eq!(
            pairs("postgres://me:a,b@h1:5433,[::1],h2/db?target_session_attrs=any"),
            expected(&[
                ("dbname", "db"),
                ("host", "h1,::1,h2"),
                ("password", "a,b"),
                ("port", "5433,5432,5432"),
                ("target_session_attrs", "any"),
                ("user", "me"),
            ])
        );
        assert_eq!(pairs("postgres://h1,h2"), expected(&[("host", "h1,h2")]));
        assert!(parse("postgres://h1:x,h2").is_err());
        assert_eq!(
            pairs("postgres:///x?host=/run/pg"),
            expected(&[("dbname", "x"), ("host", "/run/pg")])
        );
    }
}
