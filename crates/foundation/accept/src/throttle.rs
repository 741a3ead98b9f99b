//! Rate limit for repeated log lines.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum time between two log lines about the same event.
const PERIOD: Duration = Duration::from_secs(10);

/// Rate limit for the log line of one event: counts occurrences since the last line.
#[derive(Debug, Default)]
pub struct LogThrottle {
    logged: Option<Instant>,
    times: u64,
}

impl LogThrottle {
    /// Records an occurrence. When a line is due, returns the number of occurrences since the last one.
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
