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

/// A property that is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Two properties whose names differ in case only.
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
    /// A property the component cannot do without.
    #[error("component {component}: the metadata property {property} is missing; add it to spec.metadata")]
    Missing {
        /// Component name.
        component: String,
        /// Property name.
        property: String,
    },
    /// A value that is not what the property needs.
    #[error(
        "component {component}: invalid value {}for the metadata property {property}: {expected}",
        value.as_ref().map(|value| format!("{value:?} ")).unwrap_or_default()
    )]
    Invalid {
        /// Component name.
        component: String,
        /// Property name as written.
        property: String,
        /// The value; `None` where it may hold a secret.
        value: Option<String>,
        /// The expected form, for the message.
        expected: String,
    },
}

impl MetadataError {
    /// The property it is about.
    pub fn property(&self) -> &str {
        match self {
            Self::Duplicate { second, .. } => second,
            Self::Missing { property, .. } | Self::Invalid { property, .. } => property,
        }
    }
}

/// What a bare number means where a duration is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Seconds: nearly everywhere.
    Seconds,
    /// Milliseconds: the connection properties of Redis. A bare negative number stays as it is.
    Milliseconds,
}

/// How a property is read: what `docs/reference/components/` says of it is compared with this.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PropertyType {
    /// As any text, perhaps checked by the component itself.
    Text,
    /// As a text that may not be missing.
    Required,
    /// As a switch, with its default.
    Flag(bool),
    /// As a whole number.
    Number,
    /// As a span of time; a bare number is of this unit.
    Duration(Unit),
    /// As a span of time in seconds, with its default.
    Span(Duration),
}

/// A span of time with sign: in several properties zero and negative values switch something off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    /// Nanoseconds.
    pub nanos: i64,
}

impl GoDuration {
    /// The span, or `None` when zero or negative.
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

/// The properties of a component after secrets, environment references and templates were resolved.
///
/// Names are looked up without regard to case. Where several names are given the first that is present wins:
/// the others are old names. What is looked up is noted, so that [`Metadata::unused`] can tell what nobody wanted.
#[derive(Clone)]
pub struct Metadata {
    component: Arc<str>,
    /// By lower-cased name: the name as written and the value.
    properties: HashMap<String, (String, String)>,
    /// Of the properties whose values came from a secret store, by lower-cased name.
    secret: BTreeSet<String>,
    /// Bytes that an answer of the outside system may have.
    max_answer: usize,
    /// What was looked up, here and in copies of this.
    wanted: Arc<Mutex<LookedUp>>,
}

#[derive(Default)]
struct LookedUp {
    /// How each was read: of several ways the one that says the most, which is the last.
    names: BTreeMap<String, PropertyType>,
    /// Somebody took all of them: none is unknown.
    all: bool,
    /// Wrong values that were read, where they are collected.
    wrong: Option<Vec<MetadataError>>,
    /// Properties that were told to be wrong, by lower-cased name: they count as absent.
    left_out: BTreeSet<String>,
}

/// A property that nobody looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// Its name as written.
    pub name: String,
    /// The name that was looked up in vain and is nearest.
    pub near: Option<String>,
}

