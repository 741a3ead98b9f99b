//! Reads the `configuration` of a resolver: keys in any case, values as parsed from YAML. Records which
//! settings are read, to warn of unused ones and to check `docs/reference/components/name-resolution.md`.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use outrigger_nearest::nearest;
use serde_json::{Map, Value};

/// An invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The configuration is not a map.
    #[error("the configuration must be a map of settings")]
    NotAMap,
    /// A value of the wrong type.
    #[error("invalid value for '{key}': {expected}")]
    Invalid {
        /// The setting.
        key: String,
        /// The expected type.
        expected: &'static str,
    },
    /// A required setting is absent.
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

/// The type of a setting.
#[cfg_attr(
    not(all(feature = "sqlite", feature = "consul")),
    allow(dead_code, reason = "unused without the resolvers that read such settings")
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PropertyType {
    /// A map with its own settings.
    Map,
    /// Any value.
    Any,
    /// Text, with its default if any.
    Text(Option<&'static str>),
    /// A boolean; default false.
    Flag,
    /// A duration, with its default.
    Duration(Duration),
    /// A duration in nanoseconds.
    Nanoseconds,
    /// A non-negative integer.
    Number,
}

/// A setting that was not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    /// The name as written, with its parent maps: `client.adress`.
    pub(crate) name: String,
    /// The most similar name that was read there and is absent.
    pub(crate) near: Option<String>,
}

/// A map of settings.
pub(crate) struct Settings<'a> {
    map: Option<&'a Map<String, Value>>,
    /// Path of the map: empty, or the parent names, each followed by a dot.
    path: String,
    /// Settings read so far, by the canonical names used in the code.
    looked_up: Rc<RefCell<BTreeMap<String, PropertyType>>>,
}

impl<'a> Settings<'a> {
    pub(crate) fn new(configuration: &'a Value) -> Result<Self, SettingsError> {
        Ok(Self {
            map: map_of(configuration).ok_or(SettingsError::NotAMap)?,
            path: String::new(),
            looked_up: Rc::default(),
        })
    }

    /// Settings read so far, present or not, with their types.
    #[cfg(test)]
    pub(crate) fn looked_up(&self) -> BTreeMap<String, PropertyType> {
        self.looked_up.borrow().clone()
    }

    /// Warns of unused settings, after the `resolver` has read its own. After an error some settings were
    /// not read, so only likely typos are reported.
    pub(crate) fn show_unused(&self, resolver: &str, all_read: bool) {
        for Unused { name, near } in self.unused() {
            let remedy = match near {
                Some(near) => format!("did you mean {near}?"),
                None if all_read => "check its name, or remove it".to_owned(),
                None => continue,
            };
            tracing::warn!(
                target: "dapr.contrib",
                "name resolver {resolver}: the setting {name} is not used (spec.nameResolution.configuration of the \
                 Configuration: {remedy})"
            );
        }
    }

    /// The settings not read so far.
    pub(crate) fn unused(&self) -> Vec<Unused> {
        let mut unused = Vec::new();
        unused_in(self.map, &self.path, &self.looked_up.borrow(), &mut unused);
        unused
    }
}

/// A value as a map: empty if absent, `None` if it is another type.
fn map_of(value: &Value) -> Option<Option<&Map<String, Value>>> {
    match value {
        Value::Null => Some(None),
        Value::Object(map) => Some(Some(map)),
        _ => None,
    }
}

fn unused_in(
    map: Option<&Map<String, Value>>,
    path: &str,
    looked_up: &BTreeMap<String, PropertyType>,
    unused: &mut Vec<Unused>,
) {
    // Only names in this map, not in nested maps.
    let known = |name: &'_ &String| name.strip_prefix(path).is_some_and(|rest| !rest.contains('.'));
    for (key, value) in map.into_iter().flatten() {
        let name = format!("{path}{key}");
        let read = looked_up
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(&name));
        match read {
            Some((name, PropertyType::Map)) => {
                let inner = map_of(value).flatten();
                unused_in(inner, &format!("{name}."), looked_up, unused);
            }
            Some(_) => {}
            None => {
                let is_given = |name: &&String| {
                    let mut given = map.into_iter().flatten().map(|(key, _)| key);
                    given.any(|key| name[path.len()..].eq_ignore_ascii_case(key))
                };
                let absent = looked_up.keys().filter(known).filter(|name| !is_given(name));
                let near = nearest(&name, absent.map(String::as_str)).map(str::to_owned);
                unused.push(Unused { name, near });
            }
        }
    }
}

