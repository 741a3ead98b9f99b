use std::num::NonZeroU16;

/// Limit of prefetched bytes for brokers that count messages.
const MAX_AHEAD: usize = 32 * 1024 * 1024;
/// Prefetch count before message sizes are known.
const INITIAL_COUNT: usize = 16;
/// The prefetch count grows only by this factor, because each change costs a round trip.
const REFILL_FACTOR: usize = 4;

/// Prefetch count for brokers that count messages regardless of size: as many as fit into 32 MiB by the
/// largest recent message, at least one.
#[derive(Debug)]
pub struct Prefetch {
    most: NonZeroU16,
    asked: u16,
    /// Expected size of the next message: the largest recent one, bytes.
    expected: usize,
}

impl Prefetch {
    /// A prefetch of at most `most` messages.
    pub fn new(most: NonZeroU16) -> Self {
        let mut prefetch = Self {
            most,
            asked: 0,
            expected: MAX_AHEAD / INITIAL_COUNT,
        };
        prefetch.asked = prefetch.fitting();
        prefetch
    }

    /// The current prefetch count.
    pub fn count(&self) -> u16 {
        self.asked
    }

    /// Records a message of `size` bytes. Returns whether the broker needs a new [`Prefetch::count`].
    pub fn received(&mut self, size: usize) -> bool {
        self.expected = size.max(self.expected - self.expected / 32).min(MAX_AHEAD);
        let (fitting, asked) = (usize::from(self.fitting()), usize::from(self.asked));
        let shrinks = fitting <= asked / 2;
        let all = fitting == usize::from(self.most.get());
        let grows = fitting > asked && (fitting >= asked * REFILL_FACTOR || all);
        if shrinks || grows {
            self.asked = self.fitting();
        }
        shrinks || grows
    }

    fn fitting(&self) -> u16 {
        let fitting = MAX_AHEAD / self.expected.max(1);
        let most = self.most.get();
        u16::try_from(fitting).unwrap_or(most).clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefetch(most: u16) -> Prefetch {
        Prefetch::new(NonZeroU16::new(most).unwrap())
    }

    /// The prefetch counts requested while messages of these sizes arrive.
    fn asked(prefetch: &mut Prefetch, sizes: impl IntoIterator<Item = usize>) -> Vec<u16> {
        let mut counts = Vec::new();
        for size in sizes {
            if prefetch.received(size) {
                counts.push(prefetch.count());
            }
        }
        counts
    }

    #[test]
    fn grows_in_few_steps_for_small_messages() {
        let mut small = prefetch(1024);
        assert_eq!(small.count(), 16);
        let counts = asked(&mut small, [100; 1000]);
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&1024));
        assert!(counts.len() <= 4, "{counts:?}");
    }

    #[test]
    fn shrinks_on_first_large_message() {
        let mut changing = prefetch(1024);
        asked(&mut changing, [100; 1000]);
        assert_eq!(asked(&mut changing, [8 * 1024 * 1024]), [4]);
        assert_eq!(
            asked(&mut changing, [64 * 1024 * 1024]),
            [1],
            "one, however large"
        );
        assert_eq!(asked(&mut changing, [100; 1000]).last(), Some(&1024));
    }

    #[test]
    fn stays_within_maximum() {
        let mut few = prefetch(3);
        assert_eq!(few.count(), 3);
        assert!(asked(&mut few, [100; 1000]).is_empty());
        let mut one = prefetch(1);
        assert!(asked(&mut one, [64 * 1024 * 1024, 100]).is_empty());
        assert_eq!(one.count(), 1);
    }

    #[test]
    fn alternating_sizes_rarely_change_prefetch() {
        let mut mixed = prefetch(1024);
        let sizes = (0..1000).map(|number| if number % 10 == 0 { 1024 * 1024 } else { 100 });
        let counts = asked(&mut mixed, sizes);
        assert!(counts.len() <= 2, "{counts:?}");
    }
}
