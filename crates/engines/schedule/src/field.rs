//! One field of a schedule: seconds, minutes, ..., days of the week.

use crate::cron::CronError;

/// The values of one field, and whether it was written as "any".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Field {
    bits: u64,
    pub(crate) any: bool,
}

/// Valid values of a field.
pub(crate) struct Bounds {
    name: &'static str,
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const fn bounds(name: &'static str, least: u32, most: u32) -> Bounds {
    Bounds {
        name,
        least,
        most,
        names: &[],
    }
}

pub(crate) const SECOND: Bounds = bounds("second", 0, 59);
pub(crate) const MINUTE: Bounds = bounds("minute", 0, 59);
pub(crate) const HOUR: Bounds = bounds("hour", 0, 23);
pub(crate) const DAY: Bounds = bounds("day of month", 1, 31);
pub(crate) const MONTH: Bounds = Bounds {
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
    ..bounds("month", 1, 12)
};
pub(crate) const WEEKDAY: Bounds = Bounds {
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    ..bounds("day of week", 0, 6)
};

impl Field {
    /// Parses a comma-separated list of `*`, `?`, `5`, `1-5`, `*/10`, `3/10` and `1-30/2`; months and days
    /// of the week also by name.
    pub(crate) fn parse(text: &str, bounds: &Bounds) -> Result<Self, CronError> {
        let mut field = Self { bits: 0, any: false };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (bits, any) = range(part, bounds)?;
            field.bits |= bits;
            field.any |= any;
        }
        if field.bits == 0 {
            return Err(wrong(text, bounds, "no value in it"));
        }
        Ok(field)
    }

    pub(crate) fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits & (1 << value) != 0)
    }
}

fn wrong(text: &str, bounds: &Bounds, why: &str) -> CronError {
    CronError(format!("the {} field {text:?}: {why}", bounds.name))
}

fn range(text: &str, bounds: &Bounds) -> Result<(u64, bool), CronError> {
    let failed = |why: &str| wrong(text, bounds, why);
    let (values, step) = match text.split_once('/') {
        None => (text, None),
        Some((_, step)) if step.contains('/') => return Err(failed("more than one /")),
        Some((values, step)) => (
            values,
            Some(number(step).ok_or_else(|| failed("the step is not a number"))?),
        ),
    };
    let ends: Vec<&str> = values.split('-').collect();
    let open = matches!(ends[0], "*" | "?");
    let value = |text| named(text, bounds).ok_or_else(|| failed(&format!("{text:?} is not a valid value")));
    let (first, last) = match ends.as_slice() {
        _ if open => (bounds.least, bounds.most),
        [one] if step.is_some() => (value(one)?, bounds.most),
        [one] => (value(one)?, value(one)?),
        [first, last] => (value(first)?, value(last)?),
        _ => return Err(failed("more than one -")),
    };
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(failed("the step is zero"));
    }
    if first < bounds.least || last > bounds.most {
        return Err(failed(&format!("values are {} to {}", bounds.least, bounds.most)));
    }
    if first > last {
        return Err(failed("the range starts after its end"));
    }
    let mut bits = 0;
    let mut value = first;
    while value <= last {
        bits |= 1_u64 << value;
        value = value.saturating_add(step);
    }
    Ok((bits, open && step == 1))
}

fn named(text: &str, bounds: &Bounds) -> Option<u32> {
    let position = bounds
        .names
        .iter()
        .position(|name| name.eq_ignore_ascii_case(text));
    match position.and_then(|position| u32::try_from(position).ok()) {
        Some(position) => Some(position + bounds.least),
        None => number(text),
    }
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok()
}
