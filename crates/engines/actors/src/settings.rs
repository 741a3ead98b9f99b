//! The actor settings of an app, from its answer to `GET /dapr/config` or from its actor stream.

use std::collections::HashMap;
use std::time::Duration;

use outrigger_resources::json::{JsonObject, Object, list, parse, value};
use outrigger_resources::value::{format_go_duration, go_duration};
use serde::de::MapAccess;

const IDLE: Duration = Duration::from_secs(60 * 60);
const DRAIN: Duration = Duration::from_secs(2);
const DEPTH: u32 = 32;
/// Maximum actor types of one app.
pub const MAX_TYPES: usize = 4096;
/// Maximum length of the name of a type, bytes.
pub const MAX_TYPE_NAME: usize = 512;

/// The actor types that an app hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings by actor type.
    pub types: HashMap<String, TypeSettings>,
    /// Drain time of calls in flight when actors move, unless the type has its own.
    pub drain: Duration,
    /// Warnings about settings without effect.
    pub warnings: Vec<String>,
}

/// Settings of an actor type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeSettings {
    /// Idle time after which an actor is deactivated.
    pub idle: Duration,
    /// Maximum concurrent calls of one turn; `None` without reentrancy.
    pub reentrancy: Option<u32>,
    /// Drain time of calls in flight; `None`: that of the app.
    pub drain: Option<Duration>,
}

/// Settings as an app gives them; absent ones have defaults.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The hosted actor types.
    pub entities: Vec<String>,
    /// For all types without an entry.
    pub common: GivenType,
    /// Whether calls in flight may finish when actors move.
    pub drain_rebalanced: Option<bool>,
    /// Types that override the common settings.
    pub entries: Vec<(Vec<String>, GivenType)>,
}

/// Settings of actor types as an app gives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct GivenType {
    /// Idle time after which an actor is deactivated.
    pub idle: Option<Duration>,
    /// Drain time of calls in flight when actors move.
    pub drain: Option<Duration>,
    /// With reentrancy: the maximum depth, if given.
    pub reentrancy: Option<Option<i64>>,
}

impl GivenType {
    fn settings(self) -> TypeSettings {
        let depth = |given: i64| u32::try_from(given).unwrap_or(if given < 0 { 0 } else { u32::MAX });
        TypeSettings {
            idle: self.idle.unwrap_or(IDLE),
            reentrancy: self.reentrancy.map(|given| given.map_or(DEPTH, depth)),
            drain: None,
        }
    }
}

/// Invalid settings; the app then hosts no actors.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Invalid JSON, or a member of the wrong type.
    #[error("the app's answer to GET /dapr/config cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// An invalid duration.
    #[error(
        "the actor settings of the app: {name}: {text:?} is not a valid duration: write one such as 1h30m"
    )]
    Duration {
        /// Name of the member.
        name: &'static str,
        /// Its text.
        text: String,
    },
    /// Too many types.
    #[error("the app names {0} actor types, more than {MAX_TYPES}")]
    TooMany(usize),
    /// A type that placement would refuse. The length of its name.
    #[error("the app names an actor type of {0} bytes, more than {MAX_TYPE_NAME}")]
    Name(usize),
}

#[derive(Default)]
struct AppConfig {
    entities: Vec<String>,
    common: Common,
    drain_rebalanced_actors: Option<bool>,
    reminders_storage_partitions: i64,
    entities_config: Vec<JsonObject<Entry>>,
}

impl<'de> Object<'de> for AppConfig {
    const NAME: &'static str = "an object with entities";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("entities") {
            self.entities = list(map)?;
        } else if is("drainRebalancedActors") {
            self.drain_rebalanced_actors = map.next_value()?;
        } else if is("remindersStoragePartitions") {
            self.reminders_storage_partitions = value(map)?;
        } else if is("entitiesConfig") {
            self.entities_config = value(map)?;
        } else {
            return self.common.member(name, map);
        }
        Ok(true)
    }
}

#[derive(Default)]
struct Entry {
    entities: Vec<String>,
    common: Common,
}

impl<'de> Object<'de> for Entry {
    const NAME: &'static str = "an object with entities";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("entities") {
            self.entities = list(map)?;
            return Ok(true);
        }
        self.common.member(name, map)
    }
}

#[derive(Default)]
struct Common {
    actor_idle_timeout: String,
    drain_ongoing_call_timeout: String,
    reentrancy: Reentrancy,
}

