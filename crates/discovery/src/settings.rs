//! Reads the `configuration` of a resolver: keys in any case, values as YAML left them.

#[cfg(any(feature = "sqlite", feature = "consul"))]
use std::time::Duration;

use serde_json::{Map, Value};

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The configuration is not a map.
    #[error("the configuration must be a map of settings")]
    NotAMap,
    /// A value of the wrong form.
    #[error("invalid value for '{key}': {expected}")]
    Invalid {
        /// The setting.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A setting that must be there.
    #[error("missing setting '{0}'")]
    Missing(&'static str),
}

impl SettingsError {
    pub(crate) fn invalid(key: &str, expected: &'static str) -> Self {
        Self::Invalid {
            key: key.to_owned(),
            expected,
        }
    }
}

/// A map of settings.
#[derive(Clone, Copy)]
pub(crate) struct Settings<'a>(Option<&'a Map<String, Value>>);

impl<'a> Settings<'a> {
    pub(crate) fn new(configuration: &'a Value) -> Result<Self, SettingsError> {
        match configuration {
            Value::Null => Ok(Self(None)),
            Value::Object(map) => Ok(Self(Some(map))),
            _ => Err(SettingsError::NotAMap),
        }
    }

    /// The value under the first of the names that is there and not null.
    pub(crate) fn value(&self, names: &[&str]) -> Option<&'a Value> {
        let map = self.0?;
        names.iter().find_map(|name| {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value).filter(|value| !value.is_null())
        })
    }

    /// Text; numbers and truth values count as their text.
    pub(crate) fn text(&self, names: &[&str]) -> Result<Option<String>, SettingsError> {
        match self.value(names) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
            Some(_) => Err(SettingsError::invalid(names[0], "it must be text")),
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "consul"))]
impl Settings<'_> {
    /// A truth value: `y yes true t on 1` in any case are true, all else is false.
    pub(crate) fn flag(&self, names: &[&str]) -> Result<bool, SettingsError> {
        let text = self.text(names)?.unwrap_or_default();
        let truths = ["y", "yes", "true", "t", "on", "1"];
        Ok(truths.iter().any(|truth| text.trim().eq_ignore_ascii_case(truth)))
    }
}

#[cfg(feature = "sqlite")]
impl Settings<'_> {
    /// A duration such as `1m30s`, or whole seconds. Negative ones count as none.
    pub(crate) fn duration(&self, names: &[&str], default: Duration) -> Result<Duration, SettingsError> {
        let Some(text) = self.text(names)? else {
            return Ok(default);
        };
        parse_duration(text.trim())
            .ok_or_else(|| SettingsError::invalid(names[0], "it must be a duration such as 5s or 1h30m"))
    }
}

#[cfg(feature = "consul")]
impl<'a> Settings<'a> {
    /// A nested map; empty when it is absent.
    pub(crate) fn nested(&self, name: &str) -> Result<Self, SettingsError> {
        Self::new(self.value(&[name]).unwrap_or(&Value::Null))
            .map_err(|_| SettingsError::invalid(name, "it must be a map"))
    }

    /// A duration in nanoseconds, the only form the Consul configuration has.
    pub(crate) fn nanoseconds(&self, name: &str) -> Result<Option<Duration>, SettingsError> {
        self.number(name).map(|nanos| nanos.map(Duration::from_nanos))
    }

    /// A whole number that is not negative.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, SettingsError> {
        let bad = || SettingsError::invalid(name, "it must be a whole number, durations in nanoseconds");
        self.value(&[name])
            .map(|value| value.as_u64().ok_or_else(bad))
            .transpose()
    }

    /// A map of text.
    pub(crate) fn text_map(&self, name: &str) -> Result<Vec<(String, String)>, SettingsError> {
        let entries = self.nested(name)?.0.into_iter().flatten();
        let read = |(key, value): (&String, &Value)| {
            let text = value
                .as_str()
                .map(str::to_owned)
                .unwrap_or_else(|| value.to_string());
            (key.clone(), text)
        };
        Ok(entries.map(read).collect())
    }
}

/// Go's duration syntax; a bare integer is seconds.
#[cfg(feature = "sqlite")]
fn parse_duration(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return Some(Duration::ZERO);
    }
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let total = if let Ok(seconds) = rest.parse::<u32>() {
        f64::from(seconds)
    } else {
        let mut total = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let number: f64 = rest[..digits].parse().ok()?;
            rest = &rest[digits..];
            let unit = rest
                .find(|c: char| c.is_ascii_digit() || c == '.')
                .unwrap_or(rest.len());
            total += number * seconds_of(&rest[..unit])?;
            rest = &rest[unit..];
        }
        total
    };
    if negative {
        Some(Duration::ZERO)
    } else {
        Duration::try_from_secs_f64(total).ok()
    }
}

#[cfg(feature = "sqlite")]
fn seconds_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1e-9,
        "us" | "µs" | "μs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[cfg(feature = "sqlite")]
    #[test]
    fn durations_in_go_syntax_or_seconds() {
        for (text, millis) in [
            ("5s", Some(5000)),
            ("800ms", Some(800)),
            ("1h0m1.5s", Some(3_601_500)),
            ("7", Some(7000)),
            ("", Some(0)),
            ("-1s", Some(0)),
            ("5", Some(5000)),
            ("5x", None),
            ("s", None),
            ("1.2.3s", None),
        ] {
            assert_eq!(parse_duration(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn keys_match_in_any_case_and_under_aliases() {
        let value = json!({"ConnectionSTRING": "data.db", "disablewal": "Yes", "n": null});
        let settings = Settings::new(&value).unwrap();
        assert_eq!(
            settings.text(&["url", "connectionString"]).unwrap().unwrap(),
            "data.db"
        );
        #[cfg(any(feature = "sqlite", feature = "consul"))]
        assert!(settings.flag(&["disableWAL"]).unwrap());
        assert!(settings.value(&["n"]).is_none());
        assert_eq!(Settings::new(&json!([1])).err(), Some(SettingsError::NotAMap));
    }
}
