//! Files named by users must be read through `crates/foundation/files`: a path can lead to a pipe without a
//! writer, or to an endless file.

use super::{crates, released, sources};

/// Calls that read any kind of file without a limit on size or time.
const READS: &[&str] = &["fs::read(", "fs::read_to_string(", "File::open("];
/// Allowed exceptions with reasons.
const ALLOWED: &[(&str, &str)] = &[
    ("foundation/accept/src/budget.rs", "/proc and /sys"),
    ("components/pluggable/src/discovery.rs", "/proc"),
    ("foundation/identity/src/security.rs", "/proc"),
    (
        "foundation/kube/src/domain.rs",
        "/etc/resolv.conf, of limited size",
    ),
    (
        "control-plane/scheduler/src/etcd_child.rs",
        "files that it wrote itself",
    ),
    (
        "control-plane/scheduler/src/storage/embedded/log.rs",
        "next to the store, which it wrote itself, record by record",
    ),
    ("control-plane/sentry/src/material.rs", "a folder, to sync it"),
    ("control-plane/sentry/src/server/owner.rs", "/proc"),
    ("sidecar/daprd/src/profiling.rs", "/proc"),
    ("foundation/telemetry/src/log/format.rs", "/etc/localtime"),
    ("foundation/telemetry/src/metrics/process.rs", "/proc"),
];

/// Line numbers with such calls, except in the tests at the end of a file.
fn reads(text: &str) -> impl Iterator<Item = usize> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().enumerate();
    let reading = lines.filter(|(_, line)| {
        let comment = line.trim_start().starts_with("//");
        // Skips other types, such as `AnchorsFile::open`.
        let whole = |at: usize| !line[..at].ends_with(|before: char| before.is_ascii_alphanumeric());
        !comment
            && READS
                .iter()
                .any(|read| line.match_indices(read).any(|(at, _)| whole(at)))
    });
    reading.map(|(number, _)| number + 1)
}

#[test]
fn files_are_read_through_safe_crate() {
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for name in released() {
        for file in sources(&crates().join(name).join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let file = file.strip_prefix(crates()).unwrap().display().to_string();
            let found: Vec<_> = reads(&text).collect();
            match ALLOWED.iter().find(|(allowed, _)| *allowed == file) {
                Some((allowed, _)) if !found.is_empty() => used.push(*allowed),
                Some(_) => {}
                None => wrong.extend(found.iter().map(|line| format!("crates/{file}:{line}"))),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "read with outrigger_files, which rejects irregular files, or add a reason to ALLOWED:\n{}",
        wrong.join("\n")
    );
    let stale: Vec<_> = ALLOWED.iter().filter(|(file, _)| !used.contains(file)).collect();
    assert!(stale.is_empty(), "{stale:?}");
}

#[test]
fn finds_unsafe_reads() {
    let text = "fn a() {\n    std::fs::read(path);\n    // fs::read(path)\n    AnchorsFile::open(path);\n    File::open(path);\n}\n\
                #[cfg(test)]\nmod tests {\n    std::fs::read(path);\n}\n";
    assert_eq!(reads(text).collect::<Vec<_>>(), [2, 5]);
}
