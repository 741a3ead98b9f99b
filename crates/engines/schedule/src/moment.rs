//! Points in time as text: RFC 3339, or a Go or ISO 8601 duration from now.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;
use outrigger_resources::value::go_nanos;

/// Why a text is not a point in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MomentError {
    /// None of the three formats.
    #[error(
        "format not recognized: {0:?} (expected RFC 3339, a duration such as 1h30m, or ISO 8601 such as PT1H30M)"
    )]
    Form(String),
    /// `R5/PT1H` where a single point is required.
    #[error("repeats not supported")]
    Repeats,
    /// Outside the supported years.
    #[error("{0:?} is outside the supported years")]
    Range(String),
}

/// Parses a point in time; durations are relative to `from`. The last hours of the year 9999, which many
/// systems use for "never", map to the latest supported time.
///
/// ```
/// use outrigger_schedule::moment::moment;
///
/// let now = "2026-01-01T00:00:00Z".parse().unwrap();
/// assert_eq!(moment("1h30m", now).unwrap(), "2026-01-01T01:30:00Z".parse().unwrap());
/// assert_eq!(moment("P1D", now).unwrap(), "2026-01-02T00:00:00Z".parse().unwrap());
/// ```
///
/// # Errors
/// [`MomentError`].
pub fn moment(text: &str, from: Timestamp) -> Result<Timestamp, MomentError> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    if is_last_day(text) {
        return Ok(Timestamp::MAX);
    }
    let range = || MomentError::Range(text.to_owned());
    if let Ok(nanos) = go_nanos(text) {
        return from
            .checked_add(jiff::SignedDuration::from_nanos(nanos))
            .map_err(|_| range());
    }
    let span = IsoSpan::parse(text).ok_or_else(|| MomentError::Form(text.to_owned()))?;
    if span.repetitions.is_some_and(|n| n > 0) {
        return Err(MomentError::Repeats);
    }
    span.after(from).ok_or_else(range)
}

/// Whether it is an RFC 3339 time at the end of the year 9999, where [`Timestamp`] ends a day before the
/// calendar.
fn is_last_day(text: &str) -> bool {
    Pieces::parse(text).is_ok_and(|pieces| {
        let end = (9999, 12, 30);
        let date = pieces.date();
        (date.year(), date.month(), date.day()) >= end
            && pieces.time().is_some()
            && pieces.to_numeric_offset().is_some()
    })
}

/// An ISO 8601 duration with an optional number of repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IsoSpan {
    /// `R<n>/`.
    pub repetitions: Option<u32>,
    /// Calendar years, `P1Y`.
    pub years: u32,
    /// Calendar months, `P1M`.
    pub months: u32,
    /// Days; a week counts as seven.
    pub days: u32,
    /// Hours, minutes and seconds.
    pub time: Duration,
}

