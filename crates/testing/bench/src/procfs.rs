//! CPU time and memory of processes, from `/proc`.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

/// Role of a process in a measured call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// The sidecar or proxy that receives the call.
    Caller,
    /// The sidecar or proxy in front of the app.
    Callee,
    /// The app.
    App,
    /// The load generator.
    Load,
}

impl Role {
    /// Whether it is one of the two measured hops.
    pub(crate) fn is_hop(self) -> bool {
        matches!(self, Self::Caller | Self::Callee)
    }
}

/// CPU time of a process and its children, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Cpu {
    pub(crate) fn total(self) -> f64 {
        self.user + self.system
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            user: (self.user - before.user).max(0.0),
            system: (self.system - before.system).max(0.0),
        }
    }
}

/// Resident memory by role, in bytes.
pub(crate) type Resident = BTreeMap<Role, u64>;

/// The processes of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct Watched(Vec<(Role, u32)>);

impl Watched {
    pub(crate) fn new(processes: Vec<(Role, u32)>) -> Self {
        Self(processes)
    }

    /// The same, with the load generator's process.
    pub(crate) fn with_load(&self, pid: u32) -> Self {
        let mut processes = self.0.clone();
        processes.push((Role::Load, pid));
        Self(processes)
    }

    pub(crate) fn cpu(&self) -> BTreeMap<Role, Cpu> {
        self.0
            .iter()
            .map(|(role, pid)| {
                let total = family(*role, *pid)
                    .into_iter()
                    .filter_map(cpu_of)
                    .fold(Cpu::default(), Cpu::plus);
                (*role, total)
            })
            .collect()
    }

    /// CPU time spent since `before`.
    pub(crate) fn cpu_since(&self, before: &BTreeMap<Role, Cpu>) -> BTreeMap<Role, Cpu> {
        let mut now = self.cpu();
        for (role, cpu) in &mut now {
            *cpu = cpu.since(before.get(role).copied().unwrap_or_default());
        }
        now
    }

    pub(crate) fn resident(&self) -> Resident {
        self.0
            .iter()
            .map(|(role, pid)| (*role, resident_of(&family(*role, *pid))))
            .collect()
    }
}

/// The process and its children, since nginx, for example, works in a child. The load generator's children
/// are excluded: they are the measured processes.
fn family(role: Role, pid: u32) -> Vec<u32> {
    if role == Role::Load {
        return vec![pid];
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut family = vec![pid];
    family.extend(
        children
            .split_whitespace()
            .filter_map(|child| child.parse::<u32>().ok()),
    );
    family
}

fn cpu_of(pid: u32) -> Option<Cpu> {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, ticks)
}

/// Fields 14 and 15 of `/proc/PID/stat`; the second field, a name in parentheses, may contain anything.
fn parse_stat(stat: &str, ticks: f64) -> Option<Cpu> {
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(Cpu {
        user: user / ticks,
        system: system / ticks,
    })
}

/// Shared pages count once, by the kernel's proportional shares.
fn resident_of(family: &[u32]) -> u64 {
    let (file, field) = if family.len() > 1 {
        ("smaps_rollup", "Pss")
    } else {
        ("status", "VmRSS")
    };
    family
        .iter()
        .filter_map(|pid| status_bytes(&fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?, field))
        .sum()
}

fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Properties of the machine for readers of the report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    /// Load average of the last minute before the run.
    pub(crate) load_before: f64,
}

impl Machine {
    pub(crate) fn of_this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")?
                    .split_once(':')
                    .map(|(_, name)| name.trim())
            })
            .unwrap_or(std::env::consts::ARCH);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: status_bytes(&meminfo, "MemTotal").unwrap_or_default(),
            kernel: kernel.trim().to_owned(),
            load_before: load_average(),
        }
    }
}

fn load_average() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Cpu, parse_stat, status_bytes};

    #[test]
    fn parses_cpu_time_after_any_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 250 125 0 0 20 0 4 0 900 0 0";
        let expected = Cpu {
            user: 2.5,
            system: 1.25,
        };
        assert_eq!(parse_stat(stat, 100.0), Some(expected));
        assert_eq!(parse_stat("42 (a", 100.0), None);
    }

    #[test]
    fn converts_memory_to_bytes() {
        assert_eq!(
            status_bytes("Name:\tx\nVmRSS:\t  2048 kB\n", "VmRSS"),
            Some(2 << 20)
        );
        assert_eq!(status_bytes("Name:\tx\n", "VmRSS"), None);
    }
}
