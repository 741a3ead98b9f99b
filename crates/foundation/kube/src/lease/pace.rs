//! Timing of an election.

use std::time::Duration;

/// Trade-off between failover time and API load.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Lease duration. It is written to the lease, and other implementations use it.
    pub(super) lasts: Duration,
    /// Timeout for reading and acquiring the lease. Shorter than `give_up`, so that some lease time is
    /// left.
    pub(super) take: Duration,
    /// Renewal interval, and the maximum pause after a failure.
    pub(super) renew: Duration,
    /// Initial pause after a failed renewal or read; doubles.
    pub(super) retry: Duration,
    /// Timeout of a renewal, so that a hung one is retried before `give_up`. Also the timeout of the
    /// release.
    pub(super) attempt: Duration,
    /// A holder steps down after this long without a renewal, before others may acquire the lease.
    pub(super) give_up: Duration,
}

impl Pace {
    /// Fewer than two writes per minute; failover takes a minute.
    pub const SLOW: Self = Self {
        lasts: Duration::from_secs(60),
        take: Duration::from_secs(30),
        renew: Duration::from_secs(36),
        retry: Duration::from_secs(5),
        attempt: Duration::from_secs(4),
        give_up: Duration::from_secs(50),
    };
    /// 15 writes per minute; failover takes 12 to 14 seconds after the last renewal.
    pub const FAST: Self = Self {
        lasts: Duration::from_secs(12),
        take: Duration::from_secs(4),
        renew: Duration::from_secs(4),
        retry: Duration::from_millis(2500),
        attempt: Duration::from_millis(2400),
        give_up: Duration::from_secs(10),
    };
}

/// Random extension of pauses as a fraction, so that replicas do not act in step.
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
            // Allows clocks to differ in rate by a tenth, more than real clocks do.
            assert!(pace.give_up < pace.lasts.mul_f64(0.9), "{pace:?}");
            // Even with maximum jitter, two complete attempts fit.
            let pauses = (pace.renew + pace.retry).mul_f64(1.0 + SPREAD);
            assert!(
                pauses + pace.attempt < pace.give_up && pace.attempt < pace.retry,
                "{pace:?}"
            );
            assert!(pace.take < pace.give_up, "{pace:?}");
            // The lease stores whole seconds.
            assert_eq!(pace.lasts.subsec_nanos(), 0);
        }
    }

    #[test]
    fn slow_pace_limits_requests() {
        // Including an operator's watches, each reopened after half an hour at the earliest.
        let watches = 8.0 / 30.0;
        assert!(Duration::from_secs(60).div_duration_f64(Pace::SLOW.renew) + watches <= 2.0);
    }
}
