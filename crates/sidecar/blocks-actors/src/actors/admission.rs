//! Lets calls begin while the table of placement stands, and ends those that run when it changes. A call takes no lock:
//! it counts itself in the shard of its actor.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

/// Calls of different shards do not meet.
pub(super) const SHARDS: usize = 16;

/// Between two signs of life of this process.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A process that was suspended for longer ends what runs before it does anything else: placement gives its actors to others 3 s
/// after the first ping without an answer.
const MAX_SUSPENSION: Duration = Duration::from_millis(2_500);

/// Whether calls may begin.
pub(super) struct Admission {
    current: ArcSwap<Period>,
    is_open: watch::Sender<bool>,
    heartbeat: Arc<Heartbeat>,
    /// The process was suspended: nothing begins before its actors have ended.
    suspended: watch::Sender<bool>,
}

/// When the process was last seen to go on.
struct Heartbeat {
    made: Instant,
    /// Milliseconds after `made`; 0 while nobody watches.
    last_seen: AtomicU64,
}

impl Heartbeat {
    /// By the clock of the machine, which goes on while the process is suspended.
    fn millis(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the process was suspended until now.
    fn has_stopped(&self) -> bool {
        let last_seen = self.last_seen.load(Ordering::SeqCst);
        last_seen > 0 && u128::from(self.millis().saturating_sub(last_seen)) > MAX_SUSPENSION.as_millis()
    }
}

/// Nobody watches any more.
struct Unwatched<'a>(&'a AtomicU64);

impl Drop for Unwatched<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// The time from one opening of the admission to its closing.
struct Period {
    shards: [CallShard; SHARDS],
    closed: AtomicBool,
    /// How many want calls of some actors to end.
    evicts: AtomicUsize,
    /// A call ended after the admission was closed.
    ended: Notify,
    heartbeat: Arc<Heartbeat>,
}

#[derive(Default)]
struct CallShard {
    calls: AtomicUsize,
    cancelled: AtomicBool,
    /// Calls have to see whether they are to end.
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

/// The right of a call to run; the admission waits for its end.
pub(super) struct InFlight {
    period: Arc<Period>,
    shard: usize,
}

impl InFlight {
    /// Completes when the call has to end, because it held up the others for too long.
    pub(super) async fn cancelled(&self) {
        self.cancelled_or(|| false).await;
    }

    /// Whether [`InFlight::cancelled`] completes at once.
    pub(super) fn is_cancelled(&self) -> bool {
        let shard = &self.period.shards[self.shard];
        shard.cancelled.load(Ordering::SeqCst) || self.period.heartbeat.has_stopped()
    }

    /// Whether calls have to ask if they are to end: there is an [`Evicting`].
    pub(super) fn is_asked(&self) -> bool {
        self.period.evicts.load(Ordering::SeqCst) > 0
    }

