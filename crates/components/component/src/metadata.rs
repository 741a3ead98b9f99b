mod tls;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    str::FromStr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outrigger_nearest::nearest;
use outrigger_redact::{Secrets, passwords};
use outrigger_resources::value::{ParseDurationError, go_nanos, truthy};

use crate::answer::MAX_ANSWER;

/// A missing or invalid property.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Two properties whose names differ only in case.
    #[error(
        "component {component}: the metadata has {first} and {second}, which are the same property; keep one"
    )]
    Duplicate {
        /// Component name.
        component: String,
        /// The spelling that comes first.
        first: String,
        /// The other spelling.
        second: String,
    },
    /// A required property is missing.
    #[error("component {component}: the metadata property {property} is missing; add it to spec.metadata")]
    Missing {
        /// Component name.
        component: String,
        /// Property name.
        property: String,
    },
    /// The value does not have the expected form.
    #[error(
        "component {component}: invalid value {}for the metadata property {property}: {expected}",
        value.as_ref().map(|value| format!("{value:?} ")).unwrap_or_default()
    )]
    Invalid {
        /// Component name.
        component: String,
        /// Property name as written.
        property: String,
        /// The value; `None` if it may contain a secret.
        value: Option<String>,
        /// The expected form, for the message.
        expected: String,
    },
}

impl MetadataError {
    /// The affected property.
    pub fn property(&self) -> &str {
        match self {
            Self::Duplicate { second, .. } => second,
            Self::Missing { property, .. } | Self::Invalid { property, .. } => property,
        }
    }
}

/// Unit of a bare number in a duration property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, for almost all properties.
    Seconds,
    /// Milliseconds, for Redis connection properties. A bare negative number stays unchanged.
    Milliseconds,
}

/// How a property is read. A test compares this with `docs/reference/components/`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PropertyType {
    /// Text, possibly validated by the component.
    Text,
    /// Required text.
    Required,
    /// Boolean, with its default.
    Flag(bool),
    /// Whole number.
    Number,
    /// Duration; a bare number has this unit.
    Duration(Unit),
    /// Duration in seconds, with its default.
    Span(Duration),
}

/// A signed duration: some properties use zero or negative values to disable a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    /// Nanoseconds.
    pub nanos: i64,
}

impl GoDuration {
    /// The duration, or `None` if zero or negative.
    pub fn positive(self) -> Option<Duration> {
        u64::try_from(self.nanos)
            .ok()
            .filter(|nanos| *nanos > 0)
            .map(Duration::from_nanos)
    }
}

impl From<Duration> for GoDuration {
    fn from(duration: Duration) -> Self {
        Self {
            nanos: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
        }
    }
}

/// Properties of a component, with secrets, environment references and templates resolved.
///
/// Lookups ignore case. Of several given names, the first one present wins; the others are aliases. Lookups
/// are recorded for [`Metadata::unused`].
///
/// ```
/// use std::time::Duration;
///
/// use outrigger_component::Metadata;
///
/// let given = [("TimeoutInSeconds", "5"), ("hots", "db")];
/// let given = given.map(|(name, value)| (name.to_owned(), value.to_owned()));
/// let metadata = Metadata::new("store", given)?;
/// let timeout = metadata.span(&["timeout", "timeoutInSeconds"], Duration::from_secs(20), Duration::ZERO)?;
/// assert_eq!(timeout, Duration::from_secs(5));
/// assert_eq!(metadata.filled(&["host"]), None);
/// assert_eq!(metadata.unused()[0].near.as_deref(), Some("host"));
/// # Ok::<(), outrigger_component::MetadataError>(())
/// ```
#[derive(Clone)]
pub struct Metadata {
    component: Arc<str>,
    /// By lower-cased name: the name as written and the value.
    properties: HashMap<String, (String, String)>,
    /// Lowercase names of properties whose values came from a secret store.
    secret: BTreeSet<String>,
    /// Limit of an answer from the outside system, bytes.
    max_answer: usize,
    /// Recorded lookups, shared with clones.
    wanted: Arc<Mutex<LookedUp>>,
}

