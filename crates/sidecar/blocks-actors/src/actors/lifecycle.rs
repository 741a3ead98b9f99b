//! Deactivation of actors: idle ones, moved ones, and all.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, FuturesUnordered, StreamExt};
use outrigger_actors::turns::Ticket;
use tokio::time::{sleep, timeout};

use super::host::{HostedType, Turn};
use super::placement::until;
use super::type_admission::{Draining, InFlight, SHARDS};
use super::{ActorError, Actors, LOG};

/// Maximum concurrent deactivations.
const MAX_CONCURRENT: usize = 64;
/// Minimum pause between scans for idle actors.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an actor that moves may take to end, after which the sidecar proceeds without it. Also how long
/// an app may take to confirm the deactivation of an idle actor.
const DEACTIVATION_TIMEOUT: Duration = Duration::from_secs(8);

impl Actors {
    /// Deactivates idle actors while the sidecar runs.
    pub(super) async fn end_idle(&self) {
        let mut types = self.types.subscribe();
        // An unresponsive app delays no other actor, up to [`MAX_CONCURRENT`] of them. Actors beyond that are
        // not taken yet and stay callable.
        let mut ending = FuturesUnordered::new();
        loop {
            types.mark_unchanged();
            let hosted = self.hosted.load_full();
            let idle_scan = &self.idle_scan;
            tokio::select! {
                () = until(idle_scan.take()) => {}
                () = idle_scan.earlier.notified() => continue,
                _ = types.changed() => continue,
                Some(()) = ending.next() => continue,
            }
            idle_scan.begin();
            for kind in hosted.types() {
                for shard in 0..SHARDS {
                    if !kind.has_idle(shard) {
                        continue;
                    }
                    while kind.internal.is_none() && ending.len() >= MAX_CONCURRENT {
                        ending.next().await;
                    }
                    // No idle scan while actors of the type move: these are ended anyway.
                    let guard = Arc::new(drive_until(&mut ending, kind.admission.admit(shard)).await);
                    let most = match kind.internal {
                        // Internal actors are ended without I/O.
                        Some(_) => usize::MAX,
                        None => MAX_CONCURRENT.saturating_sub(ending.len()),
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
            drive_until(&mut ending, sleep(PAUSE)).await;
        }
    }

    async fn end_idle_one(&self, kind: Arc<HostedType>, guard: Arc<InFlight>, id: Arc<str>, ticket: Ticket) {
        let turn = kind.taken_turn(&id, ticket);
        tokio::select! {
            biased;
            // It stays active, and may become idle again.
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

    /// Ends the active actors for which `wanted` (type, id) holds.
    pub(super) async fn halt(&self, types: &[Arc<HostedType>], wanted: impl Fn(&str, &str) -> bool) {
        let all = types.iter().flat_map(|kind| {
            let ids = kind.ids(|id| wanted(&kind.name, id));
            ids.into_iter().map(move |id| (kind, id))
        });
        let all: Vec<_> = all.collect();
        let halted = stream::iter(all).for_each_concurrent(MAX_CONCURRENT, |(kind, id)| async move {
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

    /// Ends the actors that the table assigns to other sidecars, while the rest keep running. Their calls are
    /// cancelled after the drain time.
    pub(super) async fn hand_over(&self) {
        let (routes, hosted) = (self.routes.load_full(), self.hosted.load_full());
        let types: Vec<_> = hosted.all().cloned().collect();
        self.end_within(&types, |kind, id| !routes.owns(kind, id)).await;
    }

    /// Ends the active actors for which `wanted` holds. Their calls are cancelled after the drain time of the
    /// type.
    pub(super) async fn end_within(&self, types: &[Arc<HostedType>], wanted: impl Fn(&str, &str) -> bool) {
        let hosted = self.hosted.load_full();
        let evict = types.iter().map(async |kind| {
            sleep(hosted.drain_of(kind)).await;
            for id in kind.ids(|id| wanted(&kind.name, id)) {
                kind.evict(&id);
            }
            kind.admission.evict()
        });
        let evict = async {
            let _evicting = join_all(evict).await;
            std::future::pending().await
        };
        tokio::select! {
            () = self.halt(types, &wanted) => {}
            () = evict => {}
        }
    }

    /// Ends the calls of types whose actors move, each within its drain time.
    pub(super) async fn drain_types(&self, closed: Vec<(Arc<HostedType>, Draining)>) {
        let hosted = self.hosted.load_full();
        let ended = closed.into_iter().map(async |(kind, draining)| {
            if !draining.end(hosted.drain_of(&kind)).await {
                tracing::error!(
                    target: LOG,
                    "Timed out waiting for actor type '{}' in-flight lock claims to be released: its remaining \
                     calls were cancelled, because the placement table changed",
                    kind.name
                );
            }
        });
        join_all(ended).await;
    }

    pub(super) fn has_active(&self) -> bool {
        self.hosted.load().all().any(|kind| kind.count() > 0)
    }

    /// Ends all active actors of this sidecar for which `wanted` holds.
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

/// Awaits a future while driving others.
async fn drive_until<T>(
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
