//! Connection strings of SQLite databases in the format of Dapr's Go driver: a path or a `file:` URI with
//! options. Options that start with an underscore belong to the driver. State stores and name resolution
//! share this parser.
//!
//! ```
//! use outrigger_sqlite::ConnectionString;
//!
//! let read = ConnectionString::parse("data.db?mode=ro&_pragma=cache_size(100)").unwrap();
//! assert_eq!(read.uri(None), "file:data.db?mode=ro");
//! assert_eq!(read.pragmas, ["PRAGMA cache_size = 100"]);
//! assert_eq!(read.journal(false), "DELETE");
//! ```

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Pragmas that separate settings control, with a remedy.
const FORBIDDEN: &[(&str, &str)] = &[
    ("busy_timeout", "use the property busyTimeout instead"),
    ("journal_mode", "use the property disableWAL instead"),
    ("foreign_keys", "it has no effect here"),
];

/// A parsed connection string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionString {
    /// `file:` and the path.
    path: String,
    /// Options for SQLite, `name=value`, without `cache`.
    options: Vec<String>,
    /// The cache mode, if given.
    pub cache: Option<String>,
    /// Whether the database is in memory.
    pub memory: bool,
    /// Whether the database is read-only.
    pub read_only: bool,
    /// Statements to run on each new connection.
    pub pragmas: Vec<String>,
    /// The driver's transaction mode, if given.
    pub txlock: Option<String>,
}

/// Why a `_pragma` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PragmaError {
    /// Neither `name(value)` nor `name=value`, or not plain words.
    #[error("_pragma must look like name(value)")]
    Form,
    /// A pragma that a separate setting controls.
    #[error("found forbidden option '_pragma={pragma}' in the connection string: {instead}")]
    Forbidden {
        /// Name of the pragma.
        pragma: &'static str,
        /// The remedy.
        instead: &'static str,
    },
}

impl ConnectionString {
    /// Parses a connection string.
    ///
    /// # Errors
    /// If a pragma is malformed or not allowed.
    pub fn parse(text: &str) -> Result<Self, PragmaError> {
        let lower = text.to_ascii_lowercase();
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let prefix = if lower.starts_with("file:") { "" } else { "file:" };
        let mut read = Self {
            path: format!("{prefix}{path}"),
            options: Vec::new(),
            cache: None,
            memory: lower.starts_with(":memory:") || lower.starts_with("file::memory:"),
            read_only: false,
            pragmas: Vec::new(),
            txlock: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "_pragma" => {
                    let statement = pragma(&percent_decode_str(value).decode_utf8_lossy())?;
                    read.pragmas.push(statement);
                }
                "_txlock" => read.txlock = Some(value.to_owned()),
                "cache" => read.cache = Some(value.to_owned()),
                // Other underscore options belong to the Go driver.
                _ if name.starts_with('_') => {}
                _ => {
                    read.read_only |= matches!((name, value), ("mode", "ro") | ("immutable", "1"));
                    read.memory |= (name, value) == ("mode", "memory");
                    read.options.push(pair.to_owned());
                }
            }
        }
        Ok(read)
    }

    /// The `file:` URI for SQLite, with the given cache mode.
    pub fn uri(&self, cache: Option<&str>) -> String {
        let cache = cache.map(|cache| format!("cache={cache}"));
        let options: Vec<&str> = self.options.iter().chain(&cache).map(String::as_str).collect();
        let question = if options.is_empty() { "" } else { "?" };
        format!("{}{question}{}", self.path, options.join("&"))
    }

    /// The file that SQLite would create; `None` for an in-memory database, or if it creates none.
    pub fn creates(&self) -> Option<PathBuf> {
        let only_existing = self.options.iter().any(|option| option == "mode=rw");
        if self.memory || self.read_only || only_existing {
            return None;
        }
        let path = self.path.get("file:".len()..)?;
        // Follows SQLite's URI rules.
        let path = match path.strip_prefix("//") {
            Some(rest) => &rest[rest.find('/')?..],
            None => path,
        };
        let path = path.split('#').next().filter(|path| !path.is_empty())?;
        let decoded: Vec<u8> = percent_decode_str(path).collect();
        Some(PathBuf::from(OsString::from_vec(decoded)))
    }

    /// The journal mode of the database; `without_wal` is the user's setting.
    pub fn journal(&self, without_wal: bool) -> &'static str {
        if self.memory {
            "MEMORY"
        } else if self.read_only || without_wal {
            "DELETE"
        } else {
            "WAL"
        }
    }
}