#[derive(Default)]
struct LookedUp {
    /// How each property was read; the last read is the most specific.
    names: BTreeMap<String, PropertyType>,
    /// All properties were read as a whole, so none is unused.
    all: bool,
    /// Collected errors; `None` if errors are returned at once.
    wrong: Option<Vec<MetadataError>>,
    /// Lowercase names of properties already reported as invalid; they count as absent.
    left_out: BTreeSet<String>,
}

/// A property that was never looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// The name as written.
    pub name: String,
    /// The nearest name that was looked up and not found.
    pub near: Option<String>,
}

// Shows names only, because values may be secrets.
impl std::fmt::Debug for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut names: Vec<&str> = self.properties.values().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        f.debug_struct("Metadata")
            .field("component", &self.component)
            .field("properties", &names)
            .finish()
    }
}

impl Metadata {
    /// The properties of `component`.
    ///
    /// # Errors
    /// [`MetadataError::Duplicate`] if two names differ only in case.
    pub fn new(
        component: impl Into<Arc<str>>,
        properties: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, MetadataError> {
        let mut metadata = Self {
            component: component.into(),
            properties: HashMap::new(),
            secret: BTreeSet::new(),
            max_answer: MAX_ANSWER,
            wanted: Arc::default(),
        };
        for (name, value) in properties {
            let key = name.to_lowercase();
            if let Some((first, _)) = metadata.properties.get(&key) {
                return Err(MetadataError::Duplicate {
                    component: metadata.component.to_string(),
                    first: first.clone(),
                    second: name,
                });
            }
            metadata.properties.insert(key, (name, value));
        }
        Ok(metadata)
    }

    /// Marks these properties as secrets, whose values errors do not show.
    #[must_use]
    pub fn with_secrets<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.secret = names.into_iter().map(str::to_lowercase).collect();
        self
    }

    /// Sets the limit of an answer from the outside system.
    #[must_use]
    pub fn with_max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Limit of an answer from the outside system in bytes: one value, one message, or all values of a call.
    pub fn max_answer(&self) -> usize {
        self.max_answer
    }

    /// Replaces each of the [`Metadata::secrets`] in `text` with `***`.
    pub fn redact(&self, text: &str) -> String {
        self.secrets().redact(text)
    }

    /// Values from a secret store, and passwords in the user parts of addresses.
    pub fn secrets(&self) -> Secrets {
        let stored = self.secret.iter().filter_map(|name| self.properties.get(name));
        let stored = stored.map(|(_, value)| value.as_str());
        let values = self.properties.values();
        let passwords: Vec<String> = values.flat_map(|(_, value)| passwords(value)).collect();
        Secrets::new(stored.chain(passwords.iter().map(String::as_str)))
    }

    /// The component's name.
    pub fn component(&self) -> &Arc<str> {
        &self.component
    }

    /// Starts collecting errors: invalid values count as absent and missing ones as empty, here and in
    /// clones, until [`Metadata::collected`]. The factory can then read its other properties.
    pub(crate) fn collect(&self) {
        self.looked().wrong = Some(Vec::new());
    }

    /// While collecting, treats this property as absent too. Returns false if that changes nothing: it is
    /// absent or was left out before.
    pub(crate) fn leave_out(&self, property: &str) -> bool {
        let lower = property.to_lowercase();
        self.properties.contains_key(&lower) && self.looked().left_out.insert(lower)
    }

    /// Whether an error was collected or a property left out.
    pub(crate) fn has_collected(&self) -> bool {
        let looked = self.looked();
        !looked.left_out.is_empty() || looked.wrong.as_ref().is_some_and(|wrong| !wrong.is_empty())
    }

    /// The collected errors. Afterwards, invalid values are errors again and no property is left out.
    pub(crate) fn collected(&self) -> Vec<MetadataError> {
        let mut looked = self.looked();
        looked.left_out.clear();
        looked.wrong.take().unwrap_or_default()
    }

