//! The hosted actors: turns and deactivation.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_actors::settings::TypeSettings;
use outrigger_actors::shard::Shard;
use outrigger_actors::turns::{Entry, Reentry, Ticket, TooDeep};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::internal::Internal;
use super::metrics::TypeMetrics;
use super::type_admission::{InFlight, SHARDS, TypeAdmission};

type Waker = oneshot::Sender<()>;

/// The hosted actor types.
#[derive(Default)]
pub(super) struct Hosted {
    /// Includes types that are being unregistered.
    types: HashMap<Arc<str>, Arc<HostedType>>,
    /// The names of the registered types, sorted.
    pub(super) names: Arc<[String]>,
    /// Drain time of calls when actors move, of types without an own one.
    drain: Duration,
}

/// The sources of the hosted types.
#[derive(Default)]
pub(super) struct Types {
    /// Types of an app with a port; `None` until they are known.
    pub(super) app: Option<Vec<Arc<HostedType>>>,
    /// Types of the app's streams.
    pub(super) streamed: Vec<Arc<HostedType>>,
    /// The app does not answer health checks: it hosts nothing.
    pub(super) is_unhealthy: bool,
    /// Unregistered types whose actors have not ended.
    pub(super) going: Vec<Arc<HostedType>>,
    /// Internal types by name.
    pub(super) internal: HashMap<String, Arc<HostedType>>,
    /// Drain time of calls when actors move, of types without an own one.
    pub(super) drain: Duration,
    /// Without an actor state store the types are known but not hosted.
    pub(super) is_dormant: bool,
}

impl Types {
    /// Stops hosting all types; they stay known, as `again` makes them. Their remaining actors stay known
    /// until [`Types::forget`].
    pub(super) fn sleep(&mut self, again: impl Fn(&HostedType) -> HostedType) -> Vec<Arc<HostedType>> {
        if std::mem::replace(&mut self.is_dormant, true) {
            return Vec::new();
        }
        let of_app = self.app.iter_mut().flatten().chain(&mut self.streamed);
        let all = of_app.chain(self.internal.values_mut());
        let going = all.map(|kind| {
            let next = Arc::new(again(kind));
            std::mem::replace(kind, next)
        });
        let going: Vec<_> = going.collect();
        self.retire(&going);
        going
    }

    /// Unregisters these types; their remaining actors stay known until [`Types::forget`].
    pub(super) fn retire(&mut self, kinds: &[Arc<HostedType>]) {
        kinds.iter().for_each(|kind| kind.retire());
        self.going.extend(kinds.iter().cloned());
    }

    /// Forgets types whose actors have all ended.
    pub(super) fn forget(&mut self, kinds: &[Arc<HostedType>]) {
        self.going
            .retain(|kind| !kinds.iter().any(|gone| Arc::ptr_eq(kind, gone)));
    }
}

impl Hosted {
    /// The current types.
    pub(super) fn new(known: &Types) -> Self {
        let of_app = known.app.iter().flatten().chain(&known.streamed);
        let stay = of_app
            .chain(known.internal.values())
            .filter(|_| !known.is_dormant);
        let mut names: Vec<_> = stay.clone().map(|kind| kind.name.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        let types = known.going.iter().chain(stay);
        let types = types
            .map(|kind| (Arc::clone(&kind.name), Arc::clone(kind)))
            .collect();
        Self {
            types,
            names: names.into(),
            drain: known.drain,
        }
    }

    /// The registered type of this name.
    pub(super) fn get(&self, kind: &str) -> Option<&Arc<HostedType>> {
        self.with_actors(kind).filter(|kind| !kind.is_retiring())
    }

    /// The type of this name, also if it is being unregistered.
    pub(super) fn with_actors(&self, kind: &str) -> Option<&Arc<HostedType>> {
        self.types.get(kind)
    }

    /// All types, including those being unregistered.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<HostedType>> {
        self.types.values()
    }

    /// Drain time of a type's calls.
    pub(super) fn drain_of(&self, kind: &HostedType) -> Duration {
        kind.settings.drain.unwrap_or(self.drain)
    }

    /// The longest drain time.
    pub(super) fn longest_drain(&self) -> Duration {
        let all = self.all().map(|kind| self.drain_of(kind));
        all.fold(self.drain, Duration::max)
    }

    /// The registered types, sorted by name.
    pub(super) fn types(&self) -> impl Iterator<Item = &Arc<HostedType>> {
        self.names.iter().filter_map(|name| self.types.get(name.as_str()))
    }
}

/// Schedules scans for idle actors.
pub(super) struct IdleScan {
    began: Instant,
    /// The next scan, milliseconds after `began`.
    next: AtomicU64,
    /// Notified when the next scan becomes earlier.
    pub(super) earlier: Notify,
}

impl Default for IdleScan {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            next: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
        }
    }
}

impl IdleScan {
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn ask(&self, at: Option<Duration>) {
        let Some(at) = at else { return };
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        if at < self.next.load(Ordering::Relaxed) && at < self.next.fetch_min(at, Ordering::Relaxed) {
            self.earlier.notify_one();
        }
    }

