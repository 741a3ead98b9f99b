//! The memory that a process gives to what others make it hold: calls in flight, and payloads that wait in it.
//!
//! It follows from the memory that the process may have, or from one variable of the environment. Each use counts for itself.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

pub use outrigger_http2::{OpenStreams, SharedLimit, TOO_MANY_CALLS};
use tokio::sync::Notify;

/// The variable that sets the budget.
pub const VARIABLE: &str = "OUTRIGGER_MEMORY_BUDGET";
/// The part of the memory of the process, one in so many.
const BUDGET_PART: usize = 8;
/// The largest budget, unless the variable says otherwise.
const MAX_BUDGET: usize = 512 << 20;
/// The smallest.
const MIN_BUDGET: usize = 64 << 20;
/// What a call in flight takes, bytes, as far as no other limit counts it: its stream, its task, the fields of its request.
const CALL: usize = 16 << 10;

static BUDGET: OnceLock<usize> = OnceLock::new();

/// The calls in flight on all HTTP/2 connections of the process, streams included. The limit is half of those that fit into the
/// budget: beyond it, connections share the other half.
pub static CALLS: LazyLock<SharedLimit> = LazyLock::new(|| SharedLimit::new(memory_budget() / CALL / 2));

/// The budget that [`VARIABLE`] asks for, in bytes. `quantity` reads sizes such as `256Mi`.
///
/// # Errors
/// A value that is no size, or is below the smallest; the text does not name the variable.
pub fn read<E>(
    env: impl Fn(&str) -> Option<String>,
    quantity: impl Fn(&str) -> Result<i64, E>,
) -> Result<Option<usize>, String> {
    let Some(text) = env(VARIABLE).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let bytes = quantity(&text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.filter(|bytes| *bytes >= MIN_BUDGET);
    let wanted = || {
        let least = MIN_BUDGET >> 20;
        format!("\"{text}\" is not a size of at least {least}Mi")
    };
    bytes.map(Some).ok_or_else(wanted)
}

/// Sets the budget of this process, before anything is served. The first call counts.
pub fn set_memory_budget(bytes: usize) {
    BUDGET.get_or_init(|| bytes);
}

/// Bytes for calls in flight, and as many for payloads that wait.
pub fn memory_budget() -> usize {
    *BUDGET.get_or_init(|| (memory() / BUDGET_PART).clamp(MIN_BUDGET, MAX_BUDGET))
}

/// Bytes of memory that the process may have: what its machine has, or less where its cgroups say so.
fn memory() -> usize {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_limit(Path::new("/sys/fs/cgroup"), &cgroup);
    total
        .map_or(usize::MAX, |total| total.saturating_mul(1024))
        .min(limit.unwrap_or(usize::MAX))
}

/// The least limit of a process's groups, which `own` names as `/proc/self/cgroup` does.
fn cgroup_limit(root: &Path, own: &str) -> Option<usize> {
    let limit = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    let group = own.lines().find_map(|line| line.strip_prefix("0::"));
    let group = root.join(group.unwrap_or_default().trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    groups
        .filter_map(|group| limit(group.join("memory.max")))
        // Of the first version of cgroups.
        .chain(limit(root.join("memory/memory.limit_in_bytes")))
        .min()
}

/// Payloads of one kind that wait in the process, counted in bytes.
#[derive(Debug)]
pub struct Payloads {
    most: usize,
    held: AtomicUsize,
    freed: Notify,
}

/// A payload that waits, until this is dropped.
#[derive(Debug)]
pub struct HeldPayload {
    payloads: Arc<Payloads>,
    bytes: usize,
}

impl Payloads {
    /// None yet; one part of the budget in so many may be held.
    pub fn part(of: usize) -> Arc<Self> {
        Self::up_to(memory_budget() / of)
    }

    /// None yet; so many bytes may be held.
    pub fn up_to(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            held: AtomicUsize::new(0),
            freed: Notify::new(),
        })
    }

    /// Bytes that may be held.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Holds a payload that is here already, whether there is room or not.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> HeldPayload {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        HeldPayload {
            payloads: Arc::clone(self),
            bytes,
        }
    }

    /// Holds a payload of any size while fewer bytes are held than may be: the last one may exceed them. A large payload does
    /// not starve behind small ones.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Option<HeldPayload> {
        let mut held = self.hold(0);
        held.try_replace(bytes).then_some(held)
    }

    /// Whether fewer bytes are held than may be.
    pub fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.most
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }
}

