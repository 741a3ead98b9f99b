//! An unresponsive file system, and a sidecar that is stopped while it waits for it.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A mounted file system whose server never answers.
struct Hanging {
    folder: TempDir,
    _server: File,
}

impl Hanging {
    /// `None` if this user may not mount it.
    fn mount() -> Option<Self> {
        let server = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o"])
            .args(["fd=0,rootmode=40000,user_id=0,group_id=0", "hanging"])
            .arg(folder.path())
            .stdin(server.try_clone().unwrap())
            .stderr(Stdio::null())
            .status()
            .ok()?;
        mounted.success().then_some(Self {
            folder,
            _server: server,
        })
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _status = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// Whether a process has a SIGTERM handler.
fn handles_sigterm(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & 1 << 14 != 0)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(folder: &Path, flag: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_daprd"))
        .args([
            "--app-id=app",
            "--dapr-http-port=0",
            "--dapr-grpc-port=0",
            "--metrics-port=0",
        ])
        .args([
            "--dapr-listen-addresses=127.0.0.1",
            "--dapr-internal-grpc-listen-address=127.0.0.1",
        ])
        .arg(flag)
        .current_dir(folder)
        .stdout(File::create(folder.join("log")).unwrap())
        .spawn()
        .unwrap()
}

/// Ends a process with SIGTERM; returns its exit status and the time it took.
fn terminate(child: &mut Child) -> (ExitStatus, Duration) {
    let begin = Instant::now();
    let sent = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    let mut ended = None;
    until("the process ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    (ended.unwrap(), begin.elapsed())
}

/// Opening a named pipe blocks until there is a reader; neither start nor shutdown may wait for that.
#[test]
fn unread_log_pipe_blocks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut child = start(folder.path(), "--log-file=pipe");
    until("it listens to signals", || handles_sigterm(child.id()));
    let (ended, time) = terminate(&mut child);
    assert_eq!(ended.code(), Some(0), "after {time:?}");

    // A reader gets everything, including earlier log lines.
    let mut child = start(folder.path(), "--log-file=pipe");
    until("it listens to signals", || handles_sigterm(child.id()));
    let reader = File::open(pipe).unwrap();
    let (ended, time) = terminate(&mut child);
    assert_eq!(ended.code(), Some(0), "after {time:?}");
    let log = std::io::read_to_string(reader).unwrap();
    assert!(
        log.contains("Starting Dapr Runtime") && log.contains("Daprd shutdown gracefully"),
        "{log}"
    );
}

#[test]
fn blocked_start_ends_on_sigterm() {
    let Some(hanging) = Hanging::mount() else {
        outrigger_testing::skip::skip_optional("this user cannot mount a file system");
        return;
    };
    let mount = hanging.folder.path().display();
    let flags = [
        format!("--resources-path={mount}"),
        format!("--config={mount}/config.yaml"),
    ];
    for flag in flags {
        let folder = tempfile::tempdir().unwrap();
        let mut child = start(folder.path(), &flag);
        until("it listens to signals", || handles_sigterm(child.id()));
        let (ended, time) = terminate(&mut child);
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        // Gracefully, not because waiting for the file failed.
        assert_eq!(ended.code(), Some(0), "{flag}: after {time:?}: {log}");
        assert!(!log.contains("does not answer"), "{flag}: after {time:?}: {log}");
    }
}
