//! Lets calls begin while the table of placement stands, and ends those that run when it changes. A call takes no lock:
//! it counts itself in the lane of its actor.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

/// Calls of different lanes do not meet.
pub(super) const LANES: usize = 16;

/// Between two signs of life of this process.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A process that was suspended for longer ends what runs before it does anything else: placement gives its actors to others 3 s
/// after the first ping without an answer.
const MAX_SUSPENSION: Duration = Duration::from_millis(2_500);

/// Whether calls may begin.
pub(super) struct Gate {
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

/// The time from one opening of the gate to its closing.
struct Period {
    lanes: [Lane; LANES],
    closed: AtomicBool,
    /// How many want calls of some actors to end.
    evicts: AtomicUsize,
    /// A call ended after the gate was closed.
    ended: Notify,
    heartbeat: Arc<Heartbeat>,
}

#[derive(Default)]
struct Lane {
    calls: AtomicUsize,
    cancelled: AtomicBool,
    /// Calls have to see whether they are to end.
    look: Notify,
}

impl Period {
    fn new(closed: bool, heartbeat: &Arc<Heartbeat>) -> Arc<Self> {
        Arc::new(Self {
            lanes: Default::default(),
            closed: AtomicBool::new(closed),
            evicts: AtomicUsize::new(0),
            ended: Notify::new(),
            heartbeat: Arc::clone(heartbeat),
        })
    }

    fn calls(&self) -> usize {
        self.lanes
            .iter()
            .map(|lane| lane.calls.load(Ordering::SeqCst))
            .sum()
    }

    fn cancel(&self) {
        for lane in &self.lanes {
            lane.cancelled.store(true, Ordering::SeqCst);
            lane.look.notify_waiters();
        }
    }

    async fn empty(&self) {
        while self.calls() > 0 {
            self.ended.notified().await;
        }
    }
}

/// The right of a call to run; the gate waits for its end.
pub(super) struct Claim {
    period: Arc<Period>,
    lane: usize,
}

impl Claim {
    /// Completes when the call has to end, because it held up the others for too long.
    pub(super) async fn cancelled(&self) {
        self.cancelled_or(|| false).await;
    }

    /// Whether [`Claim::cancelled`] completes at once.
    pub(super) fn is_cancelled(&self) -> bool {
        let lane = &self.period.lanes[self.lane];
        lane.cancelled.load(Ordering::SeqCst) || self.period.heartbeat.has_stopped()
    }

    /// Whether calls have to ask if they are to end: there is an [`Evicting`].
    pub(super) fn is_asked(&self) -> bool {
        self.period.evicts.load(Ordering::SeqCst) > 0
    }

