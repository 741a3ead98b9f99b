//! Start and end of the process: readiness and shutdown requests.

mod parts;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
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

/// Requests the end of a sidecar: with its process, or to start again in it.
#[derive(Clone)]
pub struct Shutdown {
    /// Ends the process.
    process: CancellationToken,
    /// Ends this sidecar; a child of `process`.
    sidecar: CancellationToken,
    forced: CancellationToken,
    /// Requests a restart, which may be refused.
    restart: Arc<Notify>,
    /// Whether another sidecar of the process has ended.
    is_restart: bool,
}

impl Default for Shutdown {
    fn default() -> Self {
        let process = CancellationToken::new();
        Self {
            sidecar: process.child_token(),
            process,
            forced: CancellationToken::new(),
            restart: Arc::default(),
            is_restart: false,
        }
    }
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
        self.process.cancel();
    }

    /// Like `request`, without a log line: a part of the process cannot continue.
    pub fn begin(&self) {
        self.process.cancel();
    }

    /// Waits for a request.
    pub async fn requested(&self) {
        self.sidecar.cancelled().await;
    }

    /// Asks for a restart: see [`Shutdown::restart_wanted`].
    pub fn ask_restart(&self) {
        self.restart.notify_one();
    }

    /// Waits until a restart is wanted, by a signal or a part of the sidecar. Requests while nothing waits
    /// are one.
    pub async fn restart_wanted(&self) {
        self.restart.notified().await;
    }

    /// Ends this sidecar, so that the next one of the process starts.
    pub fn restart(&self) {
        self.sidecar.cancel();
    }

    /// For the next sidecar of the process; `None` if the process ends.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        (!self.process.is_cancelled()).then(|| Self {
            sidecar: self.process.child_token(),
            is_restart: true,
            ..self.clone()
        })
    }

    /// Whether another sidecar of the process has ended.
    pub fn is_restart(&self) -> bool {
        self.is_restart
    }

    /// Handles signals while the returned handle is kept. `SIGHUP` asks for a restart. The first `SIGINT` or
    /// `SIGTERM` starts a graceful shutdown; a second one or a forced request ends the process at once.
    ///
    /// # Errors
    /// The process may not handle signals.
    pub fn on_signals(&self) -> std::io::Result<AbortOnDropHandle<()>> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let shutdown = self.clone();
        let watching = tokio::spawn(async move {
            let mut next = async || {
                loop {
                    tokio::select! {
                        _ = hangup.recv() => {
                            tracing::info!(target: LOG, "Received signal 'hangup'; restarting");
                            shutdown.ask_restart();
                        }
                        _ = interrupt.recv() => return "interrupt",
                        _ = terminate.recv() => return "terminated",
                        () = shutdown.forced.cancelled() => {
                            tokio::time::sleep(FORCE_DELAY).await;
                            std::process::exit(1);
                        }
                    }
                }
            };
            let name = next().await;
            tracing::info!(target: LOG, "Received signal '{name}'; beginning shutdown");
            shutdown.process.cancel();
            let name = next().await;
            tracing::info!(target: LOG, "Received signal '{name}' during shutdown; exiting immediately");
            outrigger_telemetry::log::flush();
            std::process::exit(1);
        });
        Ok(AbortOnDropHandle::new(watching))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_spares_process() {
        let first = Shutdown::default();
        first.restart();
        assert!(first.sidecar.is_cancelled() && !first.is_restart());
        let second = first.again().unwrap();
        assert!(!second.sidecar.is_cancelled() && second.is_restart());
        first.request(false);
        assert!(second.sidecar.is_cancelled() && second.again().is_none());
    }
}