// Values may be secrets: only names are shown.
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
    /// [`MetadataError::Duplicate`] when two names differ in case only.
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

    /// With the values of these properties as secrets, which errors do not show.
    #[must_use]
    pub fn with_secrets<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.secret = names.into_iter().map(str::to_lowercase).collect();
        self
    }

    /// With another bound of what the outside system may answer.
    #[must_use]
    pub fn with_max_answer(mut self, bytes: usize) -> Self {
        self.max_answer = bytes;
        self
    }

    /// Bytes that an answer of the outside system may have: one value, one message, or all values of a call.
    pub fn max_answer(&self) -> usize {
        self.max_answer
    }

    /// `text` with `***` in place of each of the [`Metadata::secrets`].
    pub fn redact(&self, text: &str) -> String {
        self.secrets().redact(text)
    }

    /// The values that came from a secret store, and the passwords in the user parts of addresses.
    pub fn secrets(&self) -> Secrets {
        let stored = self.secret.iter().filter_map(|name| self.properties.get(name));
        let stored = stored.map(|(_, value)| value.as_str());
        let values = self.properties.values();
        let passwords: Vec<String> = values.flat_map(|(_, value)| passwords(value)).collect();
        Secrets::new(stored.chain(passwords.iter().map(String::as_str)))
    }

    /// The name of the component.
    pub fn component(&self) -> &Arc<str> {
        &self.component
    }

    /// From here on a value that is wrong counts as absent, and one that is missing as empty, here and in copies of this,
    /// until [`Metadata::collected`] tells of it: who reads the properties goes on to the others.
    pub(crate) fn collect(&self) {
        self.looked().wrong = Some(Vec::new());
    }

    /// While wrong values are collected, this property counts as absent too. False where that changes nothing: it is
    /// absent, or was left out before.
    pub(crate) fn leave_out(&self, property: &str) -> bool {
        let lower = property.to_lowercase();
        self.properties.contains_key(&lower) && self.looked().left_out.insert(lower)
    }

    /// Whether a wrong value was collected, or one is left out.
    pub(crate) fn has_collected(&self) -> bool {
        let looked = self.looked();
        !looked.left_out.is_empty() || looked.wrong.as_ref().is_some_and(|wrong| !wrong.is_empty())
    }

    /// What was collected. Wrong values are errors again from here on, and nothing is left out.
    pub(crate) fn collected(&self) -> Vec<MetadataError> {
        let mut looked = self.looked();
        looked.left_out.clear();
        looked.wrong.take().unwrap_or_default()
    }

    /// The properties that nobody looked up so far, by name. Asked after the component was built: what it does not
    /// read then has no effect.
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

    /// The names that were looked up so far, present or not, sorted, and how: what a component reads, once it was built.
    pub fn looked_up(&self) -> Vec<(String, PropertyType)> {
        let wanted = self.looked();
        let names = wanted.names.iter();
        names.map(|(name, reading)| (name.clone(), *reading)).collect()
    }

    /// All properties: names as written, and values. None counts as unused then.
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

    /// As [`Metadata::text`], with an empty value counting as absent.
    pub fn filled(&self, names: &[&str]) -> Option<&str> {
        self.text(names).filter(|value| !value.is_empty())
    }

    /// Whether one of `names` has a value, even if that is wrong and counts as absent: nothing else takes its place then.
    pub fn is_given(&self, names: &[&str]) -> bool {
        self.filled(names).is_some() || self.is_left_out(names)
    }

    /// As [`Metadata::filled`], for a property the component cannot do without.
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

    /// Whether the value says yes; anything unknown is no, as everywhere in Dapr. `default` when absent.
    pub fn flag(&self, names: &[&str], default: bool) -> bool {
        let found = self.find(names, PropertyType::Flag(default));
        found.map_or(default, |(_, value)| truthy(value))
    }

    /// A number; `None` when absent or empty.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`] for anything else than a number in the range of `T`.
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

    /// A Go duration (`1m30s`) or a bare number of `unit`; `None` when absent, zero when empty.
    ///
    /// # Errors
    /// [`MetadataError::Invalid`] for anything else.
    pub fn duration(&self, names: &[&str], unit: Unit) -> Result<Option<GoDuration>, MetadataError> {
        let Some((name, value)) = self.find(names, PropertyType::Duration(unit)) else {
            return Ok(None);
        };
        duration(value.trim(), unit).map(Some).or_else(|error| {
            let expected = format!("{error}; write it like 30s or 1m30s");
            self.refuse(self.invalid(name, value, &expected), None)
        })
    }

    /// As [`Metadata::duration`], for a span that must not be below `least`; `default` when absent.
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

    /// An error about the first of `names` that is present.
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

    /// The error, or what counts in place of the value where wrong ones are collected.
    fn refuse<T>(&self, error: MetadataError, instead: T) -> Result<T, MetadataError> {
        let mut looked = self.looked();
        // What is missing may be so for want of a value that is left out.
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

    /// The first of `names` that is present and, in lower case, `counts`.
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

/// Words in the names of properties that hold addresses, whose user part may be a password.
const ADDRESSES: [&str; 5] = ["host", "address", "server", "broker", "endpoint"];

/// Whether a property of this name may hold a secret.
pub fn may_be_secret(property: &str) -> bool {
    let lower = property.to_lowercase();
    // A private key often stands behind its certificate.
    ["password", "connectionstring", "key", "secret", "token", "cert"]
        .into_iter()
        .any(|word| lower.contains(word))
}

/// Whether a URL may have an account or, as those of webhooks do, a key in its query, its fragment or its path.
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
