//! Places at which a test kills the process: between every two steps of a write, and between an answer of an app and its
//! way to the store. A release build has none of this.

/// Names the place that is the last one of this process: 1 for the first that it comes to, 2 for the next.
#[cfg(debug_assertions)]
const VARIABLE: &str = "OUTRIGGER_SCHEDULER_FAULT";

/// One of these places. It is named in what the process says last.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    use std::io::Write as _;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    // Of the process, which ends with it.
    static LEFT: LazyLock<Option<AtomicUsize>> = LazyLock::new(|| {
        let given = std::env::var(VARIABLE).ok()?;
        Some(AtomicUsize::new(given.parse().ok()?))
    });
    let Some(left) = &*LEFT else { return };
    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
        // Nobody may listen.
        let _ = writeln!(std::io::stderr(), "fault point: {name}");
        // As if from outside: nothing is flushed, and nothing cleaned up.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_: &str) {}
