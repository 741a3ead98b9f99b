//! The binary: exit statuses, snapshots and shutdown.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::running::arguments;

fn run(arguments: &[String]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_scheduler"))
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn with(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

#[test]
fn prints_help_and_errors() {
    let (code, text) = run(&with(&["--help"]));
    assert!(
        code == Some(0) && text.contains("--etcd-data-dir string"),
        "{text}"
    );
    let (code, text) = run(&with(&["--no-such-flag"]));
    assert!(
        code == Some(2) && text.contains("unknown flag: --no-such-flag"),
        "{text}"
    );
    let (code, text) = run(&with(&["--etcd-client-endpoints=localhost:1"]));
    assert!(code == Some(1), "{text}");
    assert!(
        text.contains("cannot use --etcd-client-endpoints with --etcd-embed"),
        "{text}"
    );
}

#[test]
fn shuts_down_and_takes_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments(folder.path());
    let mut child = Command::new(env!("CARGO_BIN_EXE_scheduler"))
        .args(&arguments)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    lines
        .find(|line| line.contains("Running gRPC server"))
        .expect("the process did not start");

    let copy = folder.path().join("copy.db");
    let snapshot = [
        arguments.clone(),
        with(&[&format!("--snapshot-to={}", copy.display())]),
    ]
    .concat();
    let (code, text) = run(&snapshot);
    assert!(code == Some(0) && copy.exists(), "while it runs: {text}");
    assert_eq!(run(&snapshot).0, Some(1), "a snapshot is not overwritten");

    let killed = Command::new("kill")
        .args(["-TERM".to_owned(), child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert!(lines.any(|line| line.contains("Scheduler service shut down gracefully")));
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let restore = [arguments, with(&[&format!("--restore-from={}", copy.display())])].concat();
    let (code, text) = run(&restore);
    assert!(code == Some(1) && text.contains("already exists"), "{text}");
    let empty = tempfile::tempdir().unwrap();
    let data = format!("--etcd-data-dir={}", empty.path().display());
    assert_eq!(run(&[restore, vec![data]].concat()).0, Some(0));
    assert!(
        empty
            .path()
            .join("default-dapr-scheduler-server-0/jobs.db")
            .exists()
    );
}
