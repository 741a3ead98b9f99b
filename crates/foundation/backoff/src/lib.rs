//! Exponential backoff: pauses that double up to a maximum. The caller waits, and resets the backoff after
//! success. Resiliency policies do not use it, because Dapr's contract defines their backoff.
//!
//! ```
//! use std::time::Duration;
//!
//! use outrigger_backoff::Backoff;
//!
//! let mut pauses = Backoff::new(Duration::from_millis(400), Duration::from_secs(1));
//! let three = [pauses.pause(), pauses.pause(), pauses.pause()];
//! assert_eq!(three.map(|pause| pause.as_millis()), [400, 800, 1000]);
//! pauses.reset();
//! assert_eq!(pauses.pause().as_millis(), 400);
//! ```

use std::time::Duration;

/// Exponential backoff between a first and a longest pause.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    is_jittered: bool,
    /// Pauses taken since the last reset.
    taken: u32,
}

impl Backoff {
    /// Caps all pauses at `longest`, including the first.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            is_jittered: false,
            taken: 0,
        }
    }

    /// Randomizes half of each pause, so that clients that lost the same server do not reconnect in step.
    #[must_use]
    pub const fn jittered(mut self) -> Self {
        self.is_jittered = true;
        self
    }

    /// Restarts with the first pause.
    pub fn reset(&mut self) {
        self.taken = 0;
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.after(self.taken);
        self.taken = self.taken.saturating_add(1);
        pause
    }

    /// The pause after `count` others, for callers that keep the count. Does not advance
    /// [`Backoff::pause`].
    pub fn after(&self, count: u32) -> Duration {
        let factor = 2_u32.saturating_pow(count);
        let pause = self.first.saturating_mul(factor).min(self.longest);
        if self.is_jittered {
            pause.mul_f64(rand::random_range(0.5..=1.0))
        } else {
            pause
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(1);
    const GROWING: [u64; 6] = [100, 200, 400, 800, 1000, 1000];

    #[test]
    fn doubles_to_longest_and_resets() {
        let mut pauses = Backoff::new(FIRST, LONGEST);
        for expected in GROWING {
            assert_eq!(pauses.pause(), Duration::from_millis(expected));
        }
        pauses.reset();
        assert_eq!(pauses.pause(), FIRST);
        assert_eq!(pauses.pause(), FIRST * 2);
    }

    #[test]
    fn jitter_randomizes_half() {
        let mut pauses = Backoff::new(FIRST, LONGEST).jittered();
        for expected in GROWING {
            let (pause, whole) = (pauses.pause(), Duration::from_millis(expected));
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
        let drawn: Vec<_> = (0..100).map(|_| pauses.pause()).collect();
        assert!(drawn.iter().any(|pause| *pause != drawn[0]), "{drawn:?}");
        pauses.reset();
        assert!(pauses.pause() <= FIRST);
    }

    #[test]
    fn after_computes_any_pause() {
        let pauses = Backoff::new(FIRST, LONGEST);
        for (count, expected) in (0..).zip(GROWING) {
            assert_eq!(pauses.after(count), Duration::from_millis(expected));
        }
        for count in [31, 32, 33, u32::MAX] {
            assert_eq!(pauses.after(count), LONGEST);
        }
        let mut pauses = pauses;
        assert_eq!(pauses.pause(), FIRST, "nothing was taken");
    }

    #[test]
    fn caps_first_pause() {
        let mut pauses = Backoff::new(LONGEST * 2, LONGEST);
        assert_eq!([pauses.pause(), pauses.pause()], [LONGEST; 2]);
        let mut pauses = Backoff::new(LONGEST, Duration::MAX);
        pauses.taken = u32::MAX;
        assert_eq!(pauses.pause(), LONGEST * u32::MAX);
        assert_eq!(pauses.pause(), LONGEST * u32::MAX, "they are not counted beyond");
    }
}