/// Converts `name(value)` or `name=value` to a statement.
fn pragma(text: &str) -> Result<String, PragmaError> {
    let (name, value) = text
        .strip_suffix(')')
        .and_then(|text| text.split_once('('))
        .or_else(|| text.split_once('='))
        .ok_or(PragmaError::Form)?;
    let is_word = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    if name.is_empty() || !is_word(name) || !is_word(value) {
        return Err(PragmaError::Form);
    }
    let forbidden = FORBIDDEN
        .iter()
        .find(|(forbidden, _)| name.eq_ignore_ascii_case(forbidden));
    match forbidden {
        Some(&(pragma, instead)) => Err(PragmaError::Forbidden { pragma, instead }),
        None => Ok(format!("PRAGMA {name} = {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectionString, PragmaError};

    fn read(text: &str) -> ConnectionString {
        ConnectionString::parse(text).unwrap()
    }

    #[test]
    fn driver_options_are_not_passed_on() {
        let text =
            "file:a.db?_txlock=deferred&mode=rwc&_pragma=synchronous%281%29&_time_format=x&cache=private";
        let read = read(text);
        assert_eq!(read.uri(None), "file:a.db?mode=rwc");
        assert_eq!(read.uri(Some("shared")), "file:a.db?mode=rwc&cache=shared");
        assert_eq!(read.pragmas, ["PRAGMA synchronous = 1"]);
        assert_eq!(read.txlock.as_deref(), Some("deferred"));
        assert_eq!(read.cache.as_deref(), Some("private"));
    }

    #[test]
    fn creates_matches_sqlite() {
        for (text, file) in [
            ("x.db?_txlock=immediate", Some("x.db")),
            ("FILE:a%20b.db", Some("a b.db")),
            ("file:///var/x.db#y", Some("/var/x.db")),
            ("file://localhost/x.db?mode=rwc", Some("/x.db")),
            ("file://host", None),
            ("file:x.db?mode=rw", None),
            ("x.db?mode=ro", None),
            (":memory:", None),
            ("file:x?mode=memory", None),
            ("file:", None),
        ] {
            assert_eq!(read(text).creates(), file.map(Into::into), "{text}");
        }
    }

    #[test]
    fn journal_depends_on_database_kind() {
        for (text, without_wal, journal) in [
            (":memory:", false, "MEMORY"),
            ("FILE::memory:?cache=shared", true, "MEMORY"),
            ("file:x.db?mode=ro", false, "DELETE"),
            ("x.db?immutable=1", false, "DELETE"),
            ("x.db", true, "DELETE"),
            ("x.db", false, "WAL"),
        ] {
            assert_eq!(read(text).journal(without_wal), journal, "{text}");
        }
    }

    #[test]
    fn rejects_invalid_pragmas() {
        for text in [
            "x.db?_pragma=a;b(1)",
            "x.db?_pragma=a",
            "x.db?_pragma=(1)",
            "x.db?_pragma=a(1);b(2)",
        ] {
            assert_eq!(ConnectionString::parse(text), Err(PragmaError::Form), "{text}");
        }
        for text in [
            "x.db?_pragma=Journal_Mode(OFF)",
            "x.db?_pragma=busy_timeout=1",
            "x.db?_pragma=foreign_keys%281%29",
        ] {
            let refused = ConnectionString::parse(text);
            assert!(matches!(refused, Err(PragmaError::Forbidden { .. })), "{text}");
        }
    }
}
