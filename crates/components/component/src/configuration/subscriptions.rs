//! The running subscriptions of a configuration store, one task each.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Mutex, PoisonError},
};

use crate::{
    Error, Kind, Result,
    configuration::{Item, Items, Subscription},
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Updates queued for the app. If the queue is full, the watcher waits.
const QUEUE: usize = 64;

/// Changes from `known` to `current`: new or different items, and an empty item for each removed key.
pub fn changes(known: &Items, current: &Items) -> Items {
    let written = current
        .iter()
        .filter(|(key, item)| known.get(*key) != Some(item))
        .map(|(key, item)| (key.clone(), item.clone()));
    let removed = known
        .keys()
        .filter(|key| !current.contains_key(*key))
        .map(|key| (key.clone(), Item::default()));
    written.chain(removed).collect()
}

/// Tasks by subscription id; `None` once closed.
pub struct Subscriptions(Mutex<Option<HashMap<String, AbortOnDropHandle<()>>>>);

impl Default for Subscriptions {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Subscriptions {
    /// Runs `watch` with the sending end of a new subscription, until it returns or is aborted.
    ///
    /// # Errors
    /// The store is closed.
    pub fn open<F>(&self, watch: impl FnOnce(mpsc::Sender<Items>) -> F) -> Result<Subscription>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tasks = tasks.as_mut().ok_or_else(Error::closed)?;
        let (sender, updates) = mpsc::channel(QUEUE);
        let id = uuid::Uuid::new_v4().to_string();
        let gone = sender.clone();
        let watch = watch(sender);
        let task = tokio::spawn(async move {
            tokio::select! {
                () = watch => {}
                () = gone.closed() => {}
            }
        });
        tasks.retain(|_, task| !task.is_finished());
        tasks.insert(id.clone(), AbortOnDropHandle::new(task));
        Ok(Subscription { id, updates })
    }

    /// Ends a subscription and waits for its task.
    ///
    /// # Errors
    /// The store is closed, or the id is unknown (`NotFound`).
    pub async fn end(&self, id: &str) -> Result<()> {
        let task = {
            let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            tasks.as_mut().ok_or_else(Error::closed)?.remove(id)
        };
        let task = task.ok_or_else(|| {
            Error::new(
                Kind::NotFound,
                format!("subscription with id {id} does not exist"),
            )
        })?;
        task.abort();
        // The task was aborted or has ended.
        let _ = task.await;
        Ok(())
    }

    /// Ends all subscriptions and refuses new ones. Returns whether this was the first call.
    pub async fn close(&self) -> bool {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let first = tasks.is_some();
        for task in tasks.unwrap_or_default().into_values() {
            task.abort();
            let _ = task.await;
        }
        first
    }

    /// # Errors
    /// [`Subscriptions::close`] was called.
    pub fn check_open(&self) -> Result<()> {
        let tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.as_ref().map(|_| ()).ok_or_else(Error::closed)
    }
}
