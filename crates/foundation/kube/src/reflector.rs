//! Keeps a copy of a collection: listed once, then watched.
//!
//! While the API is unreachable the copy stays as it was. Retries back off with jitter. A watch that ends is opened again
//! from the last version it sent. The collection is listed again only where that version is too old, where the server has no
//! versions, or after several refused watches. The backoff is reset by a watch that lasts, not by a list: some servers list,
//! and refuse to watch.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use outrigger_backoff::Backoff;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::client::Client;
use crate::error::ApiError;
use crate::kind::Kind;
use crate::store::{Meta, Store, Watched};
use crate::watch::{Event, Watch};

const LOG: &str = "dapr.kubernetes";
/// A watch that was shorter did not last.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// Pauses after watches that did not last.
const AFTER_SHORT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// Pauses after failures, and after a version that was too old.
const AFTER_FAILURE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Watches refused in a row after which the collection is listed again: the version may be the reason.
const REFUSED: u32 = 5;

/// Which part of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// A namespace; all where there is none.
    pub namespace: Option<String>,
    /// A restriction, such as `labelSelector=a`; may be empty.
    pub query: String,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Nothing was answered yet.
    #[default]
    Pending,
    /// The API refused the first list; it is tried again.
    Refused,
    /// It was listed.
    Complete,
}

/// How well a collection is followed, for metrics.
#[derive(Debug)]
pub struct WatchState {
    kind: Kind,
    in_sync: AtomicBool,
    failures: AtomicU64,
}

impl WatchState {
    /// Plural name of the kind.
    pub fn resource(&self) -> &'static str {
        self.kind.plural
    }

    /// Whether the copy was listed, and is watched since. While that is renewed, it stays as it was.
    pub fn in_sync(&self) -> bool {
        self.in_sync.load(Relaxed)
    }

    /// Lists and watches that failed; one that has expired is none of them, unless it was listed just before.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    fn answered(&self) {
        self.in_sync.store(true, Relaxed);
    }

    fn failed(&self) {
        self.in_sync.store(false, Relaxed);
        self.failures.fetch_add(1, Relaxed);
    }
}

/// Keeps a copy of a collection.
#[derive(Debug)]
pub struct Reflector<T> {
    client: Client,
    scope: Scope,
    store: Arc<Store<T>>,
    progress: watch::Sender<Progress>,
    state: Arc<WatchState>,
}

impl<T: Watched> Reflector<T> {
    /// A copy that is empty until [`Reflector::run`] runs.
    pub fn new(client: Client, scope: Scope) -> Self {
        Self {
            client,
            scope,
            store: Arc::default(),
            progress: watch::Sender::default(),
            state: Arc::new(WatchState {
                kind: T::KIND,
                in_sync: AtomicBool::default(),
                failures: AtomicU64::default(),
            }),
        }
    }

    /// The copy.
    pub fn store(&self) -> Arc<Store<T>> {
        Arc::clone(&self.store)
    }

    /// The progress of the copy, as it changes.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// How well the collection is followed.
    pub fn state(&self) -> Arc<WatchState> {
        Arc::clone(&self.state)
    }

