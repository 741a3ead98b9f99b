//! Pauses between attempts: longer each time, and never the same for two processes.

use std::time::Duration;

/// Pauses that double from `least` to `most`.
#[derive(Debug, Clone)]
pub struct Backoff {
    least: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    /// The first pause, and the longest.
    pub fn new(least: Duration, most: Duration) -> Self {
        Self {
            least,
            most,
            next: least,
        }
    }

    /// Begins again with the shortest pause.
    pub fn reset(&mut self) {
        self.next = self.least;
    }

    /// The next pause: between half of it and all.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause.mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_again() {
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut backoff = Backoff::new(least, most);
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let (pause, whole) = (backoff.pause(), Duration::from_millis(expected));
            assert!(whole / 2 <= pause && pause <= whole, "{pause:?} of {whole:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= least);
    }
}