impl<'de> Object<'de> for Common {
    const NAME: &'static str = "an object with actorIdleTimeout, drainOngoingCallTimeout and reentrancy";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("actorIdleTimeout") {
            self.actor_idle_timeout = value(map)?;
        } else if is("drainOngoingCallTimeout") {
            self.drain_ongoing_call_timeout = value(map)?;
        } else if is("reentrancy") {
            JsonObject(self.reentrancy) = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

#[derive(Clone, Copy, Default)]
struct Reentrancy {
    enabled: bool,
    max_stack_depth: Option<i64>,
}

impl<'de> Object<'de> for Reentrancy {
    const NAME: &'static str = "an object with enabled and maxStackDepth";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("enabled") {
            self.enabled = value(map)?;
        } else if name.eq_ignore_ascii_case("maxStackDepth") {
            self.max_stack_depth = map.next_value()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl Common {
    /// An invalid duration is an error.
    fn checked(self) -> Result<GivenType, SettingsError> {
        let given = |text: String, name| match text.is_empty() {
            true => Ok(None),
            false => match go_duration(&text) {
                Ok(time) => Ok(Some(time)),
                Err(_) => Err(SettingsError::Duration { name, text }),
            },
        };
        Ok(GivenType {
            idle: given(self.actor_idle_timeout, "actorIdleTimeout")?,
            drain: given(self.drain_ongoing_call_timeout, "drainOngoingCallTimeout")?,
            reentrancy: self.reentrancy.given(),
        })
    }

    /// An invalid duration counts as absent.
    fn lenient(&self) -> GivenType {
        let given = |text: &str| go_duration(text).ok();
        GivenType {
            idle: given(&self.actor_idle_timeout),
            drain: given(&self.drain_ongoing_call_timeout),
            reentrancy: self.reentrancy.given(),
        }
    }
}

impl Reentrancy {
    fn given(self) -> Option<Option<i64>> {
        self.enabled.then_some(self.max_stack_depth)
    }
}

impl Settings {
    /// The settings of an app without actors.
    pub fn none() -> Self {
        Self {
            types: HashMap::new(),
            drain: DRAIN,
            warnings: Vec::new(),
        }
    }

    /// Parses the JSON of the answer; unknown keys are ignored. `limit`: the maximum time of a dissemination.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn parse(json: &[u8], limit: Duration) -> Result<Self, SettingsError> {
        let JsonObject(answer) = parse::<JsonObject<AppConfig>>(json)?;
        let given = Given {
            entities: answer.entities,
            common: answer.common.checked()?,
            drain_rebalanced: answer.drain_rebalanced_actors,
            entries: answer
                .entities_config
                .into_iter()
                .map(|JsonObject(entry)| (entry.entities, entry.common.lenient()))
                .collect(),
        };
        let mut settings = Self::new(given, limit)?;
        if answer.reminders_storage_partitions != 0 {
            let text = "remindersStoragePartitions has no effect: reminders are kept by the scheduler";
            settings.warnings.push(text.to_owned());
        }
        Ok(settings)
    }

    /// Completes the settings of an app. `limit`: the maximum time of a dissemination.
    ///
    /// # Errors
    /// [`SettingsError::TooMany`].
    pub fn new(given: Given, limit: Duration) -> Result<Self, SettingsError> {
        let names = given.entities;
        if names.len() > MAX_TYPES {
            return Err(SettingsError::TooMany(names.len()));
        }
        if let Some(name) = names.iter().find(|name| name.len() > MAX_TYPE_NAME) {
            return Err(SettingsError::Name(name.len()));
        }
        let mut warnings = Vec::new();
        let drain = given.common.drain;
        let drain = drain.map(|drain| bounded(drain, limit, &names, &mut warnings));
        let all = given.common.settings();
        let mut settings = Self {
            types: names.into_iter().map(|name| (name, all)).collect(),
            drain: drain.unwrap_or(DRAIN),
            warnings,
        };
        for (names, entry) in given.entries {
            settings.entry(&names, entry, limit);
        }
        if given.drain_rebalanced == Some(false) {
            settings.drain = Duration::ZERO;
            settings.types.values_mut().for_each(|kind| kind.drain = None);
        }
        Ok(settings)
    }

    /// Applies an entry, which overrides all settings of its types.
    fn entry(&mut self, names: &[String], entry: GivenType, limit: Duration) {
        let drain = entry
            .drain
            .map(|drain| bounded(drain, limit, names, &mut self.warnings));
        let own = TypeSettings {
            drain,
            ..entry.settings()
        };
        for name in names {
            match self.types.get_mut(name) {
                Some(settings) => *settings = own,
                None => self.warnings.push(format!(
                    "entitiesConfig names the actor type {name:?}, which is not among the entities: it is ignored"
                )),
            }
        }
    }
}

/// Clamps the drain time: longer calls would delay the dissemination beyond its limit.
fn bounded(drain: Duration, limit: Duration, entities: &[String], warnings: &mut Vec<String>) -> Duration {
    if drain < limit {
        return drain;
    }
    let clamped = (limit - limit / 5).max(DRAIN);
    warnings.push(format!(
        "drainOngoingCallTimeout ({}) for entities={} meets or exceeds the dissemination timeout ({}): calls have {}",
        format_go_duration(drain),
        entities.join(","),
        format_go_duration(limit),
        format_go_duration(clamped),
    ));
    clamped
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn parse(json: &str) -> Settings {
        Settings::parse(json.as_bytes(), LIMIT).unwrap()
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn defaults() {
        assert_eq!(parse("{}"), Settings::none());
        let settings = parse(r#"{"entities": ["a"], "unknown": {}, "actorScanInterval": 7}"#);
        let expected = TypeSettings {
            idle: seconds(3600),
            reentrancy: None,
            drain: None,
        };
        assert_eq!(settings.types["a"], expected);
        assert_eq!(settings.drain, seconds(2));
        assert_eq!(
            parse(r#"{"entities": null, "entitiesConfig": null}"#),
            Settings::none()
        );
    }

    #[test]
    fn type_entry_overrides_all_settings() {
        let settings = parse(
            r#"{"entities": ["a", "b"], "actorIdleTimeout": "10m", "drainOngoingCallTimeout": "1s",
                "reentrancy": {"enabled": true, "maxStackDepth": 7}, "remindersStoragePartitions": 3,
                "entitiesConfig": [
                    {"entities": ["b", "c"], "actorIdleTimeout": "5s", "drainOngoingCallTimeout": "3s"}]}"#,
        );
        let of = |name: &str| {
            let TypeSettings {
                idle,
                reentrancy,
                drain,
            } = settings.types[name];
            (idle, reentrancy, drain)
        };
        assert_eq!(of("a"), (seconds(600), Some(7), None));
        assert_eq!(of("b"), (seconds(5), None, Some(seconds(3))));
        assert_eq!(settings.drain, seconds(1));
        assert_eq!(settings.warnings.len(), 2);
        assert!(!settings.types.contains_key("c"));
    }

    #[test]
    fn invalid_entry_uses_default() {
        let settings =
            parse(r#"{"entities": ["a"], "entitiesConfig": [{"entities": ["a"], "actorIdleTimeout": "x"}]}"#);
        assert_eq!(settings.types["a"].idle, seconds(3600));
        for wrong in [
            r#"{"actorIdleTimeout": "x"}"#,
            r#"{"drainOngoingCallTimeout": "-1s"}"#,
            r#"{"entities": "a"}"#,
            "[",
        ] {
            assert!(Settings::parse(wrong.as_bytes(), LIMIT).is_err(), "{wrong}");
        }
    }

    /// SDKs differ in the case of member names.
    #[test]
    fn parses_members_as_go_does() {
        let settings = parse(
            r#"{"Entities":["a",null],"ActorIdleTimeout":"10m","DrainOngoingCallTimeout":null,"drainRebalancedActors":null,
                "remindersStoragePartitions":null,"Reentrancy":{"Enabled":true,"MaxStackDepth":null},
                "EntitiesConfig":[{"Entities":["b"],"Reentrancy":null},null]} {"#,
        );
        let a = settings.types["a"];
        assert_eq!((a.idle, a.reentrancy), (seconds(600), Some(32)));
        assert_eq!(settings.drain, seconds(2));
        assert_eq!(settings.warnings.len(), 1, "b is not an entity");
        assert_eq!(parse("null"), Settings::none());
    }

    #[test]
    fn drain_ends_before_dissemination_timeout() {
        let drain = |text: &str| parse(text).drain;
        assert_eq!(drain(r#"{"drainOngoingCallTimeout": "30s"}"#), seconds(24));
        let below = Duration::from_millis(29_999);
        assert_eq!(drain(r#"{"drainOngoingCallTimeout": "29999ms"}"#), below);
        let all = r#"{"entities": ["a", "b"], "drainOngoingCallTimeout": "60s"}"#;
        let entry = r#"{"entities": ["a", "b"], "entitiesConfig": [{"entities": ["a", "b"], "drainOngoingCallTimeout": "60s"}]}"#;
        let (all, entry) = (parse(all), parse(entry));
        assert_eq!((all.drain, all.types["a"].drain), (seconds(24), None));
        assert_eq!(
            (entry.drain, entry.types["a"].drain),
            (seconds(2), Some(seconds(24)))
        );
        for settings in [all, entry] {
            let expected = "drainOngoingCallTimeout (1m0s) for entities=a,b meets or exceeds the dissemination timeout (30s)";
            assert!(
                settings.warnings[0].starts_with(expected),
                "{:?}",
                settings.warnings
            );
        }
        let short = Settings::parse(br#"{"drainOngoingCallTimeout": "60s"}"#, seconds(1)).unwrap();
        assert_eq!(short.drain, seconds(2), "not below the default");
    }

    #[test]
    fn calls_end_at_once_without_draining() {
        let settings = parse(
            r#"{"entities": ["a"], "drainOngoingCallTimeout": "60s", "drainRebalancedActors": false,
                "entitiesConfig": [{"entities": ["a"], "drainOngoingCallTimeout": "3s"}]}"#,
        );
        assert_eq!(
            (settings.drain, settings.types["a"].drain),
            (Duration::ZERO, None)
        );
    }

    #[test]
    fn rejects_unfit_types() {
        let names: Vec<_> = (0..=MAX_TYPES).map(|n| n.to_string()).collect();
        let json = serde_json::json!({ "entities": names }).to_string();
        assert!(matches!(
            Settings::parse(json.as_bytes(), LIMIT),
            Err(SettingsError::TooMany(4097))
        ));
        let json = serde_json::json!({ "entities": ["x".repeat(MAX_TYPE_NAME + 1)] }).to_string();
        assert!(matches!(
            Settings::parse(json.as_bytes(), LIMIT),
            Err(SettingsError::Name(513))
        ));
    }
}
