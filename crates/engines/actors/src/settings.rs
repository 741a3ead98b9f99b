//! The actor settings in the app's answer to `GET /dapr/config`.

use std::collections::HashMap;
use std::time::Duration;

use outrigger_resources::json::{JsonObject, Object, list, parse, value};
use outrigger_resources::value::{format_go_duration, go_duration};
use serde::de::MapAccess;

use crate::dissemination::UPDATE_TIMEOUT;

const IDLE: Duration = Duration::from_secs(60 * 60);
const DRAIN: Duration = Duration::from_secs(2);
const DEPTH: u32 = 32;
/// Maximum actor types of one app.
pub const MAX_TYPES: usize = 4096;

/// The actor types that an app hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Settings by actor type.
    pub types: HashMap<String, TypeSettings>,
    /// Drain time of calls in flight when actors move.
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
}

/// Invalid settings; the app then hosts no actors.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Invalid JSON, or a member of the wrong type.
    #[error("the app's answer to GET /dapr/config cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// An invalid duration.
    #[error(
        "the app's answer to GET /dapr/config: {name}: {text:?} is not a valid duration: write one such as 1h30m"
    )]
    Duration {
        /// Name of the member.
        name: &'static str,
        /// Its text.
        text: String,
    },
    /// Too many types.
    #[error("the app's answer to GET /dapr/config names {0} actor types, more than {MAX_TYPES}")]
    TooMany(usize),
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

impl Reentrancy {
    fn depth(self) -> Option<u32> {
        let depth = |given: i64| u32::try_from(given).unwrap_or(if given < 0 { 0 } else { u32::MAX });
        self.enabled.then(|| self.max_stack_depth.map_or(DEPTH, depth))
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

    /// Parses the JSON of the answer; unknown keys are ignored.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn parse(json: &[u8]) -> Result<Self, SettingsError> {
        let JsonObject(answer) = parse::<JsonObject<AppConfig>>(json)?;
        let names = answer.entities;
        if names.len() > MAX_TYPES {
            return Err(SettingsError::TooMany(names.len()));
        }
        let given = |text: String, name, default| match text.is_empty() {
            true => Ok(default),
            false => go_duration(&text).map_err(|_| SettingsError::Duration { name, text }),
        };
        let common = answer.common;
        let all = TypeSettings {
            idle: given(common.actor_idle_timeout, "actorIdleTimeout", IDLE)?,
            reentrancy: common.reentrancy.depth(),
        };
        let drain = given(
            common.drain_ongoing_call_timeout,
            "drainOngoingCallTimeout",
            DRAIN,
        )?;
        let mut warnings = Vec::new();
        let drain = bounded(drain, &names, &mut warnings);
        let mut settings = Self {
            types: names.into_iter().map(|name| (name, all)).collect(),
            drain,
            warnings,
        };
        if answer.reminders_storage_partitions != 0 {
            let text = "remindersStoragePartitions has no effect: reminders are kept by the scheduler";
            settings.warnings.push(text.to_owned());
        }
        for JsonObject(entry) in answer.entities_config {
            settings.entry(entry);
        }
        if answer.drain_rebalanced_actors == Some(false) {
            settings.drain = Duration::ZERO;
        }
        Ok(settings)
    }

    /// Applies an entry, which overrides all settings of its types.
    fn entry(&mut self, entry: Entry) {
        let common = entry.common;
        let given = |text: &str, default| match text {
            "" => default,
            text => go_duration(text).unwrap_or(default),
        };
        let own = TypeSettings {
            idle: given(&common.actor_idle_timeout, IDLE),
            reentrancy: common.reentrancy.depth(),
        };
        let mut used = false;
        for name in &entry.entities {
            match self.types.get_mut(name) {
                Some(settings) => (*settings, used) = (own, true),
                None => self.warnings.push(format!(
                    "entitiesConfig names the actor type {name:?}, which is not among the entities: it is ignored"
                )),
            }
        }
        if used {
            let drain = given(&common.drain_ongoing_call_timeout, DRAIN);
            let drain = bounded(drain, &entry.entities, &mut self.warnings);
            self.drain = self.drain.max(drain);
        }
    }
}

/// Clamps the drain time: calls that outlast `UPDATE_TIMEOUT` would make this sidecar abort the
/// dissemination.
fn bounded(drain: Duration, entities: &[String], warnings: &mut Vec<String>) -> Duration {
    if drain < UPDATE_TIMEOUT {
        return drain;
    }
    let clamped = (UPDATE_TIMEOUT * 4 / 5).max(DRAIN);
    warnings.push(format!(
        "drainOngoingCallTimeout ({}) for entities={} meets or exceeds the dissemination timeout ({}): calls have {}",
        format_go_duration(drain),
        entities.join(","),
        format_go_duration(UPDATE_TIMEOUT),
        format_go_duration(clamped),
    ));
    clamped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Settings {
        Settings::parse(json.as_bytes()).unwrap()
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
        let of = |name: &str| (settings.types[name].idle, settings.types[name].reentrancy);
        assert_eq!(of("a"), (seconds(600), Some(7)));
        assert_eq!(of("b"), (seconds(5), None));
        assert_eq!(settings.drain, seconds(3), "the longest");
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
            assert!(Settings::parse(wrong.as_bytes()).is_err(), "{wrong}");
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
        assert_eq!(drain(r#"{"drainOngoingCallTimeout": "5s"}"#), seconds(4));
        assert_eq!(
            drain(r#"{"drainOngoingCallTimeout": "4999ms"}"#),
            Duration::from_millis(4999)
        );
        for json in [
            r#"{"entities": ["a", "b"], "drainOngoingCallTimeout": "60s"}"#,
            r#"{"entities": ["a", "b"], "entitiesConfig": [{"entities": ["a", "b"], "drainOngoingCallTimeout": "60s"}]}"#,
        ] {
            let settings = parse(json);
            assert_eq!(settings.drain, seconds(4), "{json}");
            let expected = "drainOngoingCallTimeout (1m0s) for entities=a,b meets or exceeds the dissemination timeout (5s)";
            assert!(
                settings.warnings[0].starts_with(expected),
                "{:?}",
                settings.warnings
            );
        }
        let none = r#"{"drainOngoingCallTimeout": "60s", "drainRebalancedActors": false}"#;
        assert_eq!(drain(none), Duration::ZERO);
    }

    #[test]
    fn rejects_too_many_types() {
        let names: Vec<_> = (0..=MAX_TYPES).map(|n| n.to_string()).collect();
        let json = serde_json::json!({ "entities": names }).to_string();
        assert!(matches!(
            Settings::parse(json.as_bytes()),
            Err(SettingsError::TooMany(4097))
        ));
    }
}
