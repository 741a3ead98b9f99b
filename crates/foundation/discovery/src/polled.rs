//! Shared code of the resolvers that query a registry: one lookup at a time per app, a cache, and a task
//! per watched app that keeps its list current.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use outrigger_backoff::Backoff;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{Address, Addresses, ResolveError, Resolver};

/// Maximum number of apps, including pending lookups. The least recently used one is evicted.
const MAX_APPS: usize = 4096;
/// Maximum backoff of a watch while its registry fails.
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(180);

/// A registry of app instances.
#[async_trait]
pub(crate) trait Registry: Send + Sync + 'static {
    /// Name of the resolver.
    fn name(&self) -> &'static str;

    /// Cache lifetime of an answer, and the pause between lookups of a watched app.
    fn fresh_for(&self) -> Duration;

    /// Whether every app is watched after its first lookup.
    fn watches_all(&self) -> bool {
        false
    }

    /// All healthy instances; never empty.
    async fn look_up(&self, app_id: &str, namespace: &str) -> Result<Vec<Address>, ResolveError>;

    /// Waits until the instances may have changed, and returns them. `cursor` is 0 initially and after a
    /// failure; then the answer must not wait.
    async fn next(
        &self,
        app_id: &str,
        namespace: &str,
        cursor: &mut u64,
    ) -> Result<Vec<Address>, ResolveError> {
        if *cursor > 0 {
            sleep(self.fresh_for()).await;
        }
        *cursor = 1;
        self.look_up(app_id, namespace).await
    }

    /// Withdraws the registration.
    async fn close(&self);
}

/// A resolver backed by a registry.
pub(crate) struct Polled<R>(Arc<Inner<R>>);

struct Inner<R> {
    registry: R,
    apps: Mutex<HashMap<Key, Arc<App>>>,
    /// Use counter, for LRU eviction.
    uses: AtomicU64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    app_id: String,
    namespace: String,
}

struct App {
    sender: watch::Sender<Addresses>,
    /// Held during a lookup: concurrent callers wait for its result.
    last: tokio::sync::Mutex<Option<Outcome>>,
    /// A task keeps `sender` current.
    watched: AtomicBool,
    /// An address was evicted since the last lookup.
    stale: AtomicBool,
    wake: Notify,
    last_used: AtomicU64,
    /// Cancelled when the app is evicted, which ends its watch.
    forgotten: CancellationToken,
}

struct Outcome {
    at: Instant,
    result: Result<Addresses, ResolveError>,
}

impl<R: Registry> Polled<R> {
    pub(crate) fn new(registry: R) -> Self {
        Self(Arc::new(Inner {
            registry,
            apps: Mutex::default(),
            uses: AtomicU64::new(0),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }))
    }
}

impl<R> Drop for Polled<R> {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

#[async_trait]
impl<R: Registry> Resolver for Polled<R> {
    fn name(&self) -> &'static str {
        self.0.registry.name()
    }

    async fn resolve(&self, app_id: &str, namespace: &str) -> Result<Addresses, ResolveError> {
        if self.0.stop.is_cancelled() {
            return Err(ResolveError::Closed);
        }
        let key = Key::new(app_id, namespace);
        let app = self.0.with_app(&key, Arc::clone)?;
        if app.watched.load(Ordering::Acquire) {
            let current = app.sender.borrow().clone();
            if !current.is_empty() {
                return Ok(current);
            }
        }
        let result = self.0.look_up(&key, &app).await;
        match &result {
            Ok(_) if self.0.registry.watches_all() => self.0.start_watch(&key, &app),
            Ok(_) => {}
            Err(_) => self.0.drop_unused(&key),
        }
        result
    }

    fn watch(&self, app_id: &str, namespace: &str) -> watch::Receiver<Addresses> {
        let key = Key::new(app_id, namespace);
        // Subscribes under the lock, so that an ending watch notices it.
        match self
            .0
            .with_app(&key, |app| (Arc::clone(app), app.sender.subscribe()))
        {
            Ok((app, receiver)) => {
                self.0.start_watch(&key, &app);
                receiver
            }
            // The receiver stays empty; lookups report the error.
            Err(_) => watch::channel(Addresses::from([])).1,
        }
    }

    fn evict(&self, app_id: &str, namespace: &str, address: &Address) {
        let app = self.0.apps().get(&Key::new(app_id, namespace)).cloned();
        if let Some(app) = app {
            app.stale.store(true, Ordering::Release);
            let left: Vec<Address> = app
                .sender
                .borrow()
                .iter()
                .filter(|known| *known != address)
                .cloned()
                .collect();
            app.publish(left);
            app.wake.notify_one();
        }
    }

    async fn close(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.registry.close().await;
    }
}

