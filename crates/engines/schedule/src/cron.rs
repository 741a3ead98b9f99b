//! Recurring times as text: six fields, `@every` and names.

use std::time::Duration;

use jiff::{Timestamp, ToSpan as _, Zoned, civil::Weekday, tz::TimeZone};
use outrigger_resources::value::go_nanos;

use crate::field::{DAY, Field, HOUR, MINUTE, MONTH, SECOND, WEEKDAY};

/// Years to search for the next time.
const YEARS: i16 = 5;
/// Limit on search steps: more than five years need.
const STEPS: usize = 10_000;

/// A recurring time.
///
/// ```
/// use outrigger_schedule::cron::{Cron, Dialect};
///
/// let daily = Cron::parse("0 30 9 * * *", Dialect::Job).unwrap();
/// let next = daily.after("2026-01-01T10:00:00Z".parse().unwrap());
/// assert_eq!(next, Some("2026-01-02T09:30:00Z".parse().unwrap()));
/// assert!(Cron::parse("@hourly", Dialect::Job).is_ok());
/// assert!(Cron::parse("61 * * * * *", Dialect::Job).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Cron {
    /// At this interval, which is above zero in [`Dialect::Binding`]. A job's next tick waits for the
    /// answer to the previous one, however short the interval.
    Every(Duration),
    /// At calendar times.
    At(Times),
}

/// Which parts of a text are optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Cron bindings: five fields mean second 0, and times are in the machine's time zone.
    Binding,
    /// Jobs: six fields, and times are in UTC.
    Job,
    /// Stored jobs: as [`Dialect::Job`], and a time zone before `@every` is ignored, as earlier schedulers did.
    Stored,
}

/// Calendar times.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    second: Field,
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
    zone: TimeZone,
}

/// Why a text is not a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid schedule: {0}")]
pub struct CronError(pub(crate) String);

fn wrong<T>(text: impl Into<String>) -> Result<T, CronError> {
    Err(CronError(text.into()))
}

impl Cron {
    /// Parses six fields, seconds first (optional by [`Dialect`]); `@every 1h30m`; `@daily` and similar. A
    /// prefix `TZ=Europe/Berlin ` sets the time zone.
    ///
    /// # Errors
    /// [`CronError`], which names the invalid part.
    pub fn parse(text: &str, dialect: Dialect) -> Result<Self, CronError> {
        let whole = text;
        let zoned = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ="));
        let (zone, text) = match zoned {
            None if dialect == Dialect::Binding => (TimeZone::system(), text),
            None => (TimeZone::UTC, text),
            Some(rest) => {
                let Some((name, rest)) = rest.split_once(' ') else {
                    return wrong("a space and a schedule are expected after the time zone");
                };
                (zone(name)?, rest.trim())
            }
        };
        if let Some(span) = text.strip_prefix("@every ") {
            if zoned.is_some() && dialect != Dialect::Stored {
                return wrong(format!(
                    "timezone is not supported for @every schedules: {whole}; leave out the time zone"
                ));
            }
            let nanos = go_nanos(span).map_err(|error| CronError(format!("@every: {error}")))?;
            return match u64::try_from(nanos) {
                Ok(nanos) if nanos > 0 || dialect != Dialect::Binding => {
                    Ok(Self::Every(Duration::from_nanos(nanos)))
                }
                _ => wrong("@every needs a duration above zero"),
            };
        }
        let text = match text {
            "@yearly" | "@annually" => "0 0 0 1 1 *",
            "@monthly" => "0 0 0 1 * *",
            "@weekly" => "0 0 0 * * 0",
            "@daily" | "@midnight" => "0 0 0 * * *",
            "@hourly" => "0 0 * * * *",
            other if other.starts_with('@') => return wrong(format!("{other} is not a known descriptor")),
            other => other,
        };
        Times::parse(text, zone, dialect).map(Self::At)
    }
}

impl Cron {
    /// The first time after `time`; `None` if there is none for years.
    pub fn after(&self, time: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(span) => time.checked_add(*span).ok(),
            Self::At(times) => times.after(time),
        }
    }
}

fn zone(name: &str) -> Result<TimeZone, CronError> {
    match name {
        "" | "UTC" => Ok(TimeZone::UTC),
        "Local" => Ok(TimeZone::system()),
        _ => TimeZone::get(name).map_err(|error| CronError(format!("the time zone {name}: {error}"))),
    }
}