impl IsoSpan {
    /// Parses `[R<n>/]P[nY][nM][nW][nD][T[nH][nM][nS]]` with integers only; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut span = Self::default();
        let mut rest = text;
        if let Some(repeated) = text.strip_prefix('R') {
            let (count, after) = repeated.split_once('/')?;
            // As in Dapr, a negative number means no limit.
            span.repetitions = match count.parse::<i64>().ok()? {
                ..0 => None,
                count => Some(u32::try_from(count).ok()?),
            };
            rest = after;
        }
        let mut rest = rest.strip_prefix('P')?;
        let mut in_time = false;
        let mut parts = 0;
        // The units that may still follow, in order.
        let mut left = "YMWD";
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('T') {
                if in_time {
                    return None;
                }
                (in_time, left, rest) = (true, "HMS", after);
                continue;
            }
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u32 = rest.get(..digits)?.parse().ok()?;
            let unit = rest.get(digits..)?.chars().next()?;
            left = &left[left.find(unit)? + 1..];
            span.add(number, unit, in_time)?;
            rest = &rest[digits + 1..];
            parts += 1;
        }
        (parts > 0 && !text.ends_with('T')).then_some(span)
    }

    fn add(&mut self, number: u32, unit: char, in_time: bool) -> Option<()> {
        let seconds = |each: u64| Duration::from_secs(u64::from(number) * each);
        match (in_time, unit) {
            (false, 'Y') => self.years = number,
            (false, 'M') => self.months = number,
            (false, 'W') => self.days = self.days.checked_add(number.checked_mul(7)?)?,
            (false, 'D') => self.days = self.days.checked_add(number)?,
            (true, 'H') => self.time += seconds(3600),
            (true, 'M') => self.time += seconds(60),
            (true, 'S') => self.time += seconds(1),
            _ => return None,
        }
        Some(())
    }

    /// Whether it has calendar parts, whose length depends on the start.
    pub fn is_calendar(&self) -> bool {
        self.years > 0 || self.months > 0 || self.days > 0
    }

    /// The time this long after `from`. Days that a month lacks carry over to the next one, as in Go: a
    /// month after the 31st of January is the 3rd of March, or the 2nd in a leap year.
    pub fn after(&self, from: Timestamp) -> Option<Timestamp> {
        let start = from.to_zoned(TimeZone::UTC).datetime();
        let date = start.date();
        let months = i64::from(date.month()) - 1 + i64::from(self.months) + i64::from(self.years) * 12;
        let year = i64::from(date.year()).checked_add(months.div_euclid(12))?;
        let month = months.rem_euclid(12) + 1;
        let first = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
        let days = i64::from(date.day()) - 1 + i64::from(self.days);
        let date = first.checked_add(jiff::Span::new().try_days(days).ok()?).ok()?;
        let moment = date.to_datetime(start.time()).to_zoned(TimeZone::UTC).ok()?;
        moment.timestamp().checked_add(self.time).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, from: &str) -> Result<String, MomentError> {
        moment(text, from.parse().unwrap()).map(|moment| moment.to_string())
    }

    #[test]
    fn parses_three_formats() {
        let from = "2026-01-31T10:00:00Z";
        for (text, expected) in [
            ("2026-02-01T00:00:00+01:00", "2026-01-31T23:00:00Z"),
            ("1h30m", "2026-01-31T11:30:00Z"),
            ("1500ms", "2026-01-31T10:00:01.5Z"),
            ("0h0m3s0ms", "2026-01-31T10:00:03Z"),
            ("-1h", "2026-01-31T09:00:00Z"),
            ("PT1H30M", "2026-01-31T11:30:00Z"),
            ("P1W", "2026-02-07T10:00:00Z"),
            ("P1Y2M3DT4H5M6S", "2027-04-03T14:05:06Z"),
            ("R0/PT5S", "2026-01-31T10:00:05Z"),
            ("R-1/PT5S", "2026-01-31T10:00:05Z"),
            // February has no 31st.
            ("P1M", "2026-03-03T10:00:00Z"),
            ("P25M", "2028-03-02T10:00:00Z"),
        ] {
            assert_eq!(at(text, from).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn maps_end_of_calendar_to_last_time() {
        let from = "2026-01-31T10:00:00Z";
        for text in [
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59.9999999Z",
            "9999-12-31T01:00:00+02:00",
            "9999-12-30T23:00:00-05:00",
        ] {
            assert_eq!(moment(text, from.parse().unwrap()), Ok(Timestamp::MAX), "{text}");
        }
        assert_eq!(
            at("9999-12-30T21:00:00Z", from).as_deref(),
            Ok("9999-12-30T21:00:00Z")
        );
        for text in [
            "9999-12-31",
            "9999-12-31T23:59:59",
            "9999-12-32T00:00:00Z",
            "10000-01-01T00:00:00Z",
        ] {
            assert!(matches!(at(text, from), Err(MomentError::Form(_))), "{text}");
        }
    }

    #[test]
    fn errors_explain_invalid_times() {
        let from = "2026-01-31T10:00:00Z";
        for text in [
            "", "P", "PT", "P1DT", "P1.5D", "P-1D", "P1D1Y", "PT1S1M", "1", "tomorrow", "R/PT1S", "P1",
            "PT1HT1M", "Pé",
        ] {
            let error = at(text, from).unwrap_err();
            assert!(matches!(error, MomentError::Form(_)), "{text}: {error}");
        }
        assert_eq!(at("R3/PT1S", from), Err(MomentError::Repeats));
        for text in ["P4000000000Y", "P9999Y", "P4000000000D"] {
            assert!(matches!(at(text, from), Err(MomentError::Range(_))), "{text}");
        }
    }
}
