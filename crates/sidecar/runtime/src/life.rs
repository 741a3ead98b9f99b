//! Start and end of the process: readiness and shutdown requests.

mod parts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use parts::{Lifecycle, Stage, Tasks};

const LOG: &str = "dapr.runtime";
/// Delay of a forced shutdown, for its response to be sent.
const FORCE_DELAY: Duration = Duration::from_millis(100);

/// The conditions of `/v1.0/healthz`, and whether outbound calls are possible.
#[derive(Clone, Default)]
pub struct Readiness(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Names, and whether they are met.
    conditions: Mutex<Vec<(&'static str, bool)>>,
    outbound: AtomicBool,
    /// Why outbound calls fail although the start is complete.
    impossible: Mutex<Option<String>>,
}

/// A readiness condition, held by the code that fulfils it.
pub struct Condition {
    readiness: Readiness,
    index: usize,
}

impl Condition {
    /// Marks the condition as met.
    pub fn met(&self) {
        if let Some((_, is_met)) = self.readiness.conditions().get_mut(self.index) {
            *is_met = true;
        }
    }
}

impl Readiness {
    fn conditions(&self) -> MutexGuard<'_, Vec<(&'static str, bool)>> {
        self.0.conditions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an unmet condition.
    pub fn condition(&self, name: &'static str) -> Condition {
        let mut conditions = self.conditions();
        conditions.push((name, false));
        Condition {
            index: conditions.len() - 1,
            readiness: self.clone(),
        }
    }

    /// The names of unmet conditions.
    pub fn unready(&self) -> Vec<String> {
        let conditions = self.conditions();
        conditions
            .iter()
            .filter(|(_, is_met)| !is_met)
            .map(|(name, _)| (*name).to_owned())
            .collect()
    }

    /// Marks outbound calls as possible.
    pub fn outbound_ready(&self) {
        self.0.outbound.store(true, Ordering::Release);
    }

    /// Outbound calls fail with `reason` until [`Readiness::outbound_possible`].
    pub fn outbound_impossible(&self, reason: String) {
        *self.impossible() = Some(reason);
    }

    /// Outbound calls are possible again.
    pub fn outbound_possible(&self) {
        *self.impossible() = None;
    }

    /// Whether outbound calls are possible; the error is the reason, except during start.
    ///
    /// # Errors
    /// Outbound calls are not possible.
    pub fn outbound(&self) -> Result<(), Option<String>> {
        if !self.0.outbound.load(Ordering::Acquire) {
            return Err(None);
        }
        match &*self.impossible() {
            None => Ok(()),
            reason => Err(reason.clone()),
        }
    }

    fn impossible(&self) -> MutexGuard<'_, Option<String>> {
        self.0.impossible.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests the end of the process.
#[derive(Clone, Default)]
pub struct Shutdown {
    graceful: CancellationToken,
    forced: CancellationToken,
}

impl Shutdown {
    /// Requests a graceful shutdown; `forced`: immediate, with exit status 1.
    pub fn request(&self, forced: bool) {
        if forced {
            tracing::warn!(
                target: LOG,
                "Force shutdown requested, exiting immediately without graceful shutdown"
            );
            self.forced.cancel();
            return;
        }
        tracing::info!(target: LOG, "Shutdown requested via API");
        self.graceful.cancel();
    }

    /// Like `request`, without a log line: a part of the process cannot continue.
    pub fn begin(&self) {
        self.graceful.cancel();
    }

    /// Waits for a request.
    pub async fn requested(&self) {
        self.graceful.cancelled().await;
    }

    /// Handles signals while the returned handle is kept. The first one starts a graceful shutdown; a second
    /// one or a forced request ends the process at once.
    ///
    /// # Errors
    /// The process may not handle signals.
    pub fn on_signals(&self) -> std::io::Result<AbortOnDropHandle<()>> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = self.clone();
        let watching = tokio::spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = interrupt.recv() => "interrupt",
                    _ = terminate.recv() => "terminated",
                    () = shutdown.forced.cancelled() => {
                        tokio::time::sleep(FORCE_DELAY).await;
                        std::process::exit(1);
                    }
                }
            };
            let name = next().await;
            tracing::info!(target: LOG, "Received signal '{name}'; beginning shutdown");
            shutdown.graceful.cancel();
            let name = next().await;
            tracing::info!(target: LOG, "Received signal '{name}' during shutdown; exiting immediately");
            outrigger_telemetry::log::flush();
            std::process::exit(1);
        });
        Ok(AbortOnDropHandle::new(watching))
    }
}
