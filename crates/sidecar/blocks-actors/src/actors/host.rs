//! The actors of the app beside this sidecar: their turns, and their end.

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

use super::admission::{InFlight, SHARDS};
use super::internal::Internal;
use super::metrics::TypeMetrics;

type Waker = oneshot::Sender<()>;

/// The types that are hosted here.
#[derive(Default)]
pub(super) struct Hosted {
    /// With those that go.
    types: HashMap<Arc<str>, Arc<HostedType>>,
    /// The names of those that stay, sorted.
    pub(super) names: Arc<[String]>,
    /// How long calls may go on when actors move.
    pub(super) drain: Duration,
}

/// Where the types come from.
#[derive(Default)]
pub(super) struct Types {
    /// Those of the app; `None` until it is known what it hosts.
    pub(super) app: Option<Vec<Arc<HostedType>>>,
    /// Those that are hosted no more, until their actors have ended.
    pub(super) going: Vec<Arc<HostedType>>,
    /// Those of the sidecar, by name.
    pub(super) internal: HashMap<String, Arc<HostedType>>,
    /// How long calls may go on when actors move.
    pub(super) drain: Duration,
}

impl Types {
    /// These are hosted no more; what is left of their actors is known until [`Types::forget`].
    pub(super) fn retire(&mut self, kinds: &[Arc<HostedType>]) {
        kinds.iter().for_each(|kind| kind.goes());
        self.going.extend(kinds.iter().cloned());
    }

    /// All actors of these have ended.
    pub(super) fn forget(&mut self, kinds: &[Arc<HostedType>]) {
        self.going
            .retain(|kind| !kinds.iter().any(|gone| Arc::ptr_eq(kind, gone)));
    }
}

impl Hosted {
    /// Of the types that there are now.
    pub(super) fn new(known: &Types) -> Self {
        let stay = known.app.iter().flatten().chain(known.internal.values());
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

    /// The type of this name.
    pub(super) fn get(&self, kind: &str) -> Option<&Arc<HostedType>> {
        self.with_actors(kind).filter(|kind| !kind.is_going())
    }

    /// The type of this name, also where only what is left of its actors is here.
    pub(super) fn with_actors(&self, kind: &str) -> Option<&Arc<HostedType>> {
        self.types.get(kind)
    }

    /// All types that have actors here.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<HostedType>> {
        self.types.values()
    }

    /// The types that stay, in the order of their names.
    pub(super) fn types(&self) -> impl Iterator<Item = &Arc<HostedType>> {
        self.names.iter().filter_map(|name| self.types.get(name.as_str()))
    }
}

/// When idle actors are looked for.
pub(super) struct IdleScan {
    began: Instant,
    /// Milliseconds since the beginning; the next look.
    next: AtomicU64,
    /// The next look is earlier than it was.
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

    /// Takes the time of the next look; who looks asks again.
    pub(super) fn take(&self) -> Option<Instant> {
        let next = self.next.load(Ordering::Relaxed);
        (next != u64::MAX).then(|| self.began + Duration::from_millis(next))
    }

    /// A look begins: all who want another one ask for it.
    pub(super) fn begin(&self) {
        self.next.store(u64::MAX, Ordering::Relaxed);
    }
}

/// The actors of one type.
pub(super) struct HostedType {
    pub(super) name: Arc<str>,
    pub(super) settings: TypeSettings,
    pub(super) metrics: TypeMetrics,
    /// Their code, where it is not the app's.
    pub(super) internal: Option<Internal>,
    shards: [Mutex<Shard<Waker>>; SHARDS],
    /// No turn begins any more: the actors end.
    is_going: AtomicBool,
    looks: Arc<IdleScan>,
    hasher: RandomState,
}

/// A call's part in a turn, until it is dropped.
pub(super) struct Turn<'a> {
    kind: &'a HostedType,
    id: &'a str,
    ticket: Option<Ticket>,
    /// It is the last one: the actor ends with it.
    is_last: bool,
}

/// How a call asks for its turn, and whether it got it.
pub(super) struct TurnRequest<'a> {
    /// Whether the actor is this sidecar's; asked in the moment in which the call takes its turn, so that none begins
    /// behind the last.
    pub(super) is_local: &'a (dyn Fn() -> bool + Sync),
    /// By which the call may have to end while it waits.
    guard: Option<&'a InFlight>,
    /// The turn has begun.
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

    /// The same for a call that ends when its guard does, and takes no turn behind that.
    pub(super) fn within(self, guard: &'a InFlight) -> Self {
        Self {
            guard: Some(guard),
            ..self
        }
    }
}

impl HostedType {
    /// A type of the app.
    pub(super) fn new(
        name: &str,
        settings: TypeSettings,
        metrics: TypeMetrics,
        looks: &Arc<IdleScan>,
    ) -> Self {
        Self {
            name: name.into(),
            settings,
            metrics,
            internal: None,
            shards: std::array::from_fn(|_| Mutex::new(Shard::new(settings.idle))),
            is_going: AtomicBool::new(false),
            looks: Arc::clone(looks),
            hasher: RandomState::new(),
        }
    }

    /// A type of the sidecar.
    pub(super) fn internal(
        name: &str,
        internal: Internal,
        metrics: TypeMetrics,
        looks: &Arc<IdleScan>,
    ) -> Self {
        let made = Self::new(name, internal.settings(), metrics, looks);
        Self {
            internal: Some(internal),
            ..made
        }
    }

    /// Ends the calls of a type of the sidecar; those of an app end by themselves.
    pub(super) fn end(&self) {
        if let Some(internal) = &self.internal {
            internal.end();
        }
    }