    /// The time of the next scan; the scanner schedules the one after.
    pub(super) fn take(&self) -> Option<Instant> {
        let next = self.next.load(Ordering::Relaxed);
        (next != u64::MAX).then(|| self.began + Duration::from_millis(next))
    }

    /// Starts a scan, during which shards schedule their next one.
    pub(super) fn begin(&self) {
        self.next.store(u64::MAX, Ordering::Relaxed);
    }
}

/// The hosted actors of one type.
pub(super) struct HostedType {
    pub(super) name: Arc<str>,
    pub(super) settings: TypeSettings,
    pub(super) metrics: TypeMetrics,
    /// The implementation of an internal type.
    pub(super) internal: Option<Internal>,
    /// Admits its calls.
    pub(super) admission: Arc<TypeAdmission>,
    shards: [Mutex<Shard<Waker>>; SHARDS],
    /// No actor is activated any more: the type is being unregistered.
    is_retiring: AtomicBool,
    idle_scan: Arc<IdleScan>,
    hasher: RandomState,
}

/// A call's part in a turn, until dropped.
pub(super) struct Turn<'a> {
    kind: &'a HostedType,
    id: &'a str,
    ticket: Option<Ticket>,
    /// The last turn: the actor ends with it.
    is_last: bool,
}

/// A call's request for a turn, and whether it has got one.
pub(super) struct TurnRequest<'a> {
    /// Whether the actor belongs to this sidecar; evaluated when the call takes its turn, so that none
    /// follows the last turn.
    pub(super) is_local: &'a (dyn Fn() -> bool + Sync),
    /// The guard that may cancel the call while it waits.
    guard: Option<&'a InFlight>,
    pub(super) begun: AtomicBool,
}

impl<'a> TurnRequest<'a> {
    pub(super) fn new(is_local: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self {
            is_local,
            guard: None,
            begun: AtomicBool::new(false),
        }
    }

    /// Ties the request to a guard: a cancelled call gets no turn.
    pub(super) fn within(self, guard: &'a InFlight) -> Self {
        Self {
            guard: Some(guard),
            ..self
        }
    }
}

impl HostedType {
    /// An app's type.
    pub(super) fn new(
        name: Arc<str>,
        settings: TypeSettings,
        metrics: TypeMetrics,
        admission: Arc<TypeAdmission>,
        idle_scan: &Arc<IdleScan>,
    ) -> Self {
        Self {
            name,
            settings,
            metrics,
            internal: None,
            admission,
            shards: std::array::from_fn(|_| Mutex::new(Shard::new(settings.idle))),
            is_retiring: AtomicBool::new(false),
            idle_scan: Arc::clone(idle_scan),
            hasher: RandomState::new(),
        }
    }

    /// Cancels the calls of an internal type; calls of an app's type end by themselves.
    pub(super) fn end(&self) {
        if let Some(internal) = &self.internal {
            internal.end();
        }
    }

    /// Stops activation: from now on only calls of a running turn start, and a listing of active actors is
    /// complete.
    pub(super) fn retire(&self) {
        self.is_retiring.store(true, Ordering::SeqCst);
    }

    /// Whether the type is being unregistered.
    pub(super) fn is_retiring(&self) -> bool {
        self.is_retiring.load(Ordering::SeqCst)
    }

