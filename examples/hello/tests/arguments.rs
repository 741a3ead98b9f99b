//! Checks that the program exits without serving.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn help_is_printed_and_other_arguments_are_refused() {
    for (argument, status) in [("--help", 0), ("-h", 0), ("--port=1", 2)] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_outrigger-hello"));
        let done = program.arg(argument).output().unwrap();
        let printed = [done.stdout, done.stderr].concat();
        assert_eq!(done.status.code(), Some(status), "{argument}");
        assert!(
            String::from_utf8_lossy(&printed).contains("usage: outrigger-hello"),
            "{argument}"
        );
    }
}
