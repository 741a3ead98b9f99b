//! Waits for the app's port, and probes its health.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::AppChannel;
use crate::app::AppHealth;

const LOG: &str = "dapr.apphealth";
/// Pause between attempts to connect to the app's port.
const PORT_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of one attempt.
const PORT_TIMEOUT: Duration = Duration::from_millis(500);

/// Whether the app is healthy; cheap to read and clone.
#[derive(Clone, Debug)]
pub struct Health(watch::Receiver<bool>);

/// Changes [`Health`].
pub type HealthSetter = Arc<watch::Sender<bool>>;

impl Health {
    /// A health state and its setter.
    pub fn new(healthy: bool) -> (HealthSetter, Self) {
        let (sender, receiver) = watch::channel(healthy);
        (Arc::new(sender), Self(receiver))
    }

    /// The current state.
    #[inline]
    pub fn is_healthy(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the app is unhealthy; forever if it is not probed.
    pub async fn until_unhealthy(&self) {
        if self.0.clone().wait_for(|healthy| !healthy).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the app is healthy.
    pub async fn until_healthy(&self) {
        if self.0.clone().wait_for(|healthy| *healthy).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until `address` (`host:port`) accepts connections. Tools look for these log lines.
pub async fn wait_for_port(address: &str, port: u16, protocol: &str) {
    tracing::info!(
        target: "dapr.runtime",
        "application protocol: {protocol}. waiting on port {port}.  \
         This will block until the app is listening on that port."
    );
    let mut tries = 0_u32;
    loop {
        if let Ok(Ok(_)) = tokio::time::timeout(PORT_TIMEOUT, TcpStream::connect(address)).await {
            break;
        }
        tries += 1;
        if tries.is_multiple_of(100) {
            tracing::info!(target: "dapr.runtime", "waiting for application to listen on port {port}");
        }
        tokio::time::sleep(PORT_PAUSE).await;
    }
    tracing::info!(target: "dapr.runtime", "application discovered on port {port}");
}

/// Probes the app until cancelled: at once, then at each interval. The app is healthy after one success, and
/// unhealthy after `threshold` failures in a row. Signals `first` after the first probe.
pub async fn probe(
    channel: Arc<AppChannel>,
    config: AppHealth,
    path: String,
    health: HealthSetter,
    first: oneshot::Sender<()>,
    cancel: CancellationToken,
) {
    tracing::info!(target: LOG, "App health probes starting");
    let mut ticks = tokio::time::interval(config.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failures = 0;
    let mut first = Some(first);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let probe = tokio::time::timeout(config.timeout, channel.health_check(&path));
        let result = tokio::select! {
            () = cancel.cancelled() => return,
            result = probe => result.unwrap_or_else(|_| Err(format!("no answer within {:?}", config.timeout))),
        };
        match result {
            Ok(()) => {
                failures = 0;
                if !health.send_replace(true) {
                    tracing::info!(target: LOG, "App entered healthy status");
                }
            }
            Err(reason) => {
                failures += 1;
                if failures >= config.threshold && health.send_replace(false) {
                    tracing::warn!(target: LOG, "App entered un-healthy status: {reason}");
                }
            }
        }
        if let Some(first) = first.take() {
            // The receiver may be gone.
            let _gone = first.send(());
        }
    }
}
