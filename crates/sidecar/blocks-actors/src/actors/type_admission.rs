//! Admission of the calls of an actor type while the placement table is valid; cancels them when it changes.
//! A call takes no lock: it increments the counter of its actor's shard.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::join_all;
use tokio::sync::{Notify, watch};

use super::admission::Heartbeat;

/// Number of shards; calls of different shards do not contend.
pub(super) const SHARDS: usize = 16;

/// Admits or rejects calls of one actor type.
pub(super) struct TypeAdmission {
    current: ArcSwap<Period>,
    is_open: watch::Sender<bool>,
    /// For all types that this sidecar does not host.
    is_common: bool,
    heartbeat: Arc<Heartbeat>,
}

/// The interval between opening and closing an admission.
struct Period {
    shards: [CallShard; SHARDS],
    closed: AtomicBool,
    /// Number of [`Evicting`] guards.
    evicts: AtomicUsize,
    /// Notified when a call ends after the admission was closed.
    ended: Notify,
    is_common: bool,
    heartbeat: Arc<Heartbeat>,
}

#[derive(Default)]
struct CallShard {
    calls: AtomicUsize,
    cancelled: AtomicBool,
    /// Notified when calls must check for cancellation.
    recheck: Notify,
}

impl Period {
    fn new(is_open: bool, is_common: bool, heartbeat: &Arc<Heartbeat>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            closed: AtomicBool::new(!is_open),
            evicts: AtomicUsize::new(0),
            ended: Notify::new(),
            is_common,
            heartbeat: Arc::clone(heartbeat),
        })
    }

    fn calls(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.calls.load(Ordering::SeqCst))
            .sum()
    }

    fn cancel(&self) {
        for shard in &self.shards {
            shard.cancelled.store(true, Ordering::SeqCst);
            shard.recheck.notify_waiters();
        }
    }

    async fn empty(&self) {
        while self.calls() > 0 {
            self.ended.notified().await;
        }
    }
}

/// Guard of a call in flight; a dissemination waits until it is dropped.
pub(super) struct InFlight {
    period: Arc<Period>,
    shard: usize,
}

impl InFlight {
    /// Whether the type was not hosted when the call was admitted.
    pub(super) fn is_common(&self) -> bool {
        self.period.is_common
    }

    /// Completes when the call must end: it exceeded the drain time.
    pub(super) async fn cancelled(&self) {
        self.cancelled_or(|| false).await;
    }

    /// Whether [`InFlight::cancelled`] would complete at once.
    pub(super) fn is_cancelled(&self) -> bool {
        let shard = &self.period.shards[self.shard];
        shard.cancelled.load(Ordering::SeqCst) || self.period.heartbeat.was_suspended()
    }

    /// Whether calls must check for eviction: there is an [`Evicting`].
    pub(super) fn has_eviction(&self) -> bool {
        self.period.evicts.load(Ordering::SeqCst) > 0
    }

