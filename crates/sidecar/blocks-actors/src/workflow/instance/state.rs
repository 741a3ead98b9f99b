//! The instances on this sidecar, and an instance held during its turn.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_workflow::{Change, Instance};
use tonic::Status;

use super::cache::{CacheEntry, CachedWaits, Gauges, InstanceCache};
use super::failures::InstanceFailures;
use super::inbox::Inbox;
use super::store::Loaded;
use super::watchers::Watchers;
use crate::workflow::activity::failures::ActivityFailures;
use crate::workflow::engine::Engine;
use crate::workflow::error::stalled_status;
use crate::workflow::worker::workers::Workers;

/// All instances hosted here.
pub(crate) struct Instances {
    pub(crate) engine: Arc<Engine>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) failures: Arc<InstanceFailures>,
    pub(crate) activity_failures: Arc<ActivityFailures>,
    /// Only the turn's holder takes an entry out.
    cache: Mutex<InstanceCache>,
    pub(crate) inbox: Inbox,
    pub(crate) watchers: Arc<Watchers>,
}

/// An instance in its turn. Unless [`Held::keep`] is called it is read again: a cancelled turn leaves no
/// partial change.
pub(crate) struct Held<'a> {
    pub(crate) all: &'a Instances,
    pub(crate) id: &'a str,
    pub(crate) entry: CacheEntry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        self.all.locked().put(self.id, entry);
    }
}

impl Instances {
    pub(crate) fn new(
        engine: Arc<Engine>,
        workers: Arc<Workers>,
        failures: Arc<InstanceFailures>,
        activity_failures: Arc<ActivityFailures>,
    ) -> Self {
        let gauges = Gauges {
            stalled: engine.metrics.stalled.clone(),
            bytes: engine.metrics.cached.clone(),
        };
        Self {
            engine,
            workers,
            failures,
            activity_failures,
            cache: Mutex::new(InstanceCache::with(gauges)),
            inbox: Inbox::default(),
            watchers: Arc::default(),
        }
    }

    /// The pending tasks of up to `most` cached instances, least recently used first.
    pub(crate) fn waits(&self, most: usize) -> Vec<CachedWaits> {
        let ids = self.locked().ids(most);
        // Locked per instance, because turns need the lock too.
        ids.iter().filter_map(|id| self.locked().waits(id)).collect()
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, InstanceCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn hold<'a>(&'a self, id: &'a str) -> Held<'a> {
        let entry = self.locked().take(id);
        Held { all: self, id, entry }
    }
}

impl Held<'_> {
    /// Takes the instance from the cache or the store. Return it with [`Held::keep`].
    pub(crate) async fn take(&mut self) -> Result<Option<Loaded>, Status> {
        if let Some(loaded) = self.entry.loaded.take() {
            return Ok(Some(loaded));
        }
        match self.all.engine.load(self.id).await? {
            Some(loaded) => self.verified(loaded).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`Held::take`], but re-reads a stale cached instance, so that a forced purge does not block a new
    /// instance.
    pub(crate) async fn take_current(&mut self) -> Result<Option<Loaded>, Status> {
        if self.entry.loaded.is_some() {
            self.forget_if_changed().await?;
        }
        self.take().await
    }

    /// Drops the cached instance if the stored state differs; returns whether it did.
    pub(crate) async fn forget_if_changed(&mut self) -> Result<bool, Status> {
        let found = self.all.engine.find(self.id).await?;
        let known = self.entry.loaded.as_ref().zip(found.as_ref());
        let is_current = known.is_some_and(|(loaded, found)| loaded.is(found));
        if !is_current {
            self.entry = CacheEntry::default();
        }
        Ok(!is_current)
    }

    pub(crate) fn keep(&mut self, loaded: Loaded) {
        self.entry.loaded = Some(loaded);
    }

    /// Stores a change, keeps the instance and notifies watchers.
    pub(crate) async fn save(&mut self, mut loaded: Loaded, change: Change) -> Result<(), Status> {
        if !change.is_empty() {
            self.all.engine.save(&mut loaded, change).await?;
        }
        self.all.watchers.publish(self.id, || loaded.instance.metadata());
        self.keep(loaded);
        Ok(())
    }

    pub(crate) fn check_stalled(&self) -> Result<(), Status> {
        if self.entry.is_stalled {
            return Err(stalled_status());
        }
        Ok(())
    }

    /// Schedules another run, independent of the current reminder: a timer's reminder does not run the next
    /// generation.
    pub(crate) async fn run_again(&self, instance: &Instance) -> Result<(), Status> {
        self.all.engine.remind_start(self.id, instance, None, false).await
    }
}
