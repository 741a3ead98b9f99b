//! The admissions of all actor types, and the heartbeat of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::type_admission::{Draining, TypeAdmission};

/// Interval of the process heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A process that was suspended for longer cancels all calls first: placement reassigns its actors 3 s after
/// the first unanswered ping.
const MAX_SUSPENSION: Duration = Duration::from_millis(2_500);

/// Admits or rejects calls of all types.
pub(super) struct Admission {
    types: Mutex<TypeAdmissions>,
    /// For types that this sidecar does not host. Their calls are not drained when a table changes.
    pub(super) common: Arc<TypeAdmission>,
    heartbeat: Arc<Heartbeat>,
}

#[derive(Default)]
struct TypeAdmissions {
    is_open: bool,
    /// By type.
    of: HashMap<Arc<str>, Weak<TypeAdmission>>,
}

/// Detects a suspension of the process.
pub(super) struct Heartbeat {
    made: Instant,
    /// Milliseconds after `made`; 0 while [`Admission::watch`] is not running.
    last_seen: AtomicU64,
    /// The process was suspended: no call starts before its actors have ended.
    suspended: watch::Sender<bool>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self {
            made: Instant::now(),
            last_seen: AtomicU64::new(0),
            suspended: watch::channel(false).0,
        }
    }
}

impl Heartbeat {
    /// By the machine's clock, which continues while the process is suspended.
    fn millis(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the process has just been suspended.
    pub(super) fn was_suspended(&self) -> bool {
        let last_seen = self.last_seen.load(Ordering::SeqCst);
        last_seen > 0 && u128::from(self.millis().saturating_sub(last_seen)) > MAX_SUSPENSION.as_millis()
    }

    /// Keeps admissions closed until [`Admission::resume`].
    pub(super) fn suspend(&self) {
        self.suspended.send_replace(true);
    }

    /// Whether admissions must stay closed.
    pub(super) fn is_suspended(&self) -> bool {
        *self.suspended.borrow()
    }
}

/// Stops the heartbeat check when dropped.
struct Unwatched<'a>(&'a AtomicU64);

impl Drop for Unwatched<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl Admission {
    /// Closed until [`Admission::open`].
    pub(super) fn new() -> Self {
        let heartbeat = Arc::<Heartbeat>::default();
        Self {
            types: Mutex::default(),
            common: Arc::new(TypeAdmission::new(false, true, Arc::clone(&heartbeat))),
            heartbeat,
        }
    }

    fn types(&self) -> MutexGuard<'_, TypeAdmissions> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The admission of a hosted type; one for each name.
    pub(super) fn of_type(&self, kind: &Arc<str>) -> Arc<TypeAdmission> {
        let mut types = self.types();
        if let Some(admission) = types.of.get(kind).and_then(Weak::upgrade) {
            return admission;
        }
        types.of.retain(|_, admission| admission.strong_count() > 0);
        let admission = Arc::new(TypeAdmission::new(
            types.is_open,
            false,
            Arc::clone(&self.heartbeat),
        ));
        types.of.insert(Arc::clone(kind), Arc::downgrade(&admission));
        admission
    }

    /// Changes the state of all types.
    fn all(&self, is_open: bool, mut change: impl FnMut(&TypeAdmission)) {
        let mut types = self.types();
        types.is_open = is_open;
        change(&self.common);
        types
            .of
            .values()
            .filter_map(Weak::upgrade)
            .for_each(|admission| change(&admission));
    }

    /// Runs the heartbeat while polled.
    pub(super) async fn watch(&self) {
        let _unwatched = Unwatched(&self.heartbeat.last_seen);
        loop {
            if self.heartbeat.was_suspended() {
                self.heartbeat.suspend();
                self.close().cancel();
            }
            let millis = self.heartbeat.millis();
            self.heartbeat.last_seen.store(millis.max(1), Ordering::SeqCst);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// Completes when a suspension of the process is detected.
    pub(super) async fn suspended(&self) {
        let mut suspended = self.heartbeat.suspended.subscribe();
        // `self` owns the sender.
        let _seen = suspended.wait_for(|still| *still).await;
    }

    /// Allows opening again: everything from before the suspension has ended.
    pub(super) fn resume(&self) {
        self.heartbeat.suspended.send_replace(false);
    }

    /// Stops admission; the caller drains the calls in flight.
    pub(super) fn close(&self) -> Draining {
        let mut draining = Draining::default();
        self.all(false, |admission| draining.join(admission.close()));
        draining
    }

    /// Whether calls are admitted, of types whose admissions are not closed.
    pub(super) fn is_open(&self) -> bool {
        self.common.is_open()
    }

    /// Undoes [`Admission::close`] if no call was cancelled.
    pub(super) fn reopen(&self) {
        self.all(true, TypeAdmission::reopen);
    }

    /// Admits calls of all types.
    pub(super) fn open(&self) {
        self.all(true, TypeAdmission::open);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn suspension_cancels_all_calls() {
        let admission = Admission::new();
        let one_type = admission.of_type(&"t".into());
        admission.open();
        let ran = one_type.admit(0).await;
        let mut watch = std::pin::pin!(admission.watch());
        assert!(watch.as_mut().now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_none());
        let mut ends = std::pin::pin!(ran.cancelled());
        assert!(ends.as_mut().now_or_never().is_none());
        std::thread::sleep(MAX_SUSPENSION + Duration::from_millis(10));
        // Before the heartbeat has noticed.
        assert!(ends.now_or_never().is_some());
        let part = one_type.admit_nested(0);
        assert!(part.cancelled().now_or_never().is_some());
        assert!(ran.cancelled().now_or_never().is_some());
        assert!(one_type.admit(1).now_or_never().is_none());
        // A late order.
        admission.open();
        assert!(one_type.admit(1).now_or_never().is_none());
        assert!(admission.suspended().now_or_never().is_some());
        tokio::time::timeout(2 * HEARTBEAT_INTERVAL, watch)
            .await
            .unwrap_err();
        assert!(!admission.is_open());
        admission.resume();
        admission.open();
        let guard = one_type.admit(1).now_or_never().expect("admission is open");
        assert!(guard.cancelled().now_or_never().is_none());
    }

    #[test]
    fn closes_all_types() {
        let admission = Admission::new();
        admission.open();
        let [one, other] = ["t", "u"].map(|kind| admission.of_type(&kind.into()));
        assert!(Arc::ptr_eq(&one, &admission.of_type(&"t".into())));
        one.close();
        assert!(!one.is_open() && other.is_open() && admission.is_open());
        admission.open();
        assert!(one.is_open());
        admission.close();
        let late = admission.of_type(&"v".into());
        assert!(
            ![&one, &other, &late, &admission.common]
                .iter()
                .any(|one_type| one_type.is_open())
        );
        admission.reopen();
        assert!(
            [&one, &other, &late, &admission.common]
                .iter()
                .all(|one_type| one_type.is_open())
        );
    }
}