    /// As [`Claim::cancelled`], or when `evicted` says so, which is asked while there is an [`Evicting`].
    pub(super) async fn cancelled_or(&self, evicted: impl Fn() -> bool) {
        let lane = &self.period.lanes[self.lane];
        loop {
            let mut look = std::pin::pin!(lane.look.notified());
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

impl Drop for Claim {
    fn drop(&mut self) {
        self.period.lanes[self.lane].calls.fetch_sub(1, Ordering::SeqCst);
        if self.period.closed.load(Ordering::SeqCst) {
            self.period.ended.notify_one();
        }
    }
}

/// The calls that ran when the gate was closed.
pub(super) struct Draining(Arc<Period>);

impl Draining {
    /// The way to end what runs longer than they do.
    pub(super) fn fence(&self) -> Fence {
        Fence(Arc::clone(&self.0))
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

/// What belongs to the time before the gate was closed.
pub(super) struct Fence(Arc<Period>);

impl Fence {
    /// Ends all of it that runs, and at once what begins in it from now on, as parts of calls and the end of actors do.
    pub(super) fn cut(&self) {
        self.0.cancel();
    }
}

impl Gate {
    /// A gate that is closed.
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
            self.look();
            let millis = self.heartbeat.millis();
            self.heartbeat.last_seen.store(millis.max(1), Ordering::SeqCst);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// Closes the gate for good where the process was suspended, and ends what runs: whoever comes first notices.
    fn look(&self) {
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

    /// What was here when the process was suspended has ended: the gate may be opened again.
    pub(super) fn goes_on(&self) {
        self.suspended.send_replace(false);
    }

    /// Waits until calls may begin, and begins one.
    pub(super) async fn enter(&self, lane: usize) -> Claim {
        loop {
            if let Some(claim) = self.try_enter(lane) {
                return claim;
            }
            let mut opened = self.is_open.subscribe();
            // The gate is there as long as anybody who waits.
            let _gone = opened.wait_for(|open| *open).await;
        }
    }

    /// Begins a call if that may be now.
    pub(super) fn try_enter(&self, lane: usize) -> Option<Claim> {
        let claim = self.count(lane);
        (!claim.period.closed.load(Ordering::SeqCst)).then_some(claim)
    }

    fn count(&self, lane: usize) -> Claim {
        self.look();
        let period = self.current.load_full();
        let lane = lane % LANES;
        period.lanes[lane].calls.fetch_add(1, Ordering::SeqCst);
        Claim { period, lane }
    }

    /// Begins a part of a call that runs already, whether the gate is open or not: what ends that ends this.
    pub(super) fn enter_within(&self, lane: usize) -> Claim {
        self.count(lane)
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
        period.lanes.iter().for_each(|lane| lane.look.notify_waiters());
        Evicting(period)
    }

    /// Completes when the gate is closed: what is only watched does not hold up a new table.
    pub(super) fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut is_open = self.is_open.subscribe();
        async move {
            // Without a gate nothing is watched either.
            let _closed = is_open.wait_for(|open| !*open).await;
        }
    }

    /// Lets calls begin again behind [`Gate::close`], where nothing was ended.
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

    /// What opens the gate may not know yet that the process was suspended.
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
        let gate = Gate::new();
        gate.open();
        let ran = gate.enter(0).await;
        let mut watch = std::pin::pin!(gate.watch());
        assert!(watch.as_mut().now_or_never().is_none());
        assert!(gate.suspended().now_or_never().is_none());
        let mut ends = std::pin::pin!(ran.cancelled());
        assert!(ends.as_mut().now_or_never().is_none());
        std::thread::sleep(MAX_SUSPENSION + Duration::from_millis(10));
        // Before anybody has looked at the clock.
        assert!(ends.now_or_never().is_some());
        let part = gate.enter_within(0);
        assert!(part.cancelled().now_or_never().is_some());
        assert!(ran.cancelled().now_or_never().is_some());
        assert!(gate.enter(1).now_or_never().is_none());
        // An order that was on its way.
        gate.open();
        assert!(gate.enter(1).now_or_never().is_none());
        assert!(gate.suspended().now_or_never().is_some());
        tokio::time::timeout(2 * HEARTBEAT_INTERVAL, watch)
            .await
            .unwrap_err();
        gate.goes_on();
        gate.open();
        let claim = gate.enter(1).now_or_never().expect("it goes on");
        assert!(claim.cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_gate_waits_for_what_runs_and_ends_what_takes_too_long() {
        let gate = Gate::new();
        assert!(gate.enter(0).now_or_never().is_none());
        gate.open();
        let (short, long) = (gate.enter(0).await, gate.enter(17).await);
        let mut draining = std::pin::pin!(gate.close().end(Duration::from_secs(2)));
        assert!(gate.enter(3).now_or_never().is_none());
        assert!(draining.as_mut().now_or_never().is_none());
        drop(short);
        let began = tokio::time::Instant::now();
        let ending = async {
            long.cancelled().await;
            drop(long);
        };
        tokio::join!(draining, ending);
        assert_eq!(began.elapsed(), Duration::from_secs(2));
        gate.open();
        assert!(gate.enter(3).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_not_ended() {
        let gate = Gate::new();
        gate.open();
        let claim = gate.enter(0).await;
        let draining = gate.close().end(Duration::from_secs(2));
        let work = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let part = gate.enter_within(0);
            let cancelled = part.cancelled().now_or_never().is_some();
            drop((part, claim));
            cancelled
        };
        let began = tokio::time::Instant::now();
        let ((), cancelled) = tokio::join!(draining, work);
        assert!(!cancelled);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn behind_the_fence_no_part_of_a_call_goes_on_or_begins() {
        let gate = Gate::new();
        gate.open();
        let draining = gate.close();
        let fence = draining.fence();
        // Nothing runs that has to be ended.
        draining.end(Duration::from_secs(2)).await;
        let part = gate.enter_within(0);
        assert!(part.cancelled().now_or_never().is_none());
        fence.cut();
        assert!(part.cancelled().now_or_never().is_some());
        assert!(gate.enter_within(3).cancelled().now_or_never().is_some());
        gate.open();
        assert!(gate.enter_within(3).cancelled().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_begins_when_the_gate_opens() {
        let gate = Arc::new(Gate::new());
        let waiting = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { drop(gate.enter(1).await) }
        });
        tokio::task::yield_now().await;
        gate.open();
        waiting.await.unwrap();
        gate.close().end(Duration::ZERO).await;
    }
}
