//! Work that grows with what callers send, kept away from the threads that serve everybody's calls.

use std::sync::{Arc, LazyLock};
#[cfg(feature = "testing")]
use std::task::Poll;

use tokio::sync::Semaphore;

/// Most bytes of content that are worked on where the call is served: what takes less than a millisecond costs more
/// to hand over than to do.
pub const INLINE: usize = 64 << 10;

/// One such work for every second core, as many more wait: the other cores serve calls. Cores belong to the process,
/// so sidecars in one process share them.
static PLACES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(places())));

fn places() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / 2).max(1)
}

/// Does `work` on `size` bytes of content: at once up to [`INLINE`] bytes, else on a thread for blocking work. Needs a
/// Tokio runtime for the latter. A call that is given up while its work runs does not give up the work's place.
///
/// # Panics
/// When `work` does.
pub async fn offload<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if size <= INLINE {
        return work();
    }
    let place = Arc::clone(&PLACES).acquire_owned().await;
    let handed_over = tokio::task::spawn_blocking(move || {
        // The semaphore is never closed; with an error there would be no place to give back.
        let _place = place;
        work()
    });
    match handed_over.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and with it whoever waits here.
            Err(_) => std::future::pending().await,
        },
    }
}

/// For tests: polls `work` once while what is large has to wait, and completes it then. Whether it was done at once, and what
/// it came to.
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
    async fn only_what_is_large_changes_the_thread() {
        let here = thread::current().id();
        let at = async |size| offload(size, || thread::current().id()).await;
        assert_eq!(at(INLINE).await, here);
        assert_ne!(at(INLINE + 1).await, here);
    }

    #[tokio::test]
    async fn there_are_fewer_at_once_than_cores_and_the_others_wait() {
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
    async fn a_panic_reaches_the_caller() {
        offload(usize::MAX, || panic!("broken")).await;
    }
}