    /// As [`InFlight::cancelled`], or when `evicted` says so, which is asked while there is an [`Evicting`].
    pub(super) async fn cancelled_or(&self, evicted: impl Fn() -> bool) {
        let shard = &self.period.shards[self.shard];
        loop {
            let mut look = std::pin::pin!(shard.recheck.notified());
            look.as_mut().enable();
            if self.is_cancelled() || (self.is_asked() && evicted()) {
                return;
            }
            // Whatever else the call waits for may be there when the process goes on.
            let has_stopped = poll_fn(|cx| match self.period.heartbeat.has_stopped() {
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

/// The calls that ran when the admission was closed.
pub(super) struct Draining(Arc<Period>);

impl Draining {
    /// The way to end what runs longer than they do.
    pub(super) fn revocation(&self) -> Revocation {
        Revocation(Arc::clone(&self.0))
    }

    /// Lets them go on for `time`, and ends those that are left.
    pub(super) async fn end(self, time: Duration) {
        let period = self.0;
        if !time.is_zero() && tokio::time::timeout(time, period.empty()).await.is_ok() {
            return;
        }
        period.cancel();
        period.empty().await;
    }
}

/// Calls ask whether they have to end.
pub(super) struct Evicting(Arc<Period>);

impl Drop for Evicting {
    fn drop(&mut self) {
        self.0.evicts.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What belongs to the time before the admission was closed.
pub(super) struct Revocation(Arc<Period>);

impl Revocation {
    /// Ends all of it that runs, and at once what begins in it from now on, as parts of calls and the end of actors do.
    pub(super) fn revoke(&self) {
        self.0.cancel();
    }
}

impl Admission {
    /// An admission that is closed.
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

    /// Sees that the process goes on, for as long as this is polled.
    pub(super) async fn watch(&self) {
        let _unwatched = Unwatched(&self.heartbeat.last_seen);
        loop {
            self.check_suspended();
            let millis = self.heartbeat.millis();
            self.heartbeat.last_seen.store(millis.max(1), Ordering::SeqCst);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// Closes the admission for good where the process was suspended, and ends what runs: whoever comes first notices.
    fn check_suspended(&self) {
        if self.heartbeat.has_stopped() {
            self.suspended.send_replace(true);
            self.close().0.cancel();
        }
    }

    /// Completes when the process is found to have been suspended.
    pub(super) async fn suspended(&self) {
        let mut suspended = self.suspended.subscribe();
        // The sender is there as long as this.
        let _seen = suspended.wait_for(|still| *still).await;
    }

    /// What was here when the process was suspended has ended: the admission may be opened again.
    pub(super) fn resume(&self) {
        self.suspended.send_replace(false);
    }

    /// Waits until calls may begin, and begins one.
    pub(super) async fn admit(&self, shard: usize) -> InFlight {
        loop {
            if let Some(guard) = self.try_admit(shard) {
                return guard;
            }
            let mut opened = self.is_open.subscribe();
            // The admission is there as long as anybody who waits.
            let _gone = opened.wait_for(|open| *open).await;
        }
    }

    /// Begins a call if that may be now.
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

    /// Begins a part of a call that runs already, whether the admission is open or not: what ends that ends this.
    pub(super) fn admit_nested(&self, shard: usize) -> InFlight {
        self.count(shard)
    }

    /// Lets no call begin. What runs is the caller's to end.
    pub(super) fn close(&self) -> Draining {
        let period = self.current.load_full();
        period.closed.store(true, Ordering::SeqCst);
        self.is_open.send_replace(false);
        Draining(period)
    }

    /// Whether calls may begin.
    pub(super) fn is_open(&self) -> bool {
        !self.current.load().closed.load(Ordering::SeqCst)
    }

    /// Makes calls ask whether they have to end, now and as long as this is there.
    pub(super) fn evict(&self) -> Evicting {
        let period = self.current.load_full();
        period.evicts.fetch_add(1, Ordering::SeqCst);
        period
            .shards
            .iter()
            .for_each(|shard| shard.recheck.notify_waiters());
        Evicting(period)
    }

    /// Completes when the admission is closed: what is only watched does not hold up a new table.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_open = self.is_open.subscribe();
        async move {
            // Without an admission nothing is watched either.
            let _closed = is_open.wait_for(|open| !*open).await;
        }
    }

    /// Lets calls begin again behind [`Admission::close`], where nothing was ended.
    pub(super) fn reopen(&self) {
        self.current.load().closed.store(false, Ordering::SeqCst);
        self.is_open.send_replace(true);
        self.stay_closed();
    }

    /// Lets calls begin.
    pub(super) fn open(&self) {
        if self.is_open() {
            return;
        }
        self.current.store(Period::new(false, &self.heartbeat));
        self.is_open.send_replace(true);
        self.stay_closed();
    }

    /// What opens the admission may not know yet that the process was suspended.
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
    async fn what_was_here_when_the_process_stood_still_has_ended() {
        let admission = Admission::new();
        admission.open();
        let ran = admission.admit(0).await;
        let mut watch = std::pin::pin!(admission.watch());
        assert!(watch.as_mut().now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_none());
        let mut ends = std::pin::pin!(ran.cancelled());
        assert!(ends.as_mut().now_or_never().is_none());
        std::thread::sleep(MAX_SUSPENSION + Duration::from_millis(10));
        // Before anybody has looked at the clock.
        assert!(ends.now_or_never().is_some());
        let part = admission.admit_nested(0);
        assert!(part.cancelled().now_or_never().is_some());
        assert!(ran.cancelled().now_or_never().is_some());
        assert!(admission.admit(1).now_or_never().is_none());
        // An order that was on its way.
        admission.open();
        assert!(admission.admit(1).now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_some());
        tokio::time::timeout(2 * HEARTBEAT_INTERVAL, watch)
            .await
            .unwrap_err();
        admission.resume();
        admission.open();
        let guard = admission.admit(1).now_or_never().expect("it goes on");
        assert!(guard.cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_waits_for_what_runs_and_ends_what_takes_too_long() {
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
    async fn what_ends_in_time_is_not_ended() {
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
    async fn behind_the_fence_no_part_of_a_call_goes_on_or_begins() {
        let admission = Admission::new();
        admission.open();
        let draining = admission.close();
        let revocation = draining.revocation();
        // Nothing runs that has to be ended.
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
    async fn who_waits_begins_when_the_gate_opens() {
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
