//! Active subscriptions: one task each, from the store to the receiver.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outrigger_component::configuration::{Items, Request, Subscription};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Store;
use super::delivery::App;

const LOG: &str = "dapr.runtime";
/// Most concurrent subscriptions. An app that leaks subscriptions gets an error.
const MAX_SUBSCRIPTIONS: usize = 4096;

/// The receiver of changes.
pub(super) enum Receiver {
    /// The reader of a stream.
    Stream(mpsc::Sender<Items>),
    /// The app, at its endpoint for changes.
    App(Arc<App>),
}

/// A subscription to be started.
pub(super) struct Watch {
    pub(super) store: Arc<Store>,
    /// The request, to repeat it on a replacement store.
    pub(super) request: Request,
    pub(super) subscription: Subscription,
    pub(super) receiver: Receiver,
}

/// An active subscription. Callers know it by the id that its first store assigned.
pub(super) struct Running {
    pub(super) store: Arc<Store>,
    /// The id that `store` assigned.
    own_id: String,
    stop: CancellationToken,
}

type ById = HashMap<String, Vec<Running>>;

/// All subscriptions.
#[derive(Default)]
pub(super) struct Watches {
    // Ids are unique only within a store.
    running: Arc<Mutex<ById>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Watches {
    /// Checks that one more may start; the error names the remedy.
    pub(super) fn check_limit(&self) -> Result<(), String> {
        if self.tasks.len() < MAX_SUBSCRIPTIONS {
            return Ok(());
        }
        Err(format!(
            "there are {MAX_SUBSCRIPTIONS} subscriptions already; end some with unsubscribe"
        ))
    }

    /// Delivers changes until the store, the reader or a call ends the subscription. A replacement of the
    /// store takes it over.
    pub(super) fn start(&self, watch: Watch) {
        let id = watch.subscription.id.clone();
        let stop = self.stop.child_token();
        let running = Running {
            store: Arc::clone(&watch.store),
            own_id: id.clone(),
            stop: stop.clone(),
        };
        lock(&self.running).entry(id.clone()).or_default().push(running);
        let delivering = SubscriptionTask {
            id,
            request: watch.request,
            receiver: watch.receiver,
            running: Arc::clone(&self.running),
            stop,
        };
        self.tasks.spawn(delivering.run(watch.store, watch.subscription));
    }

    /// Removes a subscription and stops it; the caller ends it in its store.
    pub(super) fn take(&self, of: impl Fn(&Running) -> bool, id: &str) -> Option<(Arc<Store>, String)> {
        take(&self.running, of, id)
    }

    /// Stops all subscriptions.
    pub(super) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Waits for their tasks.
    pub(super) async fn stopped(&self) {
        self.tasks.wait().await;
    }
}

fn lock(running: &Mutex<ById>) -> MutexGuard<'_, ById> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the store and the id that it assigned.
fn take(running: &Mutex<ById>, of: impl Fn(&Running) -> bool, id: &str) -> Option<(Arc<Store>, String)> {
    let mut running = lock(running);
    let same_id = running.get_mut(id)?;
    let found = same_id.swap_remove(same_id.iter().position(of)?);
    if same_id.is_empty() {
        running.remove(id);
    }
    found.stop.cancel();
    Some((found.store, found.own_id))
}

/// Delivers the changes of one subscription, and resubscribes when the store is replaced.
struct SubscriptionTask {
    /// The id that callers use.
    id: String,
    request: Request,
    receiver: Receiver,
    running: Arc<Mutex<ById>>,
    stop: CancellationToken,
}

impl SubscriptionTask {
    async fn run(self, mut store: Arc<Store>, mut subscription: Subscription) {
        loop {
            let own_id = subscription.id.clone();
            let next = self.session(&store, subscription).await;
            let Some(next) = next else { break };
            end(&store, &own_id).await;
            (store, subscription) = next;
        }
        // The task that removes the entry also ends the subscription in the store.
        let taken = take(&self.running, |other| Arc::ptr_eq(&other.store, &store), &self.id);
        if let Some((store, own_id)) = taken {
            end(&store, &own_id).await;
        }
    }

    /// Delivers the changes of one store. Returns the subscription of the replacement store, if any.
    async fn session(
        &self,
        store: &Arc<Store>,
        subscription: Subscription,
    ) -> Option<(Arc<Store>, Subscription)> {
        let over = self.stop.child_token();
        let mut delivering = std::pin::pin!(self.deliver(store, subscription, &over));
        tokio::select! {
            () = &mut delivering => if !store.gone.is_cancelled() {
                return None;
            },
            () = store.gone.cancelled() => {
                // Subscribe to the new store before the old subscription ends, so that no change is lost in
                // between.
                let mut delivered_all = false;
                let mut renewing = std::pin::pin!(self.renew(store));
                let next = loop {
                    tokio::select! {
                        next = &mut renewing => break next,
                        () = &mut delivering, if !delivered_all => delivered_all = true,
                    }
                };
                // A delivery in progress finishes.
                over.cancel();
                if !delivered_all {
                    delivering.await;
                }
                return next;
            }
        }
        self.renew(store).await
    }

    /// Repeats the request on the replacement store and updates the list.
    async fn renew(&self, store: &Arc<Store>) -> Option<(Arc<Store>, Subscription)> {
        let next = store.successor.get()?;
        let attempt = || next.component.subscribe(&self.request);
        let subscription = match next.outbound.run(&next.subscribe, attempt).await {
            Ok(subscription) => subscription,
            Err(cause) => {
                let (id, name) = (&self.id, &next.name);
                tracing::error!(
                    target: LOG,
                    "the configuration subscription {id} ends: store {name} was replaced, and the new one cannot be \
                     subscribed to: {cause}"
                );
                return None;
            }
        };
        let is_known = {
            let mut running = lock(&self.running);
            let same_id = running.get_mut(&self.id).into_iter().flatten();
            let mut same_id = same_id.filter(|other| Arc::ptr_eq(&other.store, store));
            same_id.next().map(|known| {
                known.store = Arc::clone(next);
                known.own_id.clone_from(&subscription.id);
            })
        };
        if is_known.is_none() {
            // The subscription was ended in the meantime.
            end(next, &subscription.id).await;
            return None;
        }
        Some((Arc::clone(next), subscription))
    }

    async fn deliver(&self, store: &Store, subscription: Subscription, over: &CancellationToken) {
        let updates = subscription.updates;
        match &self.receiver {
            Receiver::Stream(reader) => stream(reader, updates, over).await,
            Receiver::App(app) => {
                let policy = &store.inbound;
                app.follow(&store.name, &self.id, updates, policy, over).await;
            }
        }
    }
}

/// Sends updates to the reader of a stream until it is gone.
async fn stream(reader: &mpsc::Sender<Items>, mut updates: mpsc::Receiver<Items>, over: &CancellationToken) {
    loop {
        let items = tokio::select! {
            biased;
            () = over.cancelled() => return,
            () = reader.closed() => return,
            items = updates.recv() => items,
        };
        let Some(items) = items else { return };
        tokio::select! {
            () = over.cancelled() => return,
            sent = reader.send(items) => if sent.is_err() { return },
        }
    }
}

async fn end(store: &Store, own_id: &str) {
    if let Err(error) = store.end(own_id).await {
        tracing::debug!(target: LOG, "ending a configuration subscription: {error:?}");
    }
}
