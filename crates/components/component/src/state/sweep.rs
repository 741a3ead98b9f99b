//! Deletes expired rows in stores whose servers do not.

use std::time::Duration;

use async_trait::async_trait;
use tokio_util::task::AbortOnDropHandle;

use crate::Result;

/// A store swept by several sidecars, one at a time.
#[async_trait]
pub trait Sweep: Send + Sync + 'static {
    /// Deletes expired rows and returns their number. `None` if another sidecar did so within the last
    /// `least` milliseconds.
    async fn once(&self, least: i64) -> Result<Option<u64>>;
}

/// Sweeps at an interval until the handle is dropped.
pub fn sweep(store: impl Sweep, every: Duration) -> AbortOnDropHandle<()> {
    // Slightly less than the interval, because timers and clocks are inexact.
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
