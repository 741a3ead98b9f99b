//! Points at which a test kills the process: between any two steps of a write, and between an app's answer
//! and its write to the store. Compiled out in release builds.

/// `NAME#2` kills the process when it reaches point NAME for the second time. `list` prints the name of each
/// point reached.
#[cfg(debug_assertions)]
const VARIABLE: &str = "OUTRIGGER_SCHEDULER_FAULT";

#[cfg(debug_assertions)]
enum Plan {
    List,
    End {
        name: String,
        left: std::sync::atomic::AtomicUsize,
    },
}

#[cfg(debug_assertions)]
impl Plan {
    fn read(text: &str) -> Option<Self> {
        if text == "list" {
            return Some(Self::List);
        }
        let (name, time) = text.rsplit_once('#')?;
        Some(Self::End {
            name: name.to_owned(),
            left: time.parse::<usize>().ok()?.into(),
        })
    }
}

/// A fault point. The process prints its name before it is killed.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    use std::io::Write as _;
    use std::sync::LazyLock;
    use std::sync::atomic::Ordering;

    static PLAN: LazyLock<Option<Plan>> = LazyLock::new(|| Plan::read(&std::env::var(VARIABLE).ok()?));
    let Some(plan) = &*PLAN else { return };
    if let Plan::End { name: wanted, left } = plan
        && (wanted != name || left.fetch_sub(1, Ordering::Relaxed) != 1)
    {
        return;
    }
    let _ = writeln!(std::io::stderr(), "fault point: {name}");
    if matches!(plan, Plan::List) {
        return;
    }
    // SIGKILL, so that nothing is flushed or cleaned up.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_: &str) {}