    pub(super) fn shard_of(&self, id: &str) -> usize {
        usize::try_from(self.hasher.hash_one(id) % SHARDS as u64).unwrap_or_default()
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard<Waker>> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn of the actor, or joins the one with this reentrancy id. `None` if the actor was
    /// deactivated here or belongs to another sidecar.
    pub(super) async fn turn<'a>(
        &'a self,
        id: &'a str,
        reentry: Option<&str>,
        turn_request: &TurnRequest<'_>,
    ) -> Result<Option<Turn<'a>>, TooDeep> {
        let (waker, woken) = oneshot::channel();
        let reentry = reentry.zip(self.settings.reentrancy);
        let reentry = reentry.map(|(id, depth)| Reentry { id, depth });
        let entry = {
            let mut shard = self.shard(self.shard_of(id));
            let stays = !self.is_retiring() && (turn_request.is_local)();
            let entry = shard.enter(id, reentry, stays, self.idle_scan.now(), || waker)?;
            self.idle_scan.ask(shard.next_look());
            entry
        };
        let turn = match entry {
            Entry::Turn(ticket, begins) => {
                let turn = self.begun(id, ticket, begins, woken).await;
                self.unless_cancelled(turn, turn_request).await
            }
            Entry::Ends => {
                let _ended = woken.await;
                None
            }
            Entry::Absent => None,
        };
        turn_request.begun.store(turn.is_some(), Ordering::SeqCst);
        Ok(turn)
    }

    async fn begun<'a>(
        &'a self,
        id: &'a str,
        ticket: Ticket,
        begins: bool,
        woken: oneshot::Receiver<()>,
    ) -> Turn<'a> {
        let turn = self.taken_turn(id, ticket);
        if !begins {
            let _pending = self.metrics.pending();
            // Only `leave` drops the waker, and this ticket has not left.
            let _begun = woken.await;
        }
        turn
    }

    /// Gives up a turn if its call has been cancelled: it would only be interrupted. Calls queued behind it
    /// do the same. `None` if the actor was deactivated here.
    async fn unless_cancelled<'a>(&self, turn: Turn<'a>, turn_request: &TurnRequest<'_>) -> Option<Turn<'a>> {
        let Some(guard) = turn_request.guard else {
            return Some(turn);
        };
        if guard.is_cancelled() {
            drop(turn);
            // The call's future sees the cancellation too and is routed again. The actor may stay active.
            return std::future::pending().await;
        }
        let id = turn.id;
        if guard.has_eviction() && self.is_evicted(id) {
            drop(turn);
            self.wait_until_ended(id).await;
            return None;
        }
        Some(turn)
    }

    /// Takes a turn of an active actor whose queue is empty.
    pub(super) fn free_turn<'a>(&'a self, id: &'a str) -> Option<Turn<'a>> {
        let ticket = self.shard(self.shard_of(id)).enter_free(id)?;
        Some(self.taken_turn(id, ticket))
    }

    /// Waits for the last turn of an active actor; no turn follows it. `None` if the actor has ended.
    pub(super) async fn last<'a>(&'a self, id: &'a str) -> Option<Turn<'a>> {
        let (waker, woken) = oneshot::channel();
        let last = self.shard(self.shard_of(id)).last(id, || waker);
        let Some((ticket, begins)) = last else {
            // It may be ending already.
            self.wait_until_ended(id).await;
            return None;
        };
        let mut turn = self.taken_turn(id, ticket);
        turn.is_last = true;
        if !begins {
            let _begun = woken.await;
        }
        Some(turn)
    }

    /// Waits until an actor has ended here.
    pub(super) async fn wait_until_ended(&self, id: &str) {
        let (waker, woken) = oneshot::channel();
        let entry = self
            .shard(self.shard_of(id))
            .enter(id, None, false, self.idle_scan.now(), || waker);
        if entry == Ok(Entry::Ends) {
            let _ended = woken.await;
        }
    }

    /// Marks the running calls of an actor for cancellation.
    pub(super) fn evict(&self, id: &str) {
        self.shard(self.shard_of(id)).evict(id);
    }

    /// Whether the running calls of an actor must end.
    pub(super) fn is_evicted(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_evicted(id)
    }

    /// Whether an actor's last turn has begun.
    pub(super) fn is_in_last(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_in_last(id)
    }

    /// Takes up to `most` idle actors of a shard, each with a turn.
    pub(super) fn take_idle(&self, index: usize, most: usize) -> Vec<(Arc<str>, Ticket)> {
        let mut shard = self.shard(index);
        let idle = shard.take_idle(self.idle_scan.now(), most);
        self.idle_scan.ask(shard.next_look());
        idle
    }

    /// Whether a shard may have idle actors by now.
    pub(super) fn has_idle(&self, index: usize) -> bool {
        let next = self.shard(index).next_look();
        let due = next.is_some_and(|next| next <= self.idle_scan.now());
        if !due {
            self.idle_scan.ask(next);
        }
        due
    }

    /// The turn of a ticket from [`HostedType::take_idle`].
    pub(super) fn taken_turn<'a>(&'a self, id: &'a str, ticket: Ticket) -> Turn<'a> {
        Turn {
            kind: self,
            id,
            ticket: Some(ticket),
            is_last: false,
        }
    }

    pub(super) fn is_active(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_active(id)
    }

    /// Number of active actors.
    pub(super) fn count(&self) -> usize {
        (0..SHARDS).map(|index| self.shard(index).len()).sum()
    }

    /// The active actors that match.
    pub(super) fn ids(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let all = (0..SHARDS).flat_map(|index| self.shard(index).ids());
        all.filter(|id| wanted(id)).collect()
    }
}

impl Turn<'_> {
    /// Ends the turn and deactivates the actor, unless calls are queued.
    pub(super) fn deactivated(mut self) {
        self.end(Shard::deactivated);
    }

    /// Ends the turn of an idle actor that stays active.
    pub(super) fn keep_active(mut self) {
        self.end(Shard::keep_active);
    }

    fn end(&mut self, how: impl FnOnce(&mut Shard<Waker>, &str, Ticket, Duration) -> Vec<Waker>) {
        let Some(ticket) = self.ticket.take() else { return };
        let now = self.kind.idle_scan.now();
        let woken = {
            let mut shard = self.kind.shard(self.kind.shard_of(self.id));
            let woken = how(&mut shard, self.id, ticket, now);
            self.kind.idle_scan.ask(shard.next_look());
            woken
        };
        for waker in woken {
            // A waiter that gave up leaves by itself.
            let _gone = waker.send(());
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.end(match self.is_last {
            true => Shard::deactivated,
            false => Shard::leave,
        });
    }
}
