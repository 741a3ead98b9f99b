//! Pages of `docs/` compared with names in the sources.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outrigger_testing::pages::Page;

/// Ways to read environment variables.
const READS: [&str; 7] = [
    "env(\"",
    "(self.env)(\"",
    "(context.env)(\"",
    "variable(\"",
    "env::var(\"",
    "var_os(\"",
    "_VARIABLE: &str = \"",
];
/// Variables read by libraries: HTTP clients, system root certificates, the Kubernetes client.
const LIBRARIES: [&str; 7] = [
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "KUBECONFIG",
];
/// Variables that are not for users.
const OTHERS: [&str; 5] = [
    "CI",
    "OUTAGE_SECONDS",
    "PATH",
    "SENTRY_TEST_CONNECTS_TO",
    "SIMULATION_SEEDS",
];

/// Adds the Rust files below a folder, without those of unit tests.
pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The sources of the selected crates (`<folder>/<crate>`), without tests.
fn text(wanted: impl Fn(&str) -> bool) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for layer in std::fs::read_dir(&crates).unwrap() {
        for entry in std::fs::read_dir(layer.unwrap().path()).unwrap() {
            let path = entry.unwrap().path();
            if wanted(path.strip_prefix(&crates).unwrap().to_str().unwrap()) {
                sources(&path.join("src"), &mut files);
            }
        }
    }
    files.iter().map(|path| code(path)).collect()
}

/// The text of a source file without tests.
fn code(path: &Path) -> String {
    if path.ends_with("tests.rs") {
        return String::new();
    }
    let text = std::fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next();
    code.unwrap_or_default().to_owned()
}

/// The API's error codes in the sources: upper-case texts, except the reasons in error details.
fn api_codes() -> BTreeSet<String> {
    let api = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sidecar/api/src");
    let mut files = vec![api.join("error.rs")];
    sources(&api.join("error"), &mut files);
    let text: String = files.iter().map(|path| code(path)).collect();
    let letters =
        |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let reason = |word: &&str| word.starts_with("DAPR_STATE_") || word.starts_with("DAPR_PUBSUB_");
    let words = text.split('"').filter(letters).filter(|word| !reason(word));
    words.map(str::to_owned).collect()
}

/// The codes with a row: texts in backticks in the first column.
fn documented_codes(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let first = rows.filter_map(|row| row.split('|').next());
    let codes = first.flat_map(|cell| cell.split('`').step_by(2));
    codes
        .filter(|code| !code.trim().is_empty())
        .map(str::to_owned)
        .collect()
}

/// The texts between `before` and the next quote.
fn quoted<'t>(text: &'t str, before: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
}

/// Words in backticks.
fn named(page: &str) -> BTreeSet<&str> {
    page.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_error_code_has_a_row() {
    let text = text(|name| name.starts_with("sidecar/") || name.starts_with("components/"));
    let page = Page::read("reference/errors.md");
    let listed = documented_codes(page.text());
    let elsewhere = quoted(&text, "\"ERR_").map(|rest| format!("ERR_{rest}"));
    let codes: BTreeSet<String> = api_codes().into_iter().chain(elsewhere).collect();
    assert!(codes.len() > 30, "{codes:?}");
    let missing: Vec<_> = codes.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/reference/errors.md lacks {missing:?}");
    let of_nobody: Vec<_> = listed.difference(&codes).collect();
    assert!(
        of_nobody.is_empty(),
        "docs/reference/errors.md has unused codes: {of_nobody:?}"
    );
}

#[test]
fn every_variable_has_a_row() {
    // The variables of name resolvers are on another page.
    let text = text(|name| !name.starts_with("testing/") && name != "foundation/discovery");
    let page = Page::read("reference/flags.md");
    let listed = named(page.text());
    let read = READS.iter().flat_map(|before| quoted(&text, before));
    let upper =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let read: BTreeSet<&str> = read.filter(upper).filter(|name| !OTHERS.contains(name)).collect();
    assert!(read.len() > 10, "{read:?}");
    let read = read.into_iter().chain(LIBRARIES);
    let missing: Vec<_> = read.filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "docs/reference/flags.md lacks {missing:?}");

    let environment = page.text().split("## Environment").nth(1).unwrap();
    for row in environment.lines().filter_map(|line| line.strip_prefix("| `")) {
        let name = row.split('`').next().unwrap();
        assert!(
            text.contains(&format!("\"{name}\"")) || LIBRARIES.contains(&name),
            "docs/reference/flags.md has {name}, which nothing reads"
        );
    }
}
