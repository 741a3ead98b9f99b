//! Places at which a test kills the process: between every two steps of a write, and between an answer of an app and its
//! way to the store. A release build has none of this.

/// `NAME#2`: the second time that the process comes to the place NAME is its end. `list`: it names each place that it comes to.
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

/// One of these places. It is named in what the process says last.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    use std::io::Write as _;
    use std::sync::LazyLock;
    use std::sync::atomic::Ordering;

    // Of the process, which ends with it.
    static PLAN: LazyLock<Option<Plan>> = LazyLock::new(|| Plan::read(&std::env::var(VARIABLE).ok()?));
    let Some(plan) = &*PLAN else { return };
    if let Plan::End { name: wanted, left } = plan
        && (wanted != name || left.fetch_sub(1, Ordering::Relaxed) != 1)
    {
        return;
    }
    // Nobody may listen.
    let _ = writeln!(std::io::stderr(), "fault point: {name}");
    if matches!(plan, Plan::List) {
        return;
    }
    // As if from outside: nothing is flushed, and nothing cleaned up.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[cfg(not(debug_assertions))]
#[inline(always)]
pub(crate) fn point(_: &str) {}
