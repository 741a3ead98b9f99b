//! Maps the app's keys to stored keys.

pub use outrigger_component::state::SEPARATOR;

/// The key prefix of a store, which separates apps that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Includes the separator; empty without a prefix.
    prefix: String,
}

/// A key or prefix that contains the separator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input key/keyPrefix '{0}' can't contain '||'")]
pub struct IllegalKey(pub String);

impl Keys {
    /// Parses the store's `keyPrefix`: a strategy (`appid`, `name`, `namespace`, `none`) or a literal prefix.
    /// `namespace` is that of the process, if it has one.
    ///
    /// # Errors
    /// [`IllegalKey`] for a prefix with `||`.
    pub fn parse(
        strategy: Option<&str>,
        store: &str,
        app_id: &str,
        namespace: Option<&str>,
    ) -> Result<Self, IllegalKey> {
        let strategy = strategy.unwrap_or("appid").to_lowercase();
        if strategy.contains(SEPARATOR) {
            return Err(IllegalKey(strategy));
        }
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let prefix = match (strategy.as_str(), namespace) {
            ("none", _) => {
                return Ok(Self {
                    prefix: String::new(),
                });
            }
            ("name", _) => store.to_owned(),
            ("appid" | "namespace", _) if app_id.is_empty() => {
                return Ok(Self {
                    prefix: String::new(),
                });
            }
            ("namespace", Some(namespace)) => format!("{namespace}.{app_id}"),
            ("appid" | "namespace", _) => app_id.to_owned(),
            _ => strategy,
        };
        Ok(Self {
            prefix: prefix + SEPARATOR,
        })
    }

    /// The prefix of all keys in the store.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The stored key of an app's key.
    ///
    /// # Errors
    /// [`IllegalKey`] for a key with `||`.
    pub fn stored(&self, key: &str) -> Result<String, IllegalKey> {
        if key.contains(SEPARATOR) {
            return Err(IllegalKey(key.to_owned()));
        }
        let mut stored = String::with_capacity(self.prefix.len() + key.len());
        stored.push_str(&self.prefix);
        stored.push_str(key);
        Ok(stored)
    }
}

/// The app's key of a stored key: the text after the first separator.
pub fn original(stored: &str) -> &str {
    let mut parts = stored.splitn(3, SEPARATOR);
    let first = parts.next().unwrap_or_default();
    parts.next().unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(strategy: Option<&str>, namespace: Option<&str>) -> String {
        let keys = Keys::parse(strategy, "store", "app", namespace).unwrap();
        keys.stored("k").unwrap()
    }

    #[test]
    fn parses_prefix_strategies() {
        for (strategy, namespace, expected) in [
            (None, None, "app||k"),
            (Some("AppID"), None, "app||k"),
            (Some("name"), None, "store||k"),
            (Some("namespace"), Some("ns"), "ns.app||k"),
            (Some("namespace"), None, "app||k"),
            (Some("none"), None, "k"),
            (Some("Shared"), None, "shared||k"),
        ] {
            assert_eq!(stored(strategy, namespace), expected, "{strategy:?}");
        }
        let anonymous = Keys::parse(None, "store", "", None).unwrap();
        assert_eq!(anonymous.stored("k").unwrap(), "k");
    }

    #[test]
    fn refuses_separator() {
        let keys = Keys::parse(None, "store", "app", None).unwrap();
        let error = keys.stored("a||b").unwrap_err().to_string();
        assert_eq!(error, "input key/keyPrefix 'a||b' can't contain '||'");
        assert!(Keys::parse(Some("x||y"), "store", "app", None).is_err());
    }

    #[test]
    fn stored_key_maps_back() {
        for (given, expected) in [("k", "k"), ("app||k", "k"), ("app||k||rest", "k"), ("", "")] {
            assert_eq!(original(given), expected);
        }
    }
}
