//! The end of actors: those that are idle, those that move, and all of them.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, FuturesUnordered, StreamExt};
use outrigger_actors::turns::Ticket;
use tokio::time::{sleep, timeout};

use super::admission::{InFlight, SHARDS};
use super::host::{HostedType, Turn};
use super::placement::until;
use super::{ActorError, Actors, LOG};

/// Actors that are deactivated at once.
const AT_ONCE: usize = 64;
/// Between two looks for idle actors at least.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an actor that moves may take to end, after which placement goes on without this sidecar; and an app to answer
/// that it has ended an idle one, after which that counts as ended.
const DEACTIVATION_TIMEOUT: Duration = Duration::from_secs(8);

impl Actors {
    /// Deactivates the actors that are idle, for as long as the sidecar runs.
    pub(super) async fn end_idle(&self) {
        let mut types = self.types.subscribe();
        // An actor whose app does not answer holds up no other, up to [`AT_ONCE`] of them. Who would be one more is not
        // taken yet, and can be called.
        let mut ending = FuturesUnordered::new();
        loop {
            types.mark_unchanged();
            let hosted = self.hosted.load_full();
            let looks = &self.looks;
            tokio::select! {
                () = until(looks.take()) => {}
                () = looks.earlier.notified() => continue,
                _ = types.changed() => continue,
                Some(()) = ending.next() => continue,
            }
            looks.begin();
            for kind in hosted.types() {
                for shard in 0..SHARDS {
                    if !kind.has_idle(shard) {
                        continue;
                    }
                    while kind.internal.is_none() && ending.len() >= AT_ONCE {
                        ending.next().await;
                    }
                    // While actors are spread anew nobody is found idle: who moves ends anyway.
                    let guard = Arc::new(meanwhile(&mut ending, self.admission.admit(shard)).await);
                    let most = match kind.internal {
                        // These take no time.
                        Some(_) => usize::MAX,
                        None => AT_ONCE.saturating_sub(ending.len()),
                    };
                    for (id, ticket) in kind.take_idle(shard, most) {
                        if let Some(internal) = &kind.internal {
                            internal.on_idle(&id, kind.taken_turn(&id, ticket));
                            continue;
                        }
                        ending.push(self.end_idle_one(Arc::clone(kind), Arc::clone(&guard), id, ticket));
                    }
                }
            }
            meanwhile(&mut ending, sleep(PAUSE)).await;
        }
    }

    async fn end_idle_one(&self, kind: Arc<HostedType>, guard: Arc<InFlight>, id: Arc<str>, ticket: Ticket) {
        let turn = kind.taken_turn(&id, ticket);
        tokio::select! {
            biased;
            // It stays active, and may be idle again.
            () = guard.cancelled() => {}
            () = self.deactivate(&kind, &id, turn) => {}
        }
    }

    async fn deactivate(&self, kind: &HostedType, id: &str, turn: Turn<'_>) {
        if let Some(internal) = &kind.internal {
            internal.halt(id).await;
            turn.deactivated();
            return;
        }
        let deactivated = timeout(DEACTIVATION_TIMEOUT, self.deactivate_in_app(&kind.name, id));
        let deactivated = deactivated.await.unwrap_or_else(|_| {
            Err(ActorError::Invoke(format!(
                "the app did not answer to the DELETE of the actor within {} s",
                DEACTIVATION_TIMEOUT.as_secs()
            )))
        });
        match deactivated {
            Ok(()) => kind.metrics.deactivated.inc(),
            Err(error) => {
                kind.metrics.deactivation_failed.inc();
                tracing::error!(
                    target: LOG,
                    "failed to deactivate actor {}||{id}: {error}; it counts as deactivated",
                    kind.name
                );
            }
        }
        turn.deactivated();
    }

    /// Ends the active actors that are named by `wanted`, by type and id.
    pub(super) async fn halt(&self, types: &[Arc<HostedType>], wanted: impl Fn(&str, &str) -> bool) {
        let all = types.iter().flat_map(|kind| {
            let ids = kind.ids(|id| wanted(&kind.name, id));
            ids.into_iter().map(move |id| (kind, id))
        });
        let all: Vec<_> = all.collect();
        let halted = stream::iter(all).for_each_concurrent(AT_ONCE, |(kind, id)| async move {
            if timeout(DEACTIVATION_TIMEOUT, self.halt_one(kind, &id))
                .await
                .is_err()
            {
                tracing::error!(
                    target: LOG,
                    "actor {}||{id} did not end within {} s; it counts as ended here",
                    kind.name,
                    DEACTIVATION_TIMEOUT.as_secs()
                );
            }
        });
        halted.await;
    }

    /// Ends the actors that are another sidecar's by the table of now, while the others go on. Calls of theirs that take
    /// longer than `drain` are cut off.
    pub(super) async fn hand_over(&self, drain: Duration) {
        let (routes, hosted) = (self.routes.load_full(), self.hosted.load_full());
        let types: Vec<_> = hosted.all().cloned().collect();
        self.end_within(drain, &types, |kind, id| !routes.owns(kind, id))
            .await;
    }

    /// Ends the active actors that are named by `wanted`. Calls of theirs that take longer than `drain` are cut off.
    pub(super) async fn end_within(
        &self,
        drain: Duration,
        types: &[Arc<HostedType>],
        wanted: impl Fn(&str, &str) -> bool,
    ) {
        let evict = async {
            sleep(drain).await;
            for kind in types {
                for id in kind.ids(|id| wanted(&kind.name, id)) {
                    kind.evict(&id);
                }
            }
            let _evicting = self.admission.evict();
            std::future::pending().await
        };
        tokio::select! {
            () = self.halt(types, &wanted) => {}
            () = evict => {}
        }
    }

    /// Whether any actor is active here.
    pub(super) fn has_active(&self) -> bool {
        self.hosted.load().all().any(|kind| kind.count() > 0)
    }

    /// Ends those of all actors here that are named by `wanted`.
    pub(super) async fn halt_here(&self, wanted: impl Fn(&str, &str) -> bool) {
        let hosted = self.hosted.load_full();
        let types: Vec<_> = hosted.all().cloned().collect();
        self.halt(&types, wanted).await;
    }

    async fn halt_one(&self, kind: &HostedType, id: &str) {
        if let Some(turn) = kind.last(id).await {
            kind.metrics.rebalanced.inc();
            self.deactivate(kind, id, turn).await;
        }
    }
}

/// Waits for something while others go on.
async fn meanwhile<T>(
    others: &mut FuturesUnordered<impl Future<Output = ()>>,
    awaited: impl Future<Output = T>,
) -> T {
    let mut awaited = std::pin::pin!(awaited);
    loop {
        tokio::select! {
            reached = &mut awaited => return reached,
            Some(()) = others.next() => {}
        }
    }
}
