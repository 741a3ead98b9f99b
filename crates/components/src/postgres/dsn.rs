//! Connection strings: `key=value` pairs and `postgres://` URLs, as libpq and pgx read them.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use url::Url;

/// The pairs of a connection string; `database` and `dbname` are one.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
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

fn from_url(text: &str) -> Result<BTreeMap<String, String>, String> {
    let url = Url::parse(text).map_err(|error| format!("it is no URL: {error}"))?;
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut pairs: BTreeMap<String, String> = url
        .query_pairs()
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    if !url.username().is_empty() {
        pairs.insert("user".to_owned(), decoded(url.username()));
    }
    if let Some(password) = url.password() {
        pairs.insert("password".to_owned(), decoded(password));
    }
    if let Some(host) = url.host_str().filter(|host| !host.is_empty()) {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        pairs.insert("host".to_owned(), decoded(host));
    }
    if let Some(port) = url.port() {
        pairs.insert("port".to_owned(), port.to_string());
    }
    let database = url.path().trim_start_matches('/');
    if !database.is_empty() {
        pairs.insert("dbname".to_owned(), decoded(database));
    }
    Ok(pairs)
}

/// `key=value key='value with space'`, a backslash before a literal quote or backslash.
fn from_pairs(text: &str) -> Result<BTreeMap<String, String>, String> {
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
    fn pairs_may_be_quoted() {
        assert_eq!(
            pairs(r"password='a b\'c\\' database=x  port=5433"),
            expected(&[("dbname", "x"), ("password", r"a b'c\"), ("port", "5433")])
        );
        assert!(parse("nonsense").is_err());
        assert!(parse("password='open").is_err());
    }

    #[test]
    fn urls_are_taken_apart() {
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
            pairs("postgres:///x?host=/run/pg"),
            expected(&[("dbname", "x"), ("host", "/run/pg")])
        );
    }
}
