//! Pauses before reconnecting to the operator. All sidecars lose it at the same moment, so the pauses are
//! random to avoid a thundering herd.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use outrigger_policy::resiliency::{Backoff, CodeMatch, RetrySpec, RetryState};

/// The first pause and the longest, both before jitter of up to one half.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Exponential pauses with jitter of up to one half.
#[derive(Debug)]
pub(crate) struct Pauses {
    spec: RetrySpec,
    state: RetryState,
    seed: u64,
}

impl Pauses {
    /// Pauses with a random seed.
    pub(crate) fn new() -> Self {
        // The standard library seeds every hasher from the system's entropy.
        Self::seeded(RandomState::new().build_hasher().finish())
    }

    /// Pauses with a fixed seed.
    pub(crate) fn seeded(seed: u64) -> Self {
        let spec = RetrySpec {
            backoff: Backoff::Exponential {
                initial: PAUSES.0,
                max: PAUSES.1,
                max_elapsed: None,
            },
            max_retries: None,
            matching: CodeMatch::default(),
        };
        Self {
            state: RetryState::new(&spec, Instant::now(), seed),
            spec,
            seed,
        }
    }

    /// The next pause, after a failure.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.state.next_delay(&self.spec, None, Instant::now());
        // Unlimited, so there is always a next pause.
        pause.unwrap_or(PAUSES.1)
    }

    /// Starts over with a short pause, after a success.
    pub(crate) fn reset(&mut self) {
        self.seed = self.seed.wrapping_add(1);
        self.state = RetryState::new(&self.spec, Instant::now(), self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDECARS: u64 = 2000;

    /// The maximum number of `times` within any window of this length.
    fn fullest(times: &[Duration], stretch: Duration) -> usize {
        let mut counts = std::collections::HashMap::<u128, usize>::new();
        for time in times {
            *counts.entry(time.as_nanos() / stretch.as_nanos()).or_default() += 1;
        }
        counts.into_values().max().unwrap_or_default()
    }

    /// The time at which each sidecar reconnects after an outage of this length.
    fn returns(away: Duration) -> Vec<Duration> {
        let back = |seed| {
            let (mut pauses, mut now) = (Pauses::seeded(seed), Duration::ZERO);
            loop {
                now += pauses.next();
                if now >= away {
                    return now - away;
                }
            }
        };
        (0..SIDECARS).map(back).collect()
    }

    #[test]
    fn spreads_reconnects() {
        let most = PAUSES.1.mul_f64(1.5);
        for away in [0, 2, 20, 300].map(Duration::from_secs) {
            let times = returns(away);
            let (first, stretch) = match away.is_zero() {
                // A stream that only has to be reopened is back within a second.
                true => (Duration::from_millis(750), Duration::from_millis(50)),
                false => (most, Duration::from_millis(100)),
            };
            assert!(
                times.iter().all(|time| *time <= first),
                "{away:?}: {:?}",
                times.iter().max()
            );
            let crowd = fullest(&times, stretch);
            assert!(
                crowd < times.len() / 5,
                "{away:?}: {crowd} of {} within {stretch:?}",
                times.len()
            );
        }
    }

    #[test]
    fn pauses_grow_and_reset() {
        let mut pauses = Pauses::seeded(7);
        let first = pauses.next();
        assert!(first >= PAUSES.0 / 2 && first <= PAUSES.0 * 2, "{first:?}");
        let last = (0..50).map(|_| pauses.next()).last().unwrap();
        assert!(last >= PAUSES.1 / 2, "{last:?}");
        pauses.reset();
        let again = pauses.next();
        assert!(again <= PAUSES.0 * 2, "{again:?}");
        assert_ne!(again, first, "the same as after the failure before");
    }
}