impl HeldPayload {
    /// Holds so many bytes in place of its own, as [`Payloads::try_hold`] does. False: it holds what it held.
    #[must_use]
    pub fn try_replace(&mut self, bytes: usize) -> bool {
        let Payloads { most, held, .. } = &*self.payloads;
        let replaced = |held: usize| {
            let others = held - self.bytes;
            (bytes <= self.bytes || others < *most).then(|| others.saturating_add(bytes))
        };
        if held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, replaced)
            .is_err()
        {
            return false;
        }
        if bytes < std::mem::replace(&mut self.bytes, bytes) {
            self.payloads.freed.notify_waiters();
        }
        true
    }
}

impl Drop for HeldPayload {
    fn drop(&mut self) {
        self.payloads.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.payloads.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lowest_cgroup_limit_applies() {
        let root = tempfile::tempdir().unwrap();
        let pod = root.path().join("pods/a");
        std::fs::create_dir_all(&pod).unwrap();
        let write = |group: &str, limit: &str| {
            std::fs::write(root.path().join(group).join("memory.max"), limit).unwrap();
        };
        assert_eq!(cgroup_limit(root.path(), "0::/pods/a\n"), None);
        write("pods/a", "max\n");
        write("pods", "1000\n");
        assert_eq!(cgroup_limit(root.path(), "0::/pods/a\n"), Some(1000));
        write("pods/a", "500\n");
        assert_eq!(cgroup_limit(root.path(), "0::/pods/a\n"), Some(500));
        assert_eq!(cgroup_limit(root.path(), "0::/\n"), None);
    }

    #[test]
    fn rejects_invalid_budget() {
        let number = |text: &str| text.parse::<i64>();
        for wrong in ["much", "-1", "1024"] {
            let refused = read(|_| Some(wrong.to_owned()), number).unwrap_err();
            assert!(refused.contains(wrong), "{refused}");
        }
        assert_eq!(read(|_| None, number), Ok(None));
        assert_eq!(read(|_| Some(String::new()), number), Ok(None));
        assert_eq!(read(|_| Some((1 << 30).to_string()), number), Ok(Some(1 << 30)));
        assert!((MIN_BUDGET..=MAX_BUDGET).contains(&memory_budget()));
    }

    #[tokio::test(start_paused = true)]
    async fn payloads_wait_for_room() {
        let payloads = Payloads::up_to(100);
        let large = payloads.try_hold(300).unwrap();
        assert!(payloads.try_hold(1).is_none() && !payloads.has_room());
        let freed = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(large);
        };
        tokio::join!(payloads.room(), freed);
        let held = payloads.try_hold(60).unwrap();
        let rest = payloads.try_hold(41).unwrap();
        assert!(!payloads.has_room() && payloads.try_hold(1).is_none());
        drop((held, rest));
        assert_eq!(payloads.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn replacing_payload_counts_difference() {
        let payloads = Payloads::up_to(100);
        let mut first = payloads.try_hold(60).unwrap();
        let mut second = payloads.try_hold(60).unwrap();
        assert!(payloads.try_hold(1).is_none());
        assert!(first.try_replace(70) && second.try_replace(40));
        assert_eq!(payloads.held.load(Ordering::Relaxed), 110);
        let _third = payloads.hold(60);
        assert!(!first.try_replace(71), "the others leave no room");
        assert!(first.try_replace(10));
        drop((first, second));
        assert_eq!(payloads.held.load(Ordering::Relaxed), 60);
    }
}