    /// Properties not looked up so far, by name. Call it after building the component: properties not read by
    /// then have no effect.
    pub fn unused(&self) -> Vec<Unused> {
        let wanted = self.looked();
        if wanted.all {
            return Vec::new();
        }
        let known: BTreeSet<String> = wanted.names.keys().map(|name| name.to_lowercase()).collect();
        let absent = || {
            wanted
                .names
                .keys()
                .map(String::as_str)
                .filter(|name| !self.properties.contains_key(&name.to_lowercase()))
        };
        let unused = self.properties.iter().filter(|(key, _)| !known.contains(*key));
        let mut unused: Vec<Unused> = unused
            .map(|(_, (name, _))| Unused {
                name: name.clone(),
                near: nearest(name, absent()).map(str::to_owned),
            })
            .collect();
        unused.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        unused
    }

    /// Sorted names of all lookups so far, present or not, with the type. After a build this lists the
    /// component's properties.
    pub fn looked_up(&self) -> Vec<(String, PropertyType)> {
        let wanted = self.looked();
        let names = wanted.names.iter();
        names.map(|(name, reading)| (name.clone(), *reading)).collect()
    }

    /// All properties with names as written. Marks all as used.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.looked().all = true;
        self.properties
            .values()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of the first of `names` that is present, even if empty.
    pub fn text(&self, names: &[&str]) -> Option<&str> {
        self.find(names, PropertyType::Text).map(|(_, value)| value)
    }

    /// Like [`Metadata::text`], but an empty value counts as absent.
    pub fn filled(&self, names: &[&str]) -> Option<&str> {
        self.text(names).filter(|value| !value.is_empty())
    }

    /// Whether one of `names` has a value, even an invalid one that counts as absent: no alternative applies
    /// then.
    pub fn is_given(&self, names: &[&str]) -> bool {
        self.filled(names).is_some() || self.is_left_out(names)
    }

    /// Like [`Metadata::filled`], for a required property.
    ///
    /// # Errors
    /// [`MetadataError::Missing`].
    pub fn required(&self, names: &[&str]) -> Result<&str, MetadataError> {
        let found = self.find(names, PropertyType::Required).map(|(_, value)| value);
        if let Some(value) = found.filter(|value| !value.is_empty()) {
            return Ok(value);
        }
        if self.is_left_out(names) {
            return Ok("");
        }
        let missing = MetadataError::Missing {
            component: self.component.to_string(),
            property: names.first().copied().unwrap_or_default().to_owned(),
        };
        self.refuse(missing, "")
    }

    /// Whether the value is truthy; unknown values are false, as in Dapr. `default` if absent.
    pub fn flag(&self, names: &[&str], default: bool) -> bool {
        let found = self.find(names, PropertyType::Flag(default));
        found.map_or(default, |(_, value)| truthy(value))
    }

