//! The output of `scripts/need` for an unusable Rust toolchain.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Exit status and standard error of `scripts/need cargo` with this script as `rustc`.
fn needed(rustc: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("cargo", ""), ("rustc", rustc)] {
        let program = folder.path().join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/need");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let done = Command::new(script)
        .arg("cargo")
        .env("PATH", path)
        .output()
        .unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

#[test]
fn reports_unusable_toolchain() {
    let without_default = "echo 'error: rustup could not choose a version of rustc to run' >&2; exit 1";
    let (status, text) = needed(without_default);
    assert_eq!(status, Some(1));
    assert!(
        text.starts_with("missing rustc ")
            && text.ends_with(": rustup default stable\n")
            && text.lines().count() == 1,
        "{text}"
    );
    let (status, text) = needed("echo 'rustc 1.60.0 (abc 2022-04-04)'");
    assert_eq!(status, Some(1));
    assert!(
        text.ends_with(" (1.60.0 is here): rustup update stable\n"),
        "{text}"
    );
    assert_eq!(needed("echo 'rustc 99.0.0 (abc)'"), (Some(0), String::new()));
}