impl<'a> Settings<'a> {
    /// The first non-null value under one of the names.
    fn find(&self, names: &[&str], reading: PropertyType) -> Option<&'a Value> {
        let mut looked_up = self.looked_up.borrow_mut();
        for name in names {
            looked_up.insert(format!("{}{name}", self.path), reading);
        }
        let map = self.map?;
        names.iter().find_map(|name| {
            let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value).filter(|value| !value.is_null())
        })
    }

    /// Non-empty text; numbers and booleans are converted.
    pub(crate) fn filled(&self, names: &[&str]) -> Result<Option<String>, SettingsError> {
        let text = text_of(names, self.find(names, PropertyType::Text(None)))?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Like [`Self::filled`], with a default.
    #[cfg(any(feature = "consul", feature = "kubernetes"))]
    pub(crate) fn filled_or(&self, names: &[&str], default: &'static str) -> Result<String, SettingsError> {
        let text = text_of(names, self.find(names, PropertyType::Text(Some(default))))?;
        Ok(text
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| default.to_owned()))
    }
}

/// Text; numbers and booleans are converted.
fn text_of(names: &[&str], value: Option<&Value>) -> Result<Option<String>, SettingsError> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(Value::Bool(flag)) => Ok(Some(flag.to_string())),
        Some(_) => Err(SettingsError::invalid(names[0], "it must be text")),
    }
}

#[cfg(any(feature = "sqlite", feature = "consul"))]
impl Settings<'_> {
    /// A boolean: `y yes true t on 1` in any case are true, everything else is false.
    pub(crate) fn flag(&self, names: &[&str]) -> Result<bool, SettingsError> {
        let text = text_of(names, self.find(names, PropertyType::Flag))?.unwrap_or_default();
        Ok(outrigger_resources::value::truthy(&text))
    }
}

#[cfg(feature = "sqlite")]
impl Settings<'_> {
    /// Text, possibly empty, with a default.
    pub(crate) fn text_or(&self, names: &[&str], default: &'static str) -> Result<String, SettingsError> {
        let text = text_of(names, self.find(names, PropertyType::Text(Some(default))))?;
        Ok(text.unwrap_or_else(|| default.to_owned()))
    }

    /// A duration such as `1m30s`, or whole seconds. Negative values mean zero.
    pub(crate) fn duration(&self, names: &[&str], default: Duration) -> Result<Duration, SettingsError> {
        let Some(text) = text_of(names, self.find(names, PropertyType::Duration(default)))? else {
            return Ok(default);
        };
        parse_duration(text.trim())
            .ok_or_else(|| SettingsError::invalid(names[0], "it must be a duration such as 5s or 1h30m"))
    }
}

#[cfg(feature = "consul")]
impl<'a> Settings<'a> {
    /// Text, possibly empty.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, SettingsError> {
        text_of(&[name], self.find(&[name], PropertyType::Text(None)))
    }

    /// Any value.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.find(&[name], PropertyType::Any)
    }

    /// A nested map; empty if absent.
    pub(crate) fn nested(&self, name: &str) -> Result<Self, SettingsError> {
        let value = self.find(&[name], PropertyType::Map).unwrap_or(&Value::Null);
        Ok(Self {
            map: map_of(value).ok_or_else(|| SettingsError::invalid(name, "it must be a map"))?,
            path: format!("{}{name}.", self.path),
            looked_up: Rc::clone(&self.looked_up),
        })
    }

    /// A duration in nanoseconds, the only form in the Consul configuration.
    pub(crate) fn nanoseconds(&self, name: &str) -> Result<Option<Duration>, SettingsError> {
        let nanos = number_of(name, self.find(&[name], PropertyType::Nanoseconds))?;
        Ok(nanos.map(Duration::from_nanos))
    }

    /// A non-negative integer.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, SettingsError> {
        number_of(name, self.find(&[name], PropertyType::Number))
    }

    /// A map of text.
    pub(crate) fn text_map(&self, name: &str) -> Result<Vec<(String, String)>, SettingsError> {
        let value = self.find(&[name], PropertyType::Any).unwrap_or(&Value::Null);
        let map = map_of(value).ok_or_else(|| SettingsError::invalid(name, "it must be a map"))?;
        let read = |(key, value): (&String, &Value)| {
            let text = value
                .as_str()
                .map(str::to_owned)
                .unwrap_or_else(|| value.to_string());
            (key.clone(), text)
        };
        Ok(map.into_iter().flatten().map(read).collect())
    }
}

#[cfg(feature = "consul")]
fn number_of(name: &str, value: Option<&Value>) -> Result<Option<u64>, SettingsError> {
    let bad = || SettingsError::invalid(name, "it must be a whole number, durations in nanoseconds");
    value.map(|value| value.as_u64().ok_or_else(bad)).transpose()
}

/// Go's duration syntax; a bare integer means seconds.
#[cfg(any(feature = "sqlite", test))]
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

#[cfg(any(feature = "sqlite", test))]
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
pub(crate) mod tests;
