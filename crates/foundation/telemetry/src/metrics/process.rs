//! `process_*` families, read from `/proc` at each scrape. Absent on systems without `/proc`.

use super::cell::Sample;
use super::encode::{self, Format};

/// Clock ticks per second in `/proc`, equal on all common Linux architectures.
const TICKS: f64 = 100.0;

/// Appends the `process_*` families.
pub fn process_families(format: Format, out: &mut String) {
    let mut put = |name: &str, help: &str, kind: &str, value: Option<f64>| {
        if let Some(value) = value {
            encode::header(format, out, name, help, kind);
            encode::sample(format, out, name, "", &Sample::Number(value));
        }
    };
    let stat = Stat::read();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |key| line_number(&status, key).map(|kib| kib * 1024.0);
    let cpu = stat.as_ref().map(|s| s.cpu_seconds);
    put(
        "process_cpu_seconds_total",
        "CPU time used, in seconds.",
        "counter",
        cpu,
    );
    put(
        "process_max_fds",
        "Most file descriptors allowed.",
        "gauge",
        max_fds(),
    );
    put("process_open_fds", "File descriptors open.", "gauge", open_fds());
    put(
        "process_resident_memory_bytes",
        "Resident memory.",
        "gauge",
        kib("VmRSS:"),
    );
    let start = stat.as_ref().and_then(Stat::start_seconds);
    put(
        "process_start_time_seconds",
        "Start time, in seconds since 1970.",
        "gauge",
        start,
    );
    put(
        "process_virtual_memory_bytes",
        "Virtual memory.",
        "gauge",
        kib("VmSize:"),
    );
}

struct Stat {
    cpu_seconds: f64,
    start_ticks: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The command name in parentheses may contain spaces.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // Fields are numbered from 3, the state.
        let field = |n: usize| fields.get(n - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            start_ticks: field(22)?,
        })
    }

    fn start_seconds(&self) -> Option<f64> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        Some(line_number(&text, "btime")? + self.start_ticks / TICKS)
    }
}

/// The first number of the line that starts with `key`.
fn line_number(text: &str, key: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn open_fds() -> Option<f64> {
    // The directory being read is itself open.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as f64)
}

fn max_fds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    line_number(&text, "Max open files")
}