impl<R: Registry> Inner<R> {
    fn apps(&self) -> MutexGuard<'_, HashMap<Key, Arc<App>>> {
        self.apps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_app<T>(&self, key: &Key, read: impl FnOnce(&Arc<App>) -> T) -> Result<T, ResolveError> {
        let mut apps = self.apps();
        let now = self.uses.fetch_add(1, Ordering::Relaxed);
        if let Some(app) = apps.get(key) {
            app.last_used.store(now, Ordering::Relaxed);
            return Ok(read(app));
        }
        if apps.len() >= MAX_APPS {
            let unused = apps.iter().filter(|(_, app)| !app.is_watched());
            let oldest = unused.min_by_key(|(_, app)| app.last_used.load(Ordering::Relaxed));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                return Err(ResolveError::Busy { limit: MAX_APPS });
            };
            forget(&mut apps, &oldest);
        }
        let app = Arc::new(App::new());
        app.last_used.store(now, Ordering::Relaxed);
        Ok(read(apps.entry(key.clone()).or_insert(app)))
    }

    fn drop_unused(&self, key: &Key) {
        let mut apps = self.apps();
        if apps.get(key).is_some_and(|app| !app.is_watched()) {
            forget(&mut apps, key);
        }
    }

    /// Returns a cached answer, joins a lookup in flight, or starts one.
    async fn look_up(&self, key: &Key, app: &App) -> Result<Addresses, ResolveError> {
        let asked_at = Instant::now();
        let mut last = app.last.lock().await;
        if let Some(outcome) = &*last
            && !app.stale.load(Ordering::Acquire)
        {
            let fresh = outcome.result.is_ok() && outcome.at + self.registry.fresh_for() > asked_at;
            if fresh || outcome.at >= asked_at {
                return outcome.result.clone();
            }
        }
        app.stale.store(false, Ordering::Release);
        let found = self.registry.look_up(&key.app_id, &key.namespace).await;
        let result = app.take(found);
        *last = Some(Outcome {
            at: Instant::now(),
            result: result.clone(),
        });
        result
    }

    fn start_watch(self: &Arc<Self>, key: &Key, app: &Arc<App>) {
        if self.stop.is_cancelled() || app.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (this, key, app) = (Arc::clone(self), key.clone(), Arc::clone(app));
        self.tasks.spawn(async move {
            tokio::select! {
                () = this.stop.cancelled() => {}
                () = app.forgotten.cancelled() => {}
                () = this.keep_current(&key, &app) => {}
            }
        });
    }

    async fn keep_current(&self, key: &Key, app: &App) {
        let mut cursor = 0;
        let mut pauses = Backoff::new(self.registry.fresh_for(), FAILURE_PAUSE_MAX);
        loop {
            let found = tokio::select! {
                found = self.registry.next(&key.app_id, &key.namespace, &mut cursor) => found,
                () = app.wake.notified() => {
                    cursor = 0;
                    continue;
                }
                () = app.sender.closed(), if !self.registry.watches_all() => {
                    if self.end_watch(key, app) {
                        return;
                    }
                    continue;
                }
            };
            app.stale.store(false, Ordering::Release);
            match app.take(found) {
                Err(error) if !error.is_not_found() => {
                    cursor = 0;
                    tracing::warn!(target: "dapr.contrib", %error, "watching app {} failed", key.app_id);
                    tokio::select! {
                        () = sleep(pauses.pause()) => {}
                        () = app.wake.notified() => {}
                    }
                }
                _ => pauses.reset(),
            }
        }
    }

    /// Forgets the app and returns true if it still has no watcher.
    fn end_watch(&self, key: &Key, app: &App) -> bool {
        let mut apps = self.apps();
        if app.sender.receiver_count() > 0 {
            return false;
        }
        app.watched.store(false, Ordering::Release);
        // The entry may belong to a later app of this name.
        if apps.get(key).is_some_and(|found| std::ptr::eq(&**found, app)) {
            apps.remove(key);
        }
        true
    }
}

fn forget(apps: &mut HashMap<Key, Arc<App>>, key: &Key) {
    if let Some(app) = apps.remove(key) {
        app.forgotten.cancel();
    }
}

impl Key {
    fn new(app_id: &str, namespace: &str) -> Self {
        Self {
            app_id: app_id.to_owned(),
            namespace: namespace.to_owned(),
        }
    }
}

impl App {
    fn new() -> Self {
        Self {
            sender: watch::Sender::new(Addresses::from([])),
            last: tokio::sync::Mutex::new(None),
            watched: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            wake: Notify::new(),
            last_used: AtomicU64::new(0),
            forgotten: CancellationToken::new(),
        }
    }

    /// Whether a receiver of [`Resolver::watch`] exists.
    fn is_watched(&self) -> bool {
        self.sender.receiver_count() > 0
    }

    /// Publishes an answer. A registry failure keeps the known instances.
    fn take(&self, found: Result<Vec<Address>, ResolveError>) -> Result<Addresses, ResolveError> {
        match found {
            Ok(addresses) => Ok(self.publish(addresses)),
            Err(error) => {
                if error.is_not_found() {
                    self.publish(Vec::new());
                }
                Err(error)
            }
        }
    }

    fn publish(&self, addresses: Vec<Address>) -> Addresses {
        let mut published = Addresses::from([]);
        self.sender.send_if_modified(|current| {
            let changed = **current != *addresses;
            if changed {
                *current = Addresses::from(addresses);
            }
            published = Arc::clone(current);
            changed
        });
        published
    }
}

#[cfg(test)]
mod tests;