impl Times {
    fn parse(text: &str, zone: TimeZone, dialect: Dialect) -> Result<Self, CronError> {
        let mut fields: Vec<&str> = text.split_whitespace().collect();
        let (seconds, expected) = match dialect {
            Dialect::Binding => ("[second]", "5 or 6"),
            Dialect::Job | Dialect::Stored => ("second", "6"),
        };
        if fields.len() == 5 && dialect == Dialect::Binding {
            fields.insert(0, "0");
        }
        let [second, minute, hour, day, month, weekday] = fields.as_slice() else {
            return wrong(format!(
                "{expected} fields are expected ({seconds} minute hour day-of-month month day-of-week), but there \
                 are {}",
                fields.len()
            ));
        };
        Ok(Self {
            second: Field::parse(second, &SECOND)?,
            minute: Field::parse(minute, &MINUTE)?,
            hour: Field::parse(hour, &HOUR)?,
            day: Field::parse(day, &DAY)?,
            month: Field::parse(month, &MONTH)?,
            weekday: Field::parse(weekday, &WEEKDAY)?,
            zone,
        })
    }

    /// If both days are given, either may match; otherwise both must.
    fn on_day(&self, time: &Zoned) -> bool {
        let day = self.day.has(time.day());
        let weekday = self.weekday.has(time.weekday().since(Weekday::Sunday));
        if self.day.any || self.weekday.any {
            day && weekday
        } else {
            day || weekday
        }
    }