    /// As [`InFlight::cancelled`], or when `evicted` returns true, which is checked while there is an
    /// [`Evicting`].
    pub(super) async fn cancelled_or(&self, evicted: impl Fn() -> bool) {
        let shard = &self.period.shards[self.shard];
        loop {
            let mut look = std::pin::pin!(shard.recheck.notified());
            look.as_mut().enable();
            if self.is_cancelled() || (self.has_eviction() && evicted()) {
                return;
            }
            // Checked first: after a suspension, everything the call waits for may be ready at once.
            let has_stopped = poll_fn(|cx| match self.period.heartbeat.was_suspended() {
                true => Poll::Ready(true),
                false => look.as_mut().poll(cx).map(|()| false),
            });
            if has_stopped.await {
                return;
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.period.shards[self.shard]
            .calls
            .fetch_sub(1, Ordering::SeqCst);
        if self.period.closed.load(Ordering::SeqCst) {
            self.period.ended.notify_one();
        }
    }
}

/// The calls in flight when admissions were closed.
#[derive(Clone, Default)]
pub(super) struct Draining(Vec<Arc<Period>>);

impl Draining {
    /// Adds the calls of another admission.
    pub(super) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Cancels all running work, including parts of calls and deactivations that start later.
    pub(super) fn cancel(&self) {
        self.0.iter().for_each(|period| period.cancel());
    }

    /// Waits up to `time` for the calls to end, then cancels the rest. Returns whether all ended in time.
    pub(super) async fn end(self, time: Duration) -> bool {
        let all = || join_all(self.0.iter().map(|period| period.empty()));
        if !time.is_zero() && tokio::time::timeout(time, all()).await.is_ok() {
            return true;
        }
        self.cancel();
        all().await;
        false
    }
}

/// While this exists, calls check for eviction.
pub(super) struct Evicting(Arc<Period>);

impl Drop for Evicting {
    fn drop(&mut self) {
        self.0.evicts.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TypeAdmission {
    pub(super) fn new(is_open: bool, is_common: bool, heartbeat: Arc<Heartbeat>) -> Self {
        Self {
            current: ArcSwap::new(Period::new(is_open, is_common, &heartbeat)),
            is_open: watch::channel(is_open).0,
            is_common,
            heartbeat,
        }
    }

    /// Waits for admission of a call.
    pub(super) async fn admit(&self, shard: usize) -> InFlight {
        loop {
            if let Some(guard) = self.try_admit(shard) {
                return guard;
            }
            let mut opened = self.is_open.subscribe();
            // `self` owns the sender.
            let _gone = opened.wait_for(|open| *open).await;
        }
    }

    /// Admits a call unless the admission is closed.
    pub(super) fn try_admit(&self, shard: usize) -> Option<InFlight> {
        let guard = self.count(shard);
        (!guard.period.closed.load(Ordering::SeqCst)).then_some(guard)
    }

    fn count(&self, shard: usize) -> InFlight {
        self.check_suspended();
        let period = self.current.load_full();
        let shard = shard % SHARDS;
        period.shards[shard].calls.fetch_add(1, Ordering::SeqCst);
        InFlight { period, shard }
    }

    /// Registers a part of a running call, even if the admission is closed: it is cancelled with the call.
    pub(super) fn admit_nested(&self, shard: usize) -> InFlight {
        self.count(shard)
    }

    /// If the process was suspended, closes the admission and cancels all calls; every entry point checks this.
    fn check_suspended(&self) {
        if self.heartbeat.was_suspended() {
            self.heartbeat.suspend();
            self.close().cancel();
        }
    }

    /// Stops admission; the caller drains the calls in flight.
    pub(super) fn close(&self) -> Draining {
        let period = self.current.load_full();
        period.closed.store(true, Ordering::SeqCst);
        self.is_open.send_replace(false);
        Draining(vec![period])
    }

    pub(super) fn is_open(&self) -> bool {
        !self.current.load().closed.load(Ordering::SeqCst)
    }

    /// Makes calls check for eviction, now and while the guard exists.
    pub(super) fn evict(&self) -> Evicting {
        let period = self.current.load_full();
        period.evicts.fetch_add(1, Ordering::SeqCst);
        period
            .shards
            .iter()
            .for_each(|shard| shard.recheck.notify_waiters());
        Evicting(period)
    }

    /// Completes when the admission closes: watches do not delay a new table.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_open = self.is_open.subscribe();
        async move {
            // The sender is gone: nothing is left to watch.
            let _closed = is_open.wait_for(|open| !*open).await;
        }
    }

    /// Undoes [`TypeAdmission::close`] if no call was cancelled.
    pub(super) fn reopen(&self) {
        self.current.load().closed.store(false, Ordering::SeqCst);
        self.is_open.send_replace(true);
        self.stay_closed();
    }

    /// Admits calls.
    pub(super) fn open(&self) {
        if self.is_open() {
            return;
        }
        let period = Period::new(true, self.is_common, &self.heartbeat);
        self.current.store(period);
        self.is_open.send_replace(true);
        self.stay_closed();
    }

    /// Closes again after a suspension that the opener may not know of.
    fn stay_closed(&self) {
        if self.heartbeat.is_suspended() {
            self.close().cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn admission(is_open: bool) -> TypeAdmission {
        TypeAdmission::new(is_open, false, Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn close_drains_then_cancels_calls() {
        let admission = admission(false);
        assert!(admission.admit(0).now_or_never().is_none());
        admission.open();
        let (short, long) = (admission.admit(0).await, admission.admit(17).await);
        let mut draining = std::pin::pin!(admission.close().end(Duration::from_secs(2)));
        assert!(admission.admit(3).now_or_never().is_none());
        assert!(draining.as_mut().now_or_never().is_none());
        drop(short);
        let began = tokio::time::Instant::now();
        let ending = async {
            long.cancelled().await;
            drop(long);
        };
        let (in_time, ()) = tokio::join!(draining, ending);
        assert!(!in_time);
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        admission.open();
        assert!(admission.admit(3).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_within_drain_time_complete() {
        let admission = admission(true);
        let guard = admission.admit(0).await;
        let draining = admission.close().end(Duration::from_secs(2));
        let work = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let part = admission.admit_nested(0);
            let cancelled = part.cancelled().now_or_never().is_some();
            drop((part, guard));
            cancelled
        };
        let began = tokio::time::Instant::now();
        let (in_time, cancelled) = tokio::join!(draining, work);
        assert!(in_time && !cancelled);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn cancelling_includes_nested_calls() {
        let admission = admission(true);
        let draining = admission.close();
        // No call is in flight.
        draining.clone().end(Duration::from_secs(2)).await;
        let part = admission.admit_nested(0);
        assert!(part.cancelled().now_or_never().is_none());
        draining.cancel();
        assert!(part.cancelled().now_or_never().is_some());
        assert!(admission.admit_nested(3).cancelled().now_or_never().is_some());
        admission.open();
        assert!(admission.admit_nested(3).cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn opening_admits_waiting_calls() {
        let admission = Arc::new(admission(false));
        let waiting = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { drop(admission.admit(1).await) }
        });
        tokio::task::yield_now().await;
        admission.open();
        waiting.await.unwrap();
        admission.close().end(Duration::ZERO).await;
    }
}
