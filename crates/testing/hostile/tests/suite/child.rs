//! Child processes and their resource usage.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server process; killed on drop.
pub struct Server {
    child: Child,
}

/// Memory in KiB, CPU time since the start.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub resident: u64,
    pub peak: u64,
    pub work: Duration,
}

/// Hard and initial soft limit on descriptors: the server must raise the soft limit. Low enough that crowds
/// reach it.
pub const DESCRIPTORS: u64 = 2048;
const AT_FIRST: u64 = 256;

impl Server {
    /// Starts a binary; its log is written to `log`.
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
            // Returns freed memory to the system quickly.
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

    /// Whether it has exited.
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

/// Resource usage of a process; `None` if it has exited.
pub fn usage(id: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Fields are counted after the name, which may contain anything: utime and stime are fields 14 and 15
    // of the line.
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

/// Resets the peak memory of a process.
pub fn forget_peak(id: u32) {
    std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
}

/// Number of open files of a process.
pub fn open_files(id: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    u64::try_from(files.count()).unwrap()
}

/// Sets a process's limit on open files; returns the previous one.
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

/// Raises the limit on open files to the maximum; children inherit it.
pub fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _as_it_was = setrlimit(Resource::Nofile, limit);
}
