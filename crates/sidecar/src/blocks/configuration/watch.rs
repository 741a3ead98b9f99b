//! Running subscriptions: a task each, from the store to whoever is told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_component::configuration::{Items, Subscription};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Store;
use super::delivery::App;

/// Most subscriptions at once. Apps that subscribe again and again without ending any should hear of it.
const MOST: usize = 4096;

/// Who is told of changes.
pub(super) enum Receiver {
    /// The reader of a stream.
    Stream(mpsc::Sender<Items>),
    /// The app, at its own endpoint.
    App(Arc<App>),
}

/// A subscription to be.
pub(super) struct Watch {
    pub(super) store: Arc<Store>,
    pub(super) subscription: Subscription,
    pub(super) receiver: Receiver,
}

/// A subscription that somebody may end.
pub(super) struct Running {
    pub(super) store: Arc<Store>,
    stop: CancellationToken,
}

type ById = HashMap<String, Vec<Running>>;

/// All subscriptions.
#[derive(Default)]
pub(super) struct Watches {
    // Ids are unique in a store only.
    running: Arc<Mutex<ById>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Watches {
    /// Whether one more may start; if not, the text says what helps.
    pub(super) fn check_room(&self) -> Result<(), String> {
        if self.tasks.len() < MOST {
            return Ok(());
        }
        Err(format!(
            "there are {MOST} subscriptions already; end some with unsubscribe"
        ))
    }

    /// Tells of changes until the store, the reader or somebody else ends it.
    pub(super) fn start(&self, watch: Watch) {
        let (store, id) = (Arc::clone(&watch.store), watch.subscription.id.clone());
        let stop = self.stop.child_token();
        let running = Running {
            store,
            stop: stop.clone(),
        };
        lock(&self.running).entry(id).or_default().push(running);
        let running = Arc::clone(&self.running);
        self.tasks.spawn(async move {
            let Watch {
                store,
                subscription,
                receiver,
            } = watch;
            let id = subscription.id.clone();
            {
                let mut telling = std::pin::pin!(tell(&store, subscription, &receiver, &stop));
                tokio::select! {
                    () = &mut telling => {}
                    () = store.gone.cancelled() => {
                        // What the app is being told it hears to the end.
                        stop.cancel();
                        telling.await;
                    }
                }
            }
            // Whoever takes it off the list ends it in the store.
            if take(&running, |other| Arc::ptr_eq(&other.store, &store), &id).is_some()
                && let Err(error) = store.end(&id).await
            {
                tracing::debug!(target: "dapr.runtime", "ending a configuration subscription: {error:?}");
            }
        });
    }

    /// Takes a subscription off the list and stops it; its store is told by the caller.
    pub(super) fn take(&self, of: impl Fn(&Running) -> bool, id: &str) -> Option<Arc<Store>> {
        take(&self.running, of, id)
    }

    /// Stops all.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Waits for their ends.
    pub(super) async fn stopped(&self) {
        self.tasks.wait().await;
    }
}

fn lock(running: &Mutex<ById>) -> MutexGuard<'_, ById> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(running: &Mutex<ById>, of: impl Fn(&Running) -> bool, id: &str) -> Option<Arc<Store>> {
    let mut running = lock(running);
    let same_id = running.get_mut(id)?;
    let found = same_id.swap_remove(same_id.iter().position(of)?);
    if same_id.is_empty() {
        running.remove(id);
    }
    found.stop.cancel();
    Some(found.store)
}

async fn tell(store: &Store, subscription: Subscription, receiver: &Receiver, stop: &CancellationToken) {
    let Subscription { id, mut updates } = subscription;
    let gone = async {
        match receiver {
            Receiver::Stream(reader) => reader.closed().await,
            Receiver::App(_) => std::future::pending().await,
        }
    };
    let mut gone = std::pin::pin!(gone);
    loop {
        let items = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = &mut gone => return,
            items = updates.recv() => items,
        };
        let Some(items) = items else { return };
        match receiver {
            Receiver::Stream(reader) => {
                tokio::select! {
                    () = stop.cancelled() => return,
                    sent = reader.send(items) => if sent.is_err() { return },
                }
            }
            Receiver::App(app) => {
                let policy = store.inbound.as_deref();
                app.tell(&store.name, &id, &items, policy, stop).await;
            }
        }
    }
}
