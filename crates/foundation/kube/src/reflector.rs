//! A reflector: lists a collection once, then watches it to keep a copy.
//!
//! While the API is unreachable the copy is stale. Retries back off with jitter. A watch that ends is
//! reopened from the last version it sent. The collection is listed again only if that version is too old,
//! the server has no versions, or several watches were refused. A watch that lasts resets the backoff, but
//! a list does not: some servers serve lists and refuse watches.

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
/// A watch shorter than this counts as failed.
const STABLE_AFTER: Duration = Duration::from_secs(5);
/// Pauses after short watches.
const AFTER_SHORT: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// Pauses after failures, and after an expired version.
const AFTER_FAILURE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Consecutive refused watches after which the collection is listed again: the version may be the cause.
const REFUSED: u32 = 5;

/// A part of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// A namespace; `None` means all.
    pub namespace: Option<String>,
    /// A filter such as `labelSelector=a`; may be empty.
    pub query: String,
}

/// State of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// No response yet.
    #[default]
    Pending,
    /// The API refused the first list; it will be retried.
    Refused,
    /// The list is complete, or the API does not know the kind.
    Complete,
}

/// State of a watch, for metrics.
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

    /// Whether the copy was listed and is being watched. Unchanged while a watch is reopened.
    pub fn in_sync(&self) -> bool {
        self.in_sync.load(Relaxed)
    }

    /// Number of failed lists and watches. An expired version counts only if it was just listed.
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
    /// How often to list again while a watch works; `None` means never.
    relist: Option<Duration>,
}

impl<T: Watched> Reflector<T> {
    /// An empty copy, filled by [`Reflector::run`].
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
            relist: None,
        }
    }

    /// Also lists the collection again after this time.
    #[must_use]
    pub fn relisting(self, relist: Option<Duration>) -> Self {
        Self { relist, ..self }
    }

    /// The copy.
    pub fn store(&self) -> Arc<Store<T>> {
        Arc::clone(&self.store)
    }

    /// Changes of the copy's state.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// State of the watch.
    pub fn state(&self) -> Arc<WatchState> {
        Arc::clone(&self.state)
    }

    /// Maintains the copy until cancelled.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
    }

    async fn keep(&self) {
        let mut trouble = Trouble::new();
        loop {
            match self.list().await {
                Ok(version) => {
                    self.progress.send_replace(Progress::Complete);
                    let following = self.follow(version, &mut trouble);
                    match self.relist {
                        None => following.await,
                        Some(relist) => {
                            let _due = tokio::time::timeout(relist, following).await;
                        }
                    }
                }
                Err(error) => {
                    trouble.goes_on::<T>(&error);
                    self.state.failed();
                    self.refused(&error);
                    tokio::time::sleep(trouble.failures.pause()).await;
                }
            }
        }
    }

    /// Records a failed first list. A kind that is not installed has no objects.
    fn refused(&self, error: &ApiError) {
        let progress = match error.is_not_found() {
            true => Progress::Complete,
            false => Progress::Refused,
        };
        self.progress.send_if_modified(|known| {
            let is_new = *known != Progress::Complete && *known != progress;
            if is_new {
                *known = progress;
            }
            is_new
        });
    }

    /// Watches repeatedly until the collection must be listed again.
    async fn follow(&self, mut version: String, trouble: &mut Trouble) {
        trouble.refused = 0;
        loop {
            let pause = match self.watch(&mut version, trouble).await {
                Ok(()) => {
                    // Small test servers have no versions: poll lists instead.
                    if version.is_empty() {
                        trouble.shorts.reset();
                    }
                    trouble.shorts.pause()
                }
                // Expiry is normal once. A version that was just listed should not expire, so a second time
                // is a failure.
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
            // Without a version, missed changes are unknown.
            if version.is_empty() {
                return;
            }
        }
    }

    /// Lists the collection and returns its version.
    async fn list(&self) -> Result<String, ApiError> {
        let Scope { namespace, query } = &self.scope;
        let mut fresh = self.store.fresh();
        let take = |item| fresh.take(item);
        // The store bounds what it retains.
        let listed = self
            .client
            .each(T::KIND, namespace.as_deref(), query, usize::MAX, take);
        let version = listed.await?;
        self.store.replace(fresh);
        Ok(version)
    }

    /// Applies the events of a watch.
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
                    // There may be no events for a long time.
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

/// Failures between lists, until a watch works.
struct Trouble {
    shorts: Backoff,
    failures: Backoff,
    /// Consecutive refused watches since the last list.
    refused: u32,
    /// The last watched version had expired.
    expired: bool,
    /// The outage was logged; so will be its end.
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

    /// A watch delivered an event, or has lasted.
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
