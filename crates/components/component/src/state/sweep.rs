//! Expired rows of stores whose servers do not delete them.

use std::time::Duration;

use async_trait::async_trait;
use tokio_util::task::AbortOnDropHandle;

use crate::Result;

/// A store that several sidecars may sweep, one of them each time.
#[async_trait]
pub trait Sweep: Send + Sync + 'static {
    /// Deletes expired rows, unless a sidecar did so within the last `least` milliseconds: then it was another's turn,
    /// `None`. If not, how many.
    async fn once(&self, least: i64) -> Result<Option<u64>>;
}

/// Sweeps every so often, until the handle is dropped.
pub fn sweep(store: impl Sweep, every: Duration) -> AbortOnDropHandle<()> {
    // A little less than the interval: timers and clocks are not exact.
    let least = i64::try_from(every.as_millis())
        .unwrap_or(i64::MAX)
        .saturating_sub(100);
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            match store.once(least).await {
                Ok(Some(rows)) => tracing::info!(target: "dapr.contrib", "Removed {rows} expired rows"),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(target: "dapr.contrib", "Error removing expired data: {error}");
                }
            }
        }
    }))
}
