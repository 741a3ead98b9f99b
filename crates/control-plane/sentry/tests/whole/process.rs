//! The binary: exit statuses and shutdown.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

use crate::running::prepare;

fn sentry(arguments: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sentry"))
        .args(arguments)
        .output()
        .unwrap()
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let output = sentry(&arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn unknown_flags_exit_with_2() {
    let (code, text) = run(&["--no-such-flag"]);
    let expected = "unknown flag: --no-such-flag (run with --help for all flags)\nall flags: sentry --help\n";
    assert!(code == Some(2) && text.starts_with(expected), "{text}");
    assert_eq!(run(&["--port=x"]).0, Some(2));
    assert_eq!(run(&["--jwt-ttl=1"]).0, Some(2));
}

#[test]
fn help_exits_with_0() {
    for flag in ["--help", "-help", "-h"] {
        let (code, text) = run(&[flag]);
        assert_eq!(code, Some(0));
        assert!(text.contains("--issuer-credentials string"), "{text}");
        assert!(text.contains("(default 50001)"), "{text}");
    }
}

#[test]
fn failures_exit_with_1_and_reason() {
    let (code, text) = run(&["--mode=kubernetes"]);
    assert!(code == Some(1) && text.contains("NAMESPACE is not set"), "{text}");
    let prepared = prepare(&["--trust-domain=Not.Legal"]);
    let output = sentry(&prepared.arguments());
    assert_eq!(output.status.code(), Some(1));
    let prepared = prepare(&["--issuer-credentials=/no/such/folder"]);
    let output = sentry(&prepared.arguments());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let last = text.lines().last().unwrap();
    assert!(
        last.contains("level=fatal") && last.contains("/no/such/folder"),
        "{text}"
    );
}

#[test]
fn signals_shut_down_gracefully() {
    for signal in ["TERM", "INT"] {
        let prepared = prepare(&[]);
        let mut child = Command::new(env!("CARGO_BIN_EXE_sentry"))
            .args(prepared.arguments())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap);
        let started = lines
            .find(|line| line.contains("Running gRPC server"))
            .expect("it did not start");
        assert!(started.contains("scope=dapr.sentry.server"), "{started}");
        let killed = Command::new("kill")
            .args([format!("-{signal}"), child.id().to_string()])
            .status()
            .unwrap();
        assert!(killed.success());
        assert!(
            lines.any(|line| line.contains("Sentry shut down gracefully")),
            "SIG{signal}"
        );
        assert_eq!(child.wait().unwrap().code(), Some(0), "SIG{signal}");
    }
}
