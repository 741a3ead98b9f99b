//! The binary: exit statuses and shutdown.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_placement"))
        .args(arguments)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn prints_help_and_flag_errors() {
    let (code, text) = run(&["--help"]);
    assert!(
        code == Some(0) && text.contains("--disseminate-timeout duration"),
        "{text}"
    );
    let (code, text) = run(&["--no-such-flag"]);
    assert!(
        code == Some(2) && text.contains("unknown flag: --no-such-flag"),
        "{text}"
    );
    let (code, text) = run(&["--id=other", "--keepalive-time=1m"]);
    assert!(code == Some(1), "{text}");
    assert!(
        text.contains("--id \\\"other\\\" is not in --initial-cluster")
            && text.contains("invalid value for keepalive-time"),
        "both are reported: {text}"
    );
}

#[test]
fn shuts_down_gracefully() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_placement"))
        .args([
            "--port=0",
            "--healthz-port=0",
            "--metrics-port=0",
            "-listen-address",
            "127.0.0.1",
        ])
        .arg("--initial-cluster=dapr-placement-0=127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    lines
        .find(|line| line.contains("is the leader"))
        .expect("it did not start");
    let killed = Command::new("kill")
        .args(["-TERM".to_owned(), child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    assert!(lines.any(|line| line.contains("Placement service shut down gracefully")));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
