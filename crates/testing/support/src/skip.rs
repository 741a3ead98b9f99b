//! Reporting of skipped tests: libtest cannot report them, and hides the output of passed tests.

use std::fs::OpenOptions;
use std::io::Write as _;

/// File to which each skipped test appends a line with the process, the test's name and the reason;
/// `scripts/test` counts and prints them.
const SKIPPED: &str = "OUTRIGGER_SKIPPED";

/// Reports that a test was skipped for lack of something that every CI machine has.
///
/// # Panics
/// With `CI=true`, where nothing may be skipped.
pub fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
    note(why);
}

/// Reports that a test was skipped for lack of something that CI may lack too.
///
/// # Panics
/// If the file in `OUTRIGGER_SKIPPED` cannot be written.
pub fn skip_optional(why: &str) {
    note(why);
}

fn note(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    eprintln!("skipped: {test}: {why}");
    let line = format!("{} {test}: {why}\n", std::process::id());
    if let Some(path) = std::env::var_os(SKIPPED) {
        // A single write, because test binaries run concurrently.
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        assert!(written.is_ok(), "{}: {written:?}", path.display());
    }
}