    /// Keeps the copy until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let mut trouble = Trouble::new();
        loop {
            match self.list().await {
                Ok(version) => {
                    self.progress.send_replace(Progress::Complete);
                    self.follow(version, &mut trouble).await;
                }
                Err(error) => {
                    trouble.goes_on::<T>(&error);
                    self.state.failed();
                    if *self.progress.borrow() == Progress::Pending {
                        self.progress.send_replace(Progress::Refused);
                    }
                    tokio::time::sleep(trouble.failures.pause()).await;
                }
            }
        }
    }

    /// Watches, again and again, until the collection has to be listed again.
    async fn follow(&self, mut version: String, trouble: &mut Trouble) {
        trouble.refused = 0;
        loop {
            let pause = match self.watch(&mut version, trouble).await {
                Ok(()) => {
                    // A server without versions is a small one, for tests: lists are how it is followed.
                    if version.is_empty() {
                        trouble.shorts.reset();
                    }
                    trouble.shorts.pause()
                }
                // Happens. A version that was just listed does not expire, so a second time it is a failure.
                Err(ApiError::Expired(_)) if !std::mem::replace(&mut trouble.expired, true) => {
                    version.clear();
                    trouble.failures.pause()
                }
                Err(error) => {
                    trouble.goes_on::<T>(&error);
                    self.state.failed();
                    trouble.refused += u32::from(matches!(error, ApiError::Refused { .. }));
                    match error {
                        ApiError::Unreachable { .. } => {}
                        ApiError::Refused { .. } if trouble.refused < REFUSED => {}
                        _ => version.clear(),
                    }
                    trouble.failures.pause()
                }
            };
            tokio::time::sleep(pause).await;
            // Without a version nobody knows what happened meanwhile.
            if version.is_empty() {
                return;
            }
        }
    }

    /// Takes in the whole collection, and returns its version.
    async fn list(&self) -> Result<String, ApiError> {
        let Scope { namespace, query } = &self.scope;
        let mut fresh = self.store.fresh();
        let take = |item| fresh.take(item);
        // What is kept of it is bounded, whatever comes.
        let listed = self
            .client
            .each(T::KIND, namespace.as_deref(), query, usize::MAX, take);
        let version = listed.await?;
        self.store.replace(fresh);
        Ok(version)
    }

    /// Takes in what a watch tells.
    async fn watch(&self, version: &mut String, trouble: &mut Trouble) -> Result<(), ApiError> {
        let Scope { namespace, query } = &self.scope;
        let opened = Watch::open(&self.client, T::KIND, namespace.as_deref(), query, version);
        let mut watch = opened.await?;
        self.state.answered();
        let lasts = Instant::now() + STABLE_AFTER;
        loop {
            let event = match timeout_at(lasts, watch.next()).await {
                Ok(event) => event?,
                Err(_) => {
                    // Perhaps nothing happens for long.
                    trouble.over::<T>();
                    watch.next().await?
                }
            };
            let Some(event) = event else {
                return Ok(());
            };
            trouble.over::<T>();
            let (Event::Applied(object) | Event::Removed(object) | Event::Bookmark(object)) = &event;
            if let Some(newer) = version_of(object) {
                newer.clone_into(version);
            }
            match event {
                Event::Applied(object) => self.store.apply(object)?,
                Event::Removed(object) => self.store.remove(&Meta::of(&object)),
                Event::Bookmark(_) => {}
            }
        }
    }
}

fn version_of(object: &Value) -> Option<&str> {
    object["metadata"]["resourceVersion"]
        .as_str()
        .filter(|version| !version.is_empty())
}

/// What goes wrong, from list to list, until a watch works.
struct Trouble {
    shorts: Backoff,
    failures: Backoff,
    /// Watches in a row, since the last list.
    refused: u32,
    /// The last version that was watched from was too old.
    expired: bool,
    /// An outage is told once, and its end.
    told: bool,
}

impl Trouble {
    fn new() -> Self {
        Self {
            shorts: Backoff::new(AFTER_SHORT.0, AFTER_SHORT.1).jittered(),
            failures: Backoff::new(AFTER_FAILURE.0, AFTER_FAILURE.1).jittered(),
            refused: 0,
            expired: false,
            told: false,
        }
    }

    fn goes_on<T: Watched>(&mut self, error: &ApiError) {
        let plural = T::KIND.plural;
        if std::mem::replace(&mut self.told, true) {
            tracing::debug!(target: LOG, "still cannot watch {plural}: {error}");
        } else {
            tracing::warn!(
                target: LOG,
                "cannot watch {plural}: {error}; the last known state stays in use, trying again"
            );
        }
    }

    /// A watch has an event, or lasts.
    fn over<T: Watched>(&mut self) {
        self.shorts.reset();
        self.failures.reset();
        self.refused = 0;
        self.expired = false;
        if std::mem::take(&mut self.told) {
            tracing::info!(target: LOG, "{} are watched again", T::KIND.plural);
        }
    }
}

#[cfg(test)]
mod tests;
