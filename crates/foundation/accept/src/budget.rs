//! The memory budget of a process for load caused by others: calls in flight and waiting payloads.
//!
//! It follows from the memory available to the process, or from one environment variable. Each use is
//! limited separately.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

pub use outrigger_http2::{OpenStreams, SharedLimit, TOO_MANY_CALLS};
use tokio::sync::Notify;

/// The variable that sets the budget.
pub const VARIABLE: &str = "OUTRIGGER_MEMORY_BUDGET";
/// Divisor: the budget is one part in this many of the available memory.
const BUDGET_PART: usize = 8;
/// Maximum budget, unless the variable is set.
const MAX_BUDGET: usize = 512 << 20;
/// Minimum budget.
const MIN_BUDGET: usize = 64 << 20;
/// Bytes per call in flight that no other limit counts: its stream, its task, the fields of its request.
const CALL: usize = 16 << 10;

static BUDGET: OnceLock<usize> = OnceLock::new();

/// The calls in flight on all HTTP/2 connections of the process, including streams. The limit is half of
/// what fits into the budget; above it, connections share the other half.
pub static CALLS: LazyLock<SharedLimit> = LazyLock::new(|| SharedLimit::new(memory_budget() / CALL / 2));

/// The budget in [`VARIABLE`], in bytes. `quantity` parses sizes such as `256Mi`.
///
/// # Errors
/// If the value is not a size, or below the minimum. The text does not name the variable.
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

/// Sets the budget of this process; call before serving. Later calls have no effect.
pub fn set_memory_budget(bytes: usize) {
    BUDGET.get_or_init(|| bytes);
}

/// Bytes for calls in flight, and the same again for waiting payloads.
pub fn memory_budget() -> usize {
    *BUDGET.get_or_init(|| (memory() / BUDGET_PART).clamp(MIN_BUDGET, MAX_BUDGET))
}

/// Memory available to the process in bytes: the machine's, or a lower cgroup limit.
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

/// The lowest limit of a process's cgroups, which `own` lists in the format of `/proc/self/cgroup`.
fn cgroup_limit(root: &Path, own: &str) -> Option<usize> {
    let limit = |file: PathBuf| std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok();
    let group = own.lines().find_map(|line| line.strip_prefix("0::"));
    let group = root.join(group.unwrap_or_default().trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(root));
    groups
        .filter_map(|group| limit(group.join("memory.max")))
        // cgroups v1.
        .chain(limit(root.join("memory/memory.limit_in_bytes")))
        .min()
}

/// Waiting payloads of one kind, counted in bytes.
#[derive(Debug)]
pub struct Payloads {
    most: usize,
    held: AtomicUsize,
    freed: Notify,
}

/// A waiting payload; releases its bytes on drop.
#[derive(Debug)]
pub struct HeldPayload {
    payloads: Arc<Payloads>,
    bytes: usize,
}

impl Payloads {
    /// Empty, limited to one part in `of` of the budget.
    pub fn part(of: usize) -> Arc<Self> {
        Self::up_to(memory_budget() / of)
    }

    /// Empty, limited to `most` bytes.
    pub fn up_to(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            held: AtomicUsize::new(0),
            freed: Notify::new(),
        })
    }

    /// The limit in bytes.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Counts a payload that is already in memory, regardless of the limit.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> HeldPayload {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        HeldPayload {
            payloads: Arc::clone(self),
            bytes,
        }
    }

    /// Counts a payload of any size while the held bytes are below the limit, which the last one may
    /// exceed. Large payloads thus do not starve behind small ones.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Option<HeldPayload> {
        let mut held = self.hold(0);
        held.try_replace(bytes).then_some(held)
    }

    /// Whether the held bytes are below the limit.
    pub fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.most
    }

    /// Waits for room.
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
    /// Replaces its bytes, with the limit of [`Payloads::try_hold`]. If false, nothing changed.
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
