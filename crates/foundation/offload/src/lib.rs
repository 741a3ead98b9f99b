//! Moves CPU-heavy work off the threads that serve calls.

use std::sync::{Arc, LazyLock};
#[cfg(feature = "testing")]
use std::task::Poll;

use tokio::sync::Semaphore;

/// Maximum size that is processed in place, bytes: handing over work of less than a millisecond costs more
/// than doing it.
pub const INLINE: usize = 64 << 10;

/// One permit per two cores, so that the other cores serve calls. Sidecars in one process share it, because
/// they share the cores.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(places())));

fn places() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// Runs `work` on `size` bytes of content: in place up to [`INLINE`], otherwise on a blocking thread of the
/// Tokio runtime. If the call is cancelled, `work` keeps its permit until it ends.
///
/// # Panics
/// If `work` panics.
pub async fn offload<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if size <= INLINE {
        return work();
    }
    let place = Arc::clone(&PLACES).acquire_owned().await;
    let blocking = tokio::task::spawn_blocking(move || {
        // The semaphore is never closed, so this is always a permit.
        let _place = place;
        work()
    });
    match blocking.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down and drops this future.
            Err(_) => std::future::pending().await,
        },
    }
}

/// For tests: polls `work` once while no permit is free, then completes it. Returns whether the first poll
/// finished, and the result.
#[cfg(feature = "testing")]
pub async fn done_at_once<T>(work: impl Future<Output = T>) -> (bool, T) {
    let mut work = std::pin::pin!(work);
    let all = u32::try_from(places()).unwrap_or(u32::MAX);
    let places = PLACES.acquire_many(all).await;
    let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
    drop(places);
    match first {
        Poll::Ready(done) => (true, done),
        Poll::Pending => (false, work.await),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn offloads_only_large_work() {
        let here = thread::current().id();
        let at = async |size| offload(size, || thread::current().id()).await;
        assert_eq!(at(INLINE).await, here);
        assert_ne!(at(INLINE + 1).await, here);
    }

    #[tokio::test]
    async fn concurrency_is_below_cores() {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let works = (0..64).map(|_| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            offload(usize::MAX, move || {
                let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(running, Ordering::SeqCst);
                thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
            })
        });
        futures::future::join_all(works).await;
        let cores = thread::available_parallelism().unwrap().get();
        let most = most.load(Ordering::SeqCst);
        assert!((1..=(cores / 2).max(1)).contains(&most), "{most} of {cores}");
    }

    #[tokio::test]
    #[should_panic(expected = "broken")]
    async fn propagates_panic() {
        offload(usize::MAX, || panic!("broken")).await;
    }
}