    /// A number; `None` if absent or empty.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`] unless it is a number in the range of `T`.
    pub fn number<T: FromStr>(&self, names: &[&str]) -> Result<Option<T>, MetadataError> {
        let found = self.find(names, PropertyType::Number);
        let Some((name, value)) = found.filter(|(_, value)| !value.is_empty()) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.refuse(
                self.invalid(name, value, "a whole number in range is expected"),
                None,
            ),
        }
    }

    /// A Go duration (`1m30s`) or a bare number of `unit`; `None` if absent, zero if empty.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`] for other values.
    pub fn duration(&self, names: &[&str], unit: Unit) -> Result<Option<GoDuration>, MetadataError> {
        let Some((name, value)) = self.find(names, PropertyType::Duration(unit)) else {
            return Ok(None);
        };
        duration(value.trim(), unit).map(Some).or_else(|error| {
            let expected = format!("{error}; write it like 30s or 1m30s");
            self.refuse(self.invalid(name, value, &expected), None)
        })
    }

    /// Like [`Metadata::duration`], with a minimum of `least`; `default` if absent.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`].
    pub fn span(
        &self,
        names: &[&str],
        default: Duration,
        least: Duration,
    ) -> Result<Duration, MetadataError> {
        let given = self.duration(names, Unit::Seconds)?;
        let found = self.find(names, PropertyType::Span(default));
        let Some(given) = given else {
            return Ok(default);
        };
        match given.positive() {
            Some(span) if span >= least => Ok(span),
            _ => {
                let (name, value) = found.unwrap_or_default();
                let expected = format!("it must be at least {least:?}");
                self.refuse(self.invalid(name, value, &expected), default)
            }
        }
    }

    /// An error for the first of `names` that is present.
    pub fn wrong(&self, names: &[&str], expected: &str) -> MetadataError {
        let (name, value) = self
            .find(names, PropertyType::Text)
            .or_else(|| self.given(names, |_| true))
            .unwrap_or_else(|| (names.first().copied().unwrap_or_default(), ""));
        self.invalid(name, value, expected)
    }

    fn looked(&self) -> MutexGuard<'_, LookedUp> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_left_out(&self, names: &[&str]) -> bool {
        let looked = self.looked();
        names
            .iter()
            .any(|name| looked.left_out.contains(&name.to_lowercase()))
    }

    /// Returns the error, or `instead` while errors are collected.
    fn refuse<T>(&self, error: MetadataError, instead: T) -> Result<T, MetadataError> {
        let mut looked = self.looked();
        // A property may be missing only because an invalid value was left out.
        let told = !looked.left_out.is_empty() && matches!(error, MetadataError::Missing { .. });
        match &mut looked.wrong {
            Some(wrong) => {
                if !told && !wrong.contains(&error) {
                    wrong.push(error);
                }
                Ok(instead)
            }
            None => Err(error),
        }
    }

    fn find(&self, names: &[&str], reading: PropertyType) -> Option<(&str, &str)> {
        let mut wanted = self.looked();
        for name in names {
            let known = wanted.names.entry((*name).to_owned()).or_insert(reading);
            if reading != PropertyType::Text {
                *known = reading;
            }
        }
        self.given(names, |name| !wanted.left_out.contains(name))
    }

    /// The first of `names` that is present and satisfies `counts`, which gets the lowercase name.
    fn given(&self, names: &[&str], counts: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
        let mut lower = names.iter().map(|name| name.to_lowercase());
        lower.find_map(|name| {
            let found = self.properties.get(&name).filter(|_| counts(&name));
            found.map(|(name, value)| (name.as_str(), value.as_str()))
        })
    }

    fn invalid(&self, property: &str, value: &str, expected: &str) -> MetadataError {
        let lower = property.to_lowercase();
        let has = |word: &str| lower.contains(word);
        let secret = self.secret.contains(&lower)
            || may_be_secret(property)
            || (has("url") && may_hold_credentials(value))
            || (ADDRESSES.into_iter().any(has) && value.contains('@'))
            || !passwords(value).is_empty();
        MetadataError::Invalid {
            component: self.component.to_string(),
            property: property.to_owned(),
            value: (!secret).then(|| value.to_owned()),
            expected: expected.to_owned(),
        }
    }
}

/// Words in the names of address properties, whose user part may be a password.
const ADDRESSES: [&str; 5] = ["host", "address", "server", "broker", "endpoint"];

/// Whether a property of this name may hold a secret.
pub fn may_be_secret(property: &str) -> bool {
    let lower = property.to_lowercase();
    // A certificate property often includes the private key.
    ["password", "connectionstring", "key", "secret", "token", "cert"]
        .into_iter()
        .any(|word| lower.contains(word))
}

/// Whether a URL may contain credentials: an account or, as in webhooks, a key in its query, fragment or
/// path.
fn may_hold_credentials(url: &str) -> bool {
    let behind = url.split_once("://").map_or(url, |(_, behind)| behind);
    let path = behind.split_once('/').map_or("", |(_, path)| path);
    behind.contains(['@', '?', '#']) || !path.trim_matches('/').is_empty()
}

fn duration(text: &str, unit: Unit) -> Result<GoDuration, ParseDurationError> {
    if text.is_empty() {
        return Ok(GoDuration { nanos: 0 });
    }
    let Ok(number) = text.parse::<i64>() else {
        return go_nanos(text).map(|nanos| GoDuration { nanos });
    };
    let nanos = match unit {
        Unit::Milliseconds if number < 0 => number,
        Unit::Milliseconds => number.saturating_mul(1_000_000),
        Unit::Seconds => number.saturating_mul(1_000_000_000),
    };
    Ok(GoDuration { nanos })
}

#[cfg(test)]
mod tests;
