//! How a test says that it cannot run on this machine, so that it is not taken for one that passed: libtest has no word for that,
//! and keeps what a test prints to itself.

use std::fs::OpenOptions;
use std::io::Write as _;

/// A file that gets a line for each reason why a test was skipped, with the process and the name of the test; `scripts/test` counts
/// those and prints the reasons.
const SKIPPED: &str = "OUTRIGGER_SKIPPED";

/// Notes that a test was skipped for want of something that every machine of CI has.
///
/// # Panics
/// With `CI=true`, where nothing is skipped.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
    note(why);
}

/// Notes that a test was skipped for want of something that CI may lack too.
///
/// # Panics
/// When the file that `OUTRIGGER_SKIPPED` names cannot be written.
pub fn skip_optional(why: &str) {
    note(why);
}

fn note(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped: {test}: {why}");
    let line = format!("{} {test}: {why}\n", std::process::id());
    if let Some(path) = std::env::var_os(SKIPPED) {
        // One write: test binaries run beside each other.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "{}: {written:?}", path.display());
    }
}
