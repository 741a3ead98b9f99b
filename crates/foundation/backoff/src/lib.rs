//! Pauses between attempts: twice as long each time, up to the longest. Whoever attempts waits, and says when the pauses begin
//! again. Those of resiliency policies are the contract's, and not these.
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

/// Pauses that double from the first to the longest.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    is_jittered: bool,
    /// How many there were since the first.
    taken: u32,
}

impl Backoff {
    /// The first pause, and the longest: no other is longer, the first neither.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            is_jittered: false,
            taken: 0,
        }
    }

    /// Leaves half of each pause to chance, so that those who lost the same server at the same moment do not come back together.
    #[must_use]
    pub const fn jittered(mut self) -> Self {
        self.is_jittered = true;
        self
    }

    /// Begins again with the first pause.
    pub fn reset(&mut self) {
        self.taken = 0;
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self.after(self.taken);
        self.taken = self.taken.saturating_add(1);
        pause
    }

    /// The pause that follows `count` others, for who counts them: [`Backoff::pause`] goes on as if it had not been asked for.
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
