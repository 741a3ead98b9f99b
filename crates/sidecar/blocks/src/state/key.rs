//! Which key of a store belongs to which key of the app.

pub use outrigger_component::state::SEPARATOR;

/// How a store's keys are prefixed, so that apps sharing a store do not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Separator included; empty = none.
    prefix: String,
}

/// A key or prefix that contains the separator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input key/keyPrefix '{0}' can't contain '||'")]
pub struct IllegalKey(pub String);

impl Keys {
    /// From the store's `keyPrefix`: a strategy (`appid`, `name`, `namespace`, `none`) or the prefix itself.
    /// `namespace` is the process's own, where it has one.
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

    /// What all keys in the store begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key in the store.
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

/// The app's key of a stored one: what stands between the first separators.
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
    fn strategies_choose_the_prefix() {
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
    fn the_separator_is_nobodys() {
        let keys = Keys::parse(None, "store", "app", None).unwrap();
        let error = keys.stored("a||b").unwrap_err().to_string();
        assert_eq!(error, "input key/keyPrefix 'a||b' can't contain '||'");
        assert!(Keys::parse(Some("x||y"), "store", "app", None).is_err());
    }

    #[test]
    fn stored_keys_lead_back() {
        for (given, expected) in [("k", "k"), ("app||k", "k"), ("app||k||rest", "k"), ("", "")] {
            assert_eq!(original(given), expected);
        }
    }
}
