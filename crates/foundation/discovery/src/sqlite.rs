//! Name resolution through a SQLite file shared by all sidecars of a host.
//!
//! Tables and keys are Dapr's, so both kinds of sidecars find each other. Two differences: the clean-up
//! removes stale rows (Dapr's removes fresh ones by mistake), and a row that only disappeared is restored.
//! An address taken over by another sidecar is fatal.

mod config;
mod database;
mod worker;

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{self, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::Value;
use tokio::{sync::oneshot, time::timeout};

use self::{
    config::Config,
    database::Database,
    worker::{Command, Worker},
};
pub use self::{config::SqliteConfigError, database::SqliteError};
use crate::{Address, BuildError, FatalHook, Registration, ResolveError, polled::Registry};

/// Maximum number of queued lookups.
const QUEUE: usize = 256;
/// Cache lifetime: rows change every few seconds.
const CACHE_TTL: Duration = Duration::from_secs(1);

/// A registration in a SQLite file, and the thread that owns the connection.
pub(crate) struct Sqlite {
    commands: SyncSender<Command>,
    timeout: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sqlite {
    /// Opens the file, registers, and starts renewing the registration.
    pub(crate) async fn start(
        configuration: &Value,
        registration: &Registration,
        on_fatal: FatalHook,
    ) -> Result<Self, BuildError> {
        let config = Config::read(configuration, registration)?;
        if config.memory {
            tracing::warn!(
                target: "dapr.contrib",
                "Configuring name resolution with an in-memory SQLite database. Service invocation \
                 across different apps will not work."
            );
        } else {
            tracing::info!(target: "dapr.contrib", "Configuring SQLite name resolution with path {}", config.uri);
        }
        let timeout = config.timeout;
        let (commands, queue) = mpsc::sync_channel(QUEUE);
        let (started, start) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("sqlite-names".to_owned())
            .spawn(move || match Database::open(config) {
                Ok(database) => {
                    if started.send(Ok(())).is_ok() {
                        Worker::new(database, on_fatal).run(&queue);
                    } else {
                        // The caller is gone: remove the registration.
                        let _ = database.deregister();
                    }
                }
                Err(error) => drop(started.send(Err(error))),
            })
            .map_err(SqliteError::Thread)?;
        match start.await {
            Ok(result) => result?,
            Err(_) => return Err(SqliteError::Thread(std::io::Error::other("it ended at once")).into()),
        }
        Ok(Self {
            commands,
            timeout,
            thread: Mutex::new(Some(thread)),
        })
    }

    fn failed(&self, app_id: &str, cause: impl ToString) -> ResolveError {
        ResolveError::Registry {
            resolver: "sqlite",
            app_id: app_id.to_owned(),
            cause: cause.to_string(),
        }
    }
}

#[async_trait]
impl Registry for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn fresh_for(&self) -> Duration {
        CACHE_TTL
    }

    async fn look_up(&self, app_id: &str, _namespace: &str) -> Result<Vec<Address>, ResolveError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::LookUp {
            app_id: app_id.to_owned(),
            reply,
        };
        match self.commands.try_send(command) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(ResolveError::Busy { limit: QUEUE }),
            Err(TrySendError::Disconnected(_)) => return Err(ResolveError::Closed),
        }
        match timeout(self.timeout, answer).await {
            Ok(Ok(Ok(hosts))) if hosts.is_empty() => Err(ResolveError::NoHost),
            Ok(Ok(Ok(hosts))) => Ok(hosts),
            Ok(Ok(Err(error))) => Err(self.failed(app_id, error)),
            Ok(Err(_)) => Err(ResolveError::Closed),
            Err(_) => {
                let waited = format!(
                    "no answer within {:?}; is another process locking the database?",
                    self.timeout
                );
                Err(self.failed(app_id, waited))
            }
        }
    }

    async fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let commands = self.commands.clone();
            let ended = tokio::task::spawn_blocking(move || {
                // Fails only if the thread has already ended.
                let _ = commands.send(Command::Close);
                let _ = thread.join();
            });
            let _ = ended.await;
        }
    }
}
