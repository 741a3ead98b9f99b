//! Things that may happen all the time and are told once in a while.

use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of the log about the same thing.
const PERIOD: Duration = Duration::from_secs(10);

/// How often something happened since it was told.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told: Option<Instant>,
    times: u64,
}

impl Seldom {
    /// It happened; how often since the last time that this returned anything, when it is time to tell.
    pub(crate) fn happened(&mut self) -> Option<u64> {
        self.times += 1;
        if self.told.is_some_and(|told| told.elapsed() < PERIOD) {
            return None;
        }
        self.told = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn once_in_a_period() {
        let mut seldom = Seldom::default();
        assert_eq!([(); 3].map(|()| seldom.happened()), [Some(1), None, None]);
        tokio::time::advance(PERIOD).await;
        assert_eq!([(); 2].map(|()| seldom.happened()), [Some(3), None]);
    }
}
