//! Things that may happen all the time and are logged once in a while.

use std::time::Duration;

use tokio::time::Instant;

/// Between two lines of the log about the same thing.
const PERIOD: Duration = Duration::from_secs(10);

/// Limits the lines of the log about one thing: counts how often it happened since the last line.
#[derive(Debug, Default)]
pub struct LogThrottle {
    logged: Option<Instant>,
    times: u64,
}

impl LogThrottle {
    /// It happened; how often since the last time that this returned anything, when it is time for a line.
    pub fn happened(&mut self) -> Option<u64> {
        self.times += 1;
        if self.logged.is_some_and(|logged| logged.elapsed() < PERIOD) {
            return None;
        }
        self.logged = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn logs_once_per_period() {
        let mut throttle = LogThrottle::default();
        assert_eq!([(); 3].map(|()| throttle.happened()), [Some(1), None, None]);
        tokio::time::advance(PERIOD).await;
        assert_eq!([(); 2].map(|()| throttle.happened()), [Some(3), None]);
    }
}
