//! How fast an election goes.

use std::time::Duration;

/// How soon a holder that died is followed, against what it asks the API for at rest.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long a lease lasts that nobody renews. It stands in the lease, and replicas of other makes go by it.
    pub(super) lasts: Duration,
    /// How long it may take to look at it, and to take it. Less than giving up: there is something left of it then.
    pub(super) take: Duration,
    /// Between two renewals, and the most from a failure to the next look.
    pub(super) renew: Duration,
    /// From an attempt to renew it that fails to the next, and from a first failure to the next look; that doubles.
    pub(super) retry: Duration,
    /// How long such an attempt may take; so a hung one is followed by another before giving up. Also the time to give the
    /// lease back.
    pub(super) attempt: Duration,
    /// Without a renewal for this long a holder gives up: before others may take over.
    pub(super) give_up: Duration,
}

impl Pace {
    /// A holder writes less than twice a minute; one that dies is followed after a minute.
    pub const SLOW: Self = Self {
        lasts: Duration::from_secs(60),
        take: Duration::from_secs(30),
        renew: Duration::from_secs(36),
        retry: Duration::from_secs(5),
        attempt: Duration::from_secs(4),
        give_up: Duration::from_secs(50),
    };
    /// A holder writes 15 times a minute; one that dies is followed 12 to 14 seconds after it last did.
    pub const FAST: Self = Self {
        lasts: Duration::from_secs(12),
        take: Duration::from_secs(4),
        renew: Duration::from_secs(4),
        retry: Duration::from_millis(2500),
        attempt: Duration::from_millis(2400),
        give_up: Duration::from_secs(10),
    };
}

/// Whoever waits for the same moment waits up to this part of a pause longer, so that not all come at once.
pub(super) const SPREAD: f64 = 0.1;

pub(super) fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(1.0..=1.0 + SPREAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_steps_down_after_two_attempts() {
        for pace in [Pace::SLOW, Pace::FAST] {
            // Others may be faster by a tenth, which no clock is.
            assert!(pace.give_up < pace.lasts.mul_f64(0.9), "{pace:?}");
            // However the pauses are drawn, two whole attempts fit.
            let pauses = (pace.renew + pace.retry).mul_f64(1.0 + SPREAD);
            assert!(
                pauses + pace.attempt < pace.give_up && pace.attempt < pace.retry,
                "{pace:?}"
            );
            assert!(pace.take < pace.give_up, "{pace:?}");
            // It stands in the lease as whole seconds.
            assert_eq!(pace.lasts.subsec_nanos(), 0);
        }
    }

    #[test]
    fn slow_pace_limits_requests() {
        // With the watches of an operator, of which each is opened again after half an hour at the earliest.
        let watches = 8.0 / 30.0;
        assert!(Duration::from_secs(60).div_duration_f64(Pace::SLOW.renew) + watches <= 2.0);
    }
}
