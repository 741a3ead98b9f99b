//! The thread that owns the connection: lookups, renewals and sweeps, sequentially.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::database::{Database, Renewal};
use crate::{Address, FatalError, FatalHook};

/// Requests to the thread.
pub(crate) enum Command {
    LookUp {
        app_id: String,
        reply: oneshot::Sender<rusqlite::Result<Vec<Address>>>,
    },
    Close,
}

pub(crate) struct Worker {
    database: Database,
    on_fatal: FatalHook,
    renew_at: Option<Instant>,
    sweep_at: Option<Instant>,
}

impl Worker {
    pub(crate) fn new(database: Database, on_fatal: FatalHook) -> Self {
        let now = Instant::now();
        let sweep_every = database.config().cleanup_interval;
        Self {
            renew_at: Some(now + database.config().renew_every()),
            sweep_at: (!sweep_every.is_zero()).then(|| now + sweep_every),
            database,
            on_fatal,
        }
    }

    /// Runs until closed, or until the resolver is dropped; then deregisters.
    pub(crate) fn run(mut self, queue: &Receiver<Command>) {
        loop {
            match queue.recv_timeout(self.idle_time()) {
                Ok(Command::LookUp { app_id, reply }) => {
                    // Skips a caller that stopped waiting.
                    if !reply.is_closed() {
                        let _ = reply.send(self.database.hosts(&app_id));
                    }
                }
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.run_due_tasks();
        }
        if let Err(error) = self.database.deregister() {
            tracing::warn!(target: "dapr.contrib", %error, "SQLite name resolver: failed to unregister host");
        }
    }

    fn idle_time(&self) -> Duration {
        let next = self.renew_at.into_iter().chain(self.sweep_at).min();
        next.map_or(Duration::from_secs(3600), |at| {
            at.saturating_duration_since(Instant::now())
        })
    }

    fn run_due_tasks(&mut self) {
        let now = Instant::now();
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = Some(now + self.database.config().renew_every());
            self.renew();
        }
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep_at = Some(now + self.database.config().cleanup_interval);
            match self.database.sweep() {
                Ok(0) => {}
                Ok(rows) => tracing::info!(target: "dapr.contrib", "Removed {rows} expired rows"),
                Err(error) => tracing::error!(target: "dapr.contrib", "Error removing expired data: {error}"),
            }
        }
    }

    fn renew(&mut self) {
        match self.database.renew() {
            Ok(Renewal::Renewed) => {}
            Ok(Renewal::Restored) => tracing::warn!(
                target: "dapr.contrib",
                "SQLite name resolver: the registration of this host had been removed; registered again"
            ),
            Ok(Renewal::TakenOver) => {
                self.renew_at = None;
                (self.on_fatal)(FatalError::RegistrationLost {
                    address: self.database.config().address.clone(),
                });
            }
            Err(error) => {
                tracing::error!(target: "dapr.contrib", "Failed to update host registration: {error}");
            }
        }
    }
}