    /// From now on no actor becomes active, and only calls of a turn that runs begin. Whoever looks for active actors
    /// behind this finds all that there will be.
    pub(super) fn goes(&self) {
        self.is_going.store(true, Ordering::SeqCst);
    }

    /// Whether the type is hosted no more.
    pub(super) fn is_going(&self) -> bool {
        self.is_going.load(Ordering::SeqCst)
    }

    /// The shard of an actor.
    pub(super) fn shard_of(&self, id: &str) -> usize {
        usize::try_from(self.hasher.hash_one(id) % SHARDS as u64).unwrap_or_default()
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard<Waker>> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the actor's turn, or joins the one that has this id. `None` when the actor has ended here, or never was:
    /// it is another sidecar's.
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
            let stays = !self.is_going() && (turn_request.is_local)();
            let entry = shard.enter(id, reentry, stays, self.looks.now(), || waker)?;
            self.looks.ask(shard.next_look());
            entry
        };
        let turn = match entry {
            Entry::Turn(ticket, begins) => {
                let turn = self.begun(id, ticket, begins, woken).await;
                self.unless_cut(turn, turn_request).await
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
            // Only who leaves gives up its waker, and this has not.
            let _begun = woken.await;
        }
        turn
    }

    /// A turn that has come, unless its call has to end: nothing is begun only to be cut off, and whoever waits behind it
    /// gives up likewise. `None` when the actor has ended here.
    async fn unless_cut<'a>(&self, turn: Turn<'a>, turn_request: &TurnRequest<'_>) -> Option<Turn<'a>> {
        let Some(guard) = turn_request.guard else {
            return Some(turn);
        };
        if guard.is_cancelled() {
            drop(turn);
            // Who made the call sees that too, and looks again. The actor may stay: nobody waits for its end.
            return std::future::pending().await;
        }
        let id = turn.id;
        if guard.is_asked() && self.is_evicted(id) {
            drop(turn);
            self.wait_until_ended(id).await;
            return None;
        }
        Some(turn)
    }

    /// A turn of an active actor that nobody has or waits for.
    pub(super) fn free_turn<'a>(&'a self, id: &'a str) -> Option<Turn<'a>> {
        let ticket = self.shard(self.shard_of(id)).enter_free(id)?;
        Some(self.taken_turn(id, ticket))
    }

    /// Waits for the last turn of an active actor, behind which no other begins. `None` when it ended meanwhile.
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

    /// Waits until an actor that ends here has ended.
    pub(super) async fn wait_until_ended(&self, id: &str) {
        let (waker, woken) = oneshot::channel();
        let entry = self
            .shard(self.shard_of(id))
            .enter(id, None, false, self.looks.now(), || waker);
        if entry == Ok(Entry::Ends) {
            let _ended = woken.await;
        }
    }

    /// The calls of an actor that run have to end.
    pub(super) fn evict(&self, id: &str) {
        self.shard(self.shard_of(id)).evict(id);
    }

    /// Whether the calls of an actor that run have to end.
    pub(super) fn is_evicted(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_evicted(id)
    }

    /// Whether an actor is being ended: its last turn has begun.
    pub(super) fn is_in_last(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_in_last(id)
    }

    /// The actors of a shard that are idle, `most` of them, each in a turn that nobody waits for.
    pub(super) fn take_idle(&self, index: usize, most: usize) -> Vec<(Arc<str>, Ticket)> {
        let mut shard = self.shard(index);
        let idle = shard.take_idle(self.looks.now(), most);
        self.looks.ask(shard.next_look());
        idle
    }

    /// Whether an actor of a shard may be idle by now.
    pub(super) fn has_idle(&self, index: usize) -> bool {
        let next = self.shard(index).next_look();
        let due = next.is_some_and(|next| next <= self.looks.now());
        if !due {
            self.looks.ask(next);
        }
        due
    }

    /// A turn that was taken by [`HostedType::take_idle`].
    pub(super) fn taken_turn<'a>(&'a self, id: &'a str, ticket: Ticket) -> Turn<'a> {
        Turn {
            kind: self,
            id,
            ticket: Some(ticket),
            is_last: false,
        }
    }

    /// Whether an actor is active.
    pub(super) fn is_active(&self, id: &str) -> bool {
        self.shard(self.shard_of(id)).is_active(id)
    }

    /// How many are active.
    pub(super) fn count(&self) -> usize {
        (0..SHARDS).map(|index| self.shard(index).len()).sum()
    }

    /// The active actors that are wanted.
    pub(super) fn ids(&self, wanted: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let all = (0..SHARDS).flat_map(|index| self.shard(index).ids());
        all.filter(|id| wanted(id)).collect()
    }
}

impl Turn<'_> {
    /// Ends the turn, and with it the actor's activity, unless others wait for their turn.
    pub(super) fn deactivated(mut self) {
        self.end(Shard::deactivated);
    }

    /// Ends the turn of an actor that was idle and stays active.
    pub(super) fn keep_active(mut self) {
        self.end(Shard::keep_active);
    }

    fn end(&mut self, how: impl FnOnce(&mut Shard<Waker>, &str, Ticket, Duration) -> Vec<Waker>) {
        let Some(ticket) = self.ticket.take() else { return };
        let now = self.kind.looks.now();
        let woken = {
            let mut shard = self.kind.shard(self.kind.shard_of(self.id));
            let woken = how(&mut shard, self.id, ticket, now);
            self.kind.looks.ask(shard.next_look());
            woken
        };
        for waker in woken {
            // Who gave up leaves by itself.
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
