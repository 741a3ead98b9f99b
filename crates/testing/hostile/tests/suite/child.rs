//! A server as a child process, and what it uses.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server; killed when dropped.
pub struct Server {
    child: Child,
}

/// Memory in KiB, work since the start.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub resident: u64,
    pub peak: u64,
    pub work: Duration,
}

/// Descriptors that a server may have, and those it is given at first: it has to ask for the rest. So few that crowds
/// reach the limits.
pub const DESCRIPTORS: u64 = 2048;
const AT_FIRST: u64 = 256;

impl Server {
    /// Starts a binary; its log goes to `log`.
    pub fn start(binary: &str, arguments: &[String], env: &[(&str, String)], log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "ulimit -Sn {AT_FIRST} && ulimit -Hn {DESCRIPTORS} && exec \"$@\""
            ))
            .args(["sh", binary])
            .args(arguments)
            .envs(env.iter().map(|(name, value)| (name, value)))
            // Memory that is free again shows as such soon.
            .env("_RJEM_MALLOC_CONF", "dirty_decay_ms:100,muzzy_decay_ms:0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended, by itself.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _already_over = self.child.kill();
        let _status = self.child.wait();
    }
}

/// What a process uses; `None` when it has ended.
pub fn usage(id: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Behind the name, which may contain anything: utime and stime are fields 14 and 15 of the line.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut ticks = || -> Option<u64> { fields.next()?.parse().ok() };
    let ticks = ticks()? + ticks()?;
    let second = rustix::param::clock_ticks_per_second();
    Some(Usage {
        resident: kib("VmRSS:")?,
        peak: kib("VmHWM:")?,
        work: Duration::from_millis(ticks * 1000 / second),
    })
}

/// Forgets the peak of a process's memory.
pub fn forget_peak(id: u32) {
    std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
}

/// How many files a process has open.
pub fn open_files(id: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    u64::try_from(files.count()).unwrap()
}

/// Lets a process open this many files; returns how many it was allowed before.
pub fn limit_files(id: u32, files: Option<u64>) -> Option<u64> {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_raw(i32::try_from(id).unwrap());
    let maximum = Some(DESCRIPTORS);
    let limit = Rlimit {
        current: files,
        maximum,
    };
    prlimit(pid, Resource::Nofile, limit).unwrap().current
}

/// As many open files as the system allows; children inherit it.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}
