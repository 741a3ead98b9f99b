//! Redelivery of records that the app failed: the `backOff*` properties.

use std::time::Duration;

use outrigger_component::{GoDuration, Metadata, MetadataError, Unit};
use rand::RngExt as _;

/// Delays between attempts at a record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Retry {
    pauses: Pauses,
    /// Maximum retries; `None` for no limit.
    most: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Pauses {
    Constant(Duration),
    Exponential {
        first: Duration,
        factor: f64,
        longest: Duration,
        /// Random variation of each delay, as a fraction.
        spread: f64,
    },
}

impl Retry {
    /// Dapr's default: every 5 s, without limit.
    pub(super) fn read(metadata: &Metadata) -> Result<Self, MetadataError> {
        let span = |name: &str, default: Duration| -> Result<Duration, MetadataError> {
            let given = metadata.duration(&[name], Unit::Seconds)?;
            Ok(given.and_then(GoDuration::positive).unwrap_or(default))
        };
        let number = |name: &str, default: f64, range: std::ops::RangeInclusive<f64>| match metadata
            .number::<f64>(&[name])?
        {
            None => Ok(default),
            Some(number) if range.contains(&number) => Ok(number),
            Some(_) => {
                let expected = format!("use {} to {}", range.start(), range.end());
                Err(metadata.wrong(&[name], &expected))
            }
        };
        let constant = span("backOffDuration", Duration::from_secs(5))?;
        let exponential = Pauses::Exponential {
            first: span("backOffInitialInterval", Duration::from_millis(500))?,
            factor: number("backOffMultiplier", 1.5, 1.0..=100.0)?,
            longest: span("backOffMaxInterval", Duration::from_secs(60))?,
            spread: number("backOffRandomizationFactor", 0.5, 0.0..=1.0)?,
        };
        // Dapr ends an exponential policy after this time; here only the number of attempts ends it.
        let _elapsed = metadata.duration(&["backOffMaxElapsedTime"], Unit::Seconds)?;
        let pauses = match metadata.filled(&["backOffPolicy"]) {
            None => Pauses::Constant(constant),
            Some(text) if text.eq_ignore_ascii_case("constant") => Pauses::Constant(constant),
            Some(text) if text.eq_ignore_ascii_case("exponential") => exponential,
            Some(_) => return Err(metadata.wrong(&["backOffPolicy"], "use constant or exponential")),
        };
        let most = metadata.number::<i64>(&["backOffMaxRetries"])?;
        Ok(Self {
            pauses,
            most: most.and_then(|most| u32::try_from(most).ok()),
        })
    }

    /// The delay before the next attempt after `failed` of them (at least 1); `None` after the last attempt.
    pub(super) fn pause(&self, failed: u32) -> Option<Duration> {
        if self.most.is_some_and(|most| failed > most) {
            return None;
        }
        Some(match &self.pauses {
            Pauses::Constant(pause) => *pause,
            Pauses::Exponential {
                first,
                factor,
                longest,
                spread,
            } => {
                let exponent = i32::try_from(failed.saturating_sub(1)).unwrap_or(i32::MAX);
                let seconds = first.as_secs_f64() * factor.powi(exponent);
                let seconds = seconds.min(longest.as_secs_f64());
                let by = if *spread > 0.0 {
                    rand::rng().random_range(-spread..=*spread)
                } else {
                    0.0
                };
                Duration::from_secs_f64(seconds * (1.0 + by))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(properties: &[(&str, &str)]) -> Retry {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Retry::read(&Metadata::new("broker", owned).unwrap()).unwrap()
    }

    #[test]
    fn default_retries_every_five_seconds() {
        let retry = read(&[]);
        for failed in [1, 2, 1_000_000] {
            assert_eq!(retry.pause(failed), Some(Duration::from_secs(5)));
        }
    }

    #[test]
    fn limits_attempts() {
        let retry = read(&[("backOffMaxRetries", "2"), ("backOffDuration", "1s")]);
        assert_eq!(retry.pause(2), Some(Duration::from_secs(1)));
        assert_eq!(retry.pause(3), None, "two were made again");
        assert_eq!(read(&[("backOffMaxRetries", "0")]).pause(1), None);
        assert!(read(&[("backOffMaxRetries", "-1")]).pause(99).is_some());
    }

    #[test]
    fn exponential_backoff_is_capped() {
        let retry = read(&[
            ("backOffPolicy", "exponential"),
            ("backOffInitialInterval", "1s"),
            ("backOffMultiplier", "2"),
            ("backOffMaxInterval", "5s"),
            ("backOffRandomizationFactor", "0"),
        ]);
        let pauses: Vec<_> = (1..6)
            .map(|failed| retry.pause(failed).unwrap().as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
        assert_eq!(retry.pause(u32::MAX).unwrap().as_secs(), 5);
    }

    #[test]
    fn delays_have_jitter() {
        let retry = read(&[
            ("backOffPolicy", "exponential"),
            ("backOffInitialInterval", "10s"),
        ]);
        for _ in 0..100 {
            let pause = retry.pause(1).unwrap().as_secs_f64();
            assert!((5.0..=15.0).contains(&pause), "{pause}");
        }
    }
}