    /// The first time after `time`; `None` if there is none for years. An hour that the clock skips is
    /// skipped, and one that occurs twice counts twice.
    pub fn after(&self, time: Timestamp) -> Option<Timestamp> {
        let start = Timestamp::from_second(time.as_second().checked_add(1)?).ok()?;
        let mut time = start.to_zoned(self.zone.clone());
        let last = time.year().saturating_add(YEARS);
        for _ in 0..STEPS {
            if time.year() > last {
                return None;
            }
            time = if !self.month.has(time.month()) {
                time.first_of_month()
                    .ok()?
                    .checked_add(1.month())
                    .ok()?
                    .start_of_day()
                    .ok()?
            } else if !self.on_day(&time) {
                time.tomorrow().ok()?.start_of_day().ok()?
            } else if !self.hour.has(time.hour()) {
                let passed = i64::from(time.minute()) * 60 + i64::from(time.second());
                time.checked_add((3600 - passed).seconds()).ok()?
            } else if !self.minute.has(time.minute()) {
                time.checked_add((60 - i64::from(time.second())).seconds()).ok()?
            } else if !self.second.has(time.second()) {
                time.checked_add(1.second()).ok()?
            } else {
                return Some(time.timestamp());
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, from: &str) -> Option<String> {
        let Cron::At(times) = Cron::parse(&format!("TZ=Europe/Berlin {schedule}"), Dialect::Binding).unwrap()
        else {
            panic!("{schedule} has no times");
        };
        let from: Zoned = format!("{from}[Europe/Berlin]").parse().unwrap();
        let next = times.after(from.timestamp())?.to_zoned(times.zone);
        Some(next.strftime("%a %Y-%m-%dT%H:%M:%S%:z").to_string())
    }

    #[test]
    fn selects_times_by_fields() {
        for (schedule, from, expected) in [
            (
                "* * * * *",
                "2026-03-01T00:00:30",
                "Sun 2026-03-01T00:01:00+01:00",
            ),
            (
                "*/15 * * * * *",
                "2026-03-01T00:00:30",
                "Sun 2026-03-01T00:00:45+01:00",
            ),
            (
                "5/20 * * * *",
                "2026-03-01T00:26:00",
                "Sun 2026-03-01T00:45:00+01:00",
            ),
            (
                "0 30 8-10 * * *",
                "2026-03-01T10:30:00",
                "Mon 2026-03-02T08:30:00+01:00",
            ),
            (
                "0 0 0 29 2 ?",
                "2026-03-01T00:00:00",
                "Tue 2028-02-29T00:00:00+01:00",
            ),
            (
                "0 0 12 * jan,Feb mon-FRI",
                "2026-02-27T12:00:00",
                "Fri 2027-01-01T12:00:00+01:00",
            ),
            // Two days are given: either may match.
            (
                "0 0 13 * FRI",
                "2026-03-01T00:00:00",
                "Fri 2026-03-06T00:00:00+01:00",
            ),
            (
                "0 0 13 * FRI",
                "2026-03-06T00:00:00",
                "Fri 2026-03-13T00:00:00+01:00",
            ),
            // A step restricts "any".
            (
                "0 0 */10 * FRI",
                "2026-03-01T00:00:00",
                "Fri 2026-03-06T00:00:00+01:00",
            ),
            ("@hourly", "2026-03-01T00:59:59", "Sun 2026-03-01T01:00:00+01:00"),
            ("@daily", "2026-03-01T00:00:00", "Mon 2026-03-02T00:00:00+01:00"),
            ("@weekly", "2026-03-01T00:00:00", "Sun 2026-03-08T00:00:00+01:00"),
            ("@monthly", "2026-03-01T00:00:00", "Wed 2026-04-01T00:00:00+02:00"),
            ("@yearly", "2026-03-01T00:00:00", "Fri 2027-01-01T00:00:00+01:00"),
        ] {
            assert_eq!(
                next(schedule, from).as_deref(),
                Some(expected),
                "{schedule} after {from}"
            );
        }
        assert_eq!(next("0 0 30 2 *", "2026-03-01T00:00:00"), None);
    }

    #[test]
    fn handles_daylight_saving() {
        // 02:00 to 03:00 does not exist on the 29th of March, and exists twice on the 25th of October.
        let skipped = next("30 2 * * *", "2026-03-28T12:00:00").unwrap();
        assert_eq!(skipped, "Mon 2026-03-30T02:30:00+02:00");
        let hourly = next("0 * * * *", "2026-03-29T01:30:00").unwrap();
        assert_eq!(hourly, "Sun 2026-03-29T03:00:00+02:00");
        let first = next("30 2 * * *", "2026-10-25T00:00:00+02:00").unwrap();
        assert_eq!(first, "Sun 2026-10-25T02:30:00+02:00");
        let second = next("30 2 * * *", "2026-10-25T02:30:00+02:00").unwrap();
        assert_eq!(second, "Sun 2026-10-25T02:30:00+01:00");
    }

    #[test]
    fn intervals_use_go_durations() {
        let every = |text: &str| Cron::parse(text, Dialect::Job);
        assert_eq!(every("@every 1h30m"), Ok(Cron::Every(Duration::from_secs(5400))));
        assert_eq!(every("@every 100ms"), Ok(Cron::Every(Duration::from_millis(100))));
        assert_eq!(every("@every 0s"), Ok(Cron::Every(Duration::ZERO)));
        assert!(Cron::parse("@every 0s", Dialect::Binding).is_err());
        for text in ["@every -1s", "@every soon", "@every"] {
            assert!(every(text).is_err(), "{text}");
        }
        for zone in ["TZ=Europe/Berlin", "CRON_TZ=UTC"] {
            let text = format!("{zone} @every 1h");
            let error = every(&text).unwrap_err().to_string();
            let expected = format!("timezone is not supported for @every schedules: {text}");
            assert!(error.contains(&expected), "{error}");
            let stored = Cron::parse(&text, Dialect::Stored);
            assert_eq!(
                stored,
                Ok(Cron::Every(Duration::from_secs(3600))),
                "stored before v1.18"
            );
        }
    }

    #[test]
    fn jobs_require_seconds_and_use_utc() {
        let error = Cron::parse("* * * * *", Dialect::Job).unwrap_err().to_string();
        assert!(error.contains("6 fields"), "{error}");
        let daily = Cron::parse("0 0 12 * * *", Dialect::Job).unwrap();
        let next = daily.after("2026-03-29T00:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(next.to_string(), "2026-03-29T12:00:00Z");
    }

    #[test]
    fn errors_name_invalid_part() {
        for (text, word) in [
            ("", "fields"),
            ("* * * *", "fields"),
            ("* * * * * * *", "fields"),
            ("60 * * * *", "0 to 59"),
            ("* * 0 * *", "1 to 31"),
            ("* * * * 7", "0 to 6"),
            ("* * * 13 *", "month"),
            ("5-1 * * * *", "end"),
            ("*/0 * * * *", "step"),
            ("1-2-3 * * * *", "more than one -"),
            ("1/2/3 * * * *", "more than one /"),
            ("x * * * *", "\"x\""),
            (", * * * *", "no value"),
            ("@fortnightly", "@fortnightly"),
            ("TZ=Nowhere/Land * * * * *", "Nowhere/Land"),
            ("TZ=UTC", "time zone"),
        ] {
            let error = Cron::parse(text, Dialect::Binding).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
