//! Admits calls while the placement table is valid and cancels them when it changes. A call takes no lock: it
//! increments the counter of its actor's shard.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

/// Number of shards; calls of different shards do not contend.
pub(super) const SHARDS: usize = 16;

/// Interval of the process heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A process that was suspended for longer cancels all calls first: placement reassigns its actors 3 s after
/// the first unanswered ping.
const MAX_SUSPENSION: Duration = Duration::from_millis(2_500);

/// Admits or rejects calls.
pub(super) struct Admission {
    current: ArcSwap<Period>,
    is_open: watch::Sender<bool>,
    heartbeat: Arc<Heartbeat>,
    /// The process was suspended: no call starts before its actors have ended.
    suspended: watch::Sender<bool>,
}

/// Detects a suspension of the process.
struct Heartbeat {
    made: Instant,
    /// Milliseconds after `made`; 0 while [`Admission::watch`] is not running.
    last_seen: AtomicU64,
}

impl Heartbeat {
    /// By the machine's clock, which continues while the process is suspended.
    fn millis(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the process has just been suspended.
    fn was_suspended(&self) -> bool {
        let last_seen = self.last_seen.load(Ordering::SeqCst);
        last_seen > 0 && u128::from(self.millis().saturating_sub(last_seen)) > MAX_SUSPENSION.as_millis()
    }
}

/// Stops the heartbeat check when dropped.
struct Unwatched<'a>(&'a AtomicU64);

impl Drop for Unwatched<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// The interval between opening and closing admission.
struct Period {
    shards: [CallShard; SHARDS],
    closed: AtomicBool,
    /// Number of [`Evicting`] guards.
    evicts: AtomicUsize,
    /// Notified when a call ends after admission was closed.
    ended: Notify,
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
    fn new(closed: bool, heartbeat: &Arc<Heartbeat>) -> Arc<Self> {
        Arc::new(Self {
            shards: Default::default(),
            closed: AtomicBool::new(closed),
            evicts: AtomicUsize::new(0),
            ended: Notify::new(),
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

/// The calls in flight when admission was closed.
pub(super) struct Draining(Arc<Period>);

impl Draining {
    /// Revokes work that outlasts these calls.
    pub(super) fn revocation(&self) -> Revocation {
        Revocation(Arc::clone(&self.0))
    }

    /// Waits up to `time` for the calls to end, then cancels the rest.
    pub(super) async fn end(self, time: Duration) {
        let period = self.0;
        if !time.is_zero() && tokio::time::timeout(time, period.empty()).await.is_ok() {
            return;
        }
        period.cancel();
        period.empty().await;
    }
}

/// While this exists, calls check for eviction.
pub(super) struct Evicting(Arc<Period>);

impl Drop for Evicting {
    fn drop(&mut self) {
        self.0.evicts.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Revokes everything admitted before admission was closed.
pub(super) struct Revocation(Arc<Period>);

impl Revocation {
    /// Cancels all running work of the period, including parts of calls and deactivations that start later.
    pub(super) fn revoke(&self) {
        self.0.cancel();
    }
}

impl Admission {
    /// Closed until [`Admission::open`].
    pub(super) fn new() -> Self {
        let heartbeat = Arc::new(Heartbeat {
            made: Instant::now(),
            last_seen: AtomicU64::new(0),
        });
        Self {
            current: ArcSwap::new(Period::new(true, &heartbeat)),
            is_open: watch::channel(false).0,
            heartbeat,
            suspended: watch::channel(false).0,
        }
    }

    /// Runs the heartbeat while polled.
    pub(super) async fn watch(&self) {
        let _unwatched = Unwatched(&self.heartbeat.last_seen);
        loop {
            self.check_suspended();
            let millis = self.heartbeat.millis();
            self.heartbeat.last_seen.store(millis.max(1), Ordering::SeqCst);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// If the process was suspended, closes admission and cancels all calls; every entry point checks this.
    fn check_suspended(&self) {
        if self.heartbeat.was_suspended() {
            self.suspended.send_replace(true);
            self.close().0.cancel();
        }
    }

    /// Completes when a suspension of the process is detected.
    pub(super) async fn suspended(&self) {
        let mut suspended = self.suspended.subscribe();
        // `self` owns the sender.
        let _seen = suspended.wait_for(|still| *still).await;
    }

    /// Allows opening again: everything from before the suspension has ended.
    pub(super) fn resume(&self) {
        self.suspended.send_replace(false);
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

    /// Admits a call unless admission is closed.
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

    /// Registers a part of a running call, even if admission is closed: it is cancelled with the call.
    pub(super) fn admit_nested(&self, shard: usize) -> InFlight {
        self.count(shard)
    }

    /// Stops admission; the caller drains the calls in flight.
    pub(super) fn close(&self) -> Draining {
        let period = self.current.load_full();
        period.closed.store(true, Ordering::SeqCst);
        self.is_open.send_replace(false);
        Draining(period)
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

    /// Completes when admission closes: watches do not delay a new table.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_open = self.is_open.subscribe();
        async move {
            // The sender is gone: nothing is left to watch.
            let _closed = is_open.wait_for(|open| !*open).await;
        }
    }

    /// Undoes [`Admission::close`] if no call was cancelled.
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
        self.current.store(Period::new(false, &self.heartbeat));
        self.is_open.send_replace(true);
        self.stay_closed();
    }

    /// Closes again after a suspension that the opener may not know of.
    fn stay_closed(&self) {
        if *self.suspended.borrow() {
            self.close().0.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn suspension_cancels_all_calls() {
        let admission = Admission::new();
        admission.open();
        let ran = admission.admit(0).await;
        let mut watch = std::pin::pin!(admission.watch());
        assert!(watch.as_mut().now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_none());
        let mut ends = std::pin::pin!(ran.cancelled());
        assert!(ends.as_mut().now_or_never().is_none());
        std::thread::sleep(MAX_SUSPENSION + Duration::from_millis(10));
        // Before the heartbeat has noticed.
        assert!(ends.now_or_never().is_some());
        let part = admission.admit_nested(0);
        assert!(part.cancelled().now_or_never().is_some());
        assert!(ran.cancelled().now_or_never().is_some());
        assert!(admission.admit(1).now_or_never().is_none());
        // A late order.
        admission.open();
        assert!(admission.admit(1).now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_some());
        tokio::time::timeout(2 * HEARTBEAT_INTERVAL, watch)
            .await
            .unwrap_err();
        admission.resume();
        admission.open();
        let guard = admission.admit(1).now_or_never().expect("admission is open");
        assert!(guard.cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn close_drains_then_cancels_calls() {
        let admission = Admission::new();
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
        tokio::join!(draining, ending);
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        admission.open();
        assert!(admission.admit(3).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_within_drain_time_complete() {
        let admission = Admission::new();
        admission.open();
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
        let ((), cancelled) = tokio::join!(draining, work);
        assert!(!cancelled);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn revocation_cancels_nested_calls() {
        let admission = Admission::new();
        admission.open();
        let draining = admission.close();
        let revocation = draining.revocation();
        // No call is in flight.
        draining.end(Duration::from_secs(2)).await;
        let part = admission.admit_nested(0);
        assert!(part.cancelled().now_or_never().is_none());
        revocation.revoke();
        assert!(part.cancelled().now_or_never().is_some());
        assert!(admission.admit_nested(3).cancelled().now_or_never().is_some());
        admission.open();
        assert!(admission.admit_nested(3).cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn opening_admits_waiting_calls() {
        let admission = Arc::new(Admission::new());
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
