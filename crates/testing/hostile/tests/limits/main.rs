//! `docs/limits.md` against the code: each row names the constant that holds its default, and a constant that is named
//! as a limit has a row.
#![expect(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod constant;
mod files;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use constant::{Amount, constants, value};

/// Words in the names of constants that are limits.
const LIMITING: &[&str] = &[
    "MAX",
    "LIMITS",
    "MOST",
    "LARGEST",
    "LONGEST",
    "LIMIT",
    "TIMEOUT",
    "HANDSHAKE",
    "DEADLINE",
    "IDLE",
    "CAP",
    "CONNECT",
    "DIAL",
    "QUEUE",
    "ATTEMPTS",
    "FLIGHT",
    "BUFFER",
    "BREAKERS",
    "TARGETS",
    "GRACE",
    "CALLS",
];
/// Constants with such a word that bound nothing a peer or a user can make grow, and why.
const NOT_LIMITS: &[(&str, &str, &str)] = &[
    (
        "components/rabbitmq/src/consumer.rs",
        "MAX_TAG",
        "a tag is cut to what the broker takes",
    ),
    (
        "components/component/src/conformance/pubsub/faults.rs",
        "IN_FLIGHT",
        "of a test of brokers",
    ),
    (
        "components/redis/src/broker/settings.rs",
        "QUEUE_DEPTH",
        "a component's own setting",
    ),
    ("components/sqlite/src/broker/consumer.rs", "MAX_PAUSE", "a pause"),
    (
        "components/sqlite/src/settings.rs",
        "DEFAULT_BUSY_TIMEOUT",
        "a component's own setting",
    ),
    (
        "components/sqlite/src/settings.rs",
        "DEFAULT_TIMEOUT",
        "a component's own setting",
    ),
    (
        "components/pluggable/src/state.rs",
        "MULTI_MAX_SIZE_TIMEOUT",
        "how long one question may take, once",
    ),
    (
        "foundation/discovery/src/mdns/browser.rs",
        "SEARCH_PAUSE_MAX",
        "a pause",
    ),
    (
        "foundation/discovery/src/mdns/wire.rs",
        "MAX_POINTER",
        "a number of the format",
    ),
    (
        "foundation/discovery/src/polled.rs",
        "FAILURE_PAUSE_MAX",
        "a pause",
    ),
    (
        "foundation/discovery/src/sqlite/database.rs",
        "SWEEP_GRACE",
        "when an instance that is gone is removed",
    ),
    (
        "foundation/discovery/src/sqlite/config.rs",
        "DEFAULT_TIMEOUT",
        "a resolver's own setting",
    ),
    (
        "foundation/discovery/src/sqlite/config.rs",
        "DEFAULT_BUSY_TIMEOUT",
        "a resolver's own setting",
    ),
    (
        "foundation/http2/src/hpack/encode.rs",
        "MAX_VALUE",
        "what is worth remembering, of our own fields",
    ),
    (
        "foundation/http2/src/hpack/huffman.rs",
        "MAX_CODE_BITS",
        "a number of the code",
    ),
    (
        "foundation/http2/src/settings.rs",
        "MAX_CONCURRENT_STREAMS",
        "the number of a setting",
    ),
    (
        "foundation/http2/src/settings.rs",
        "MAX_FRAME_SIZE",
        "the number of a setting",
    ),
    (
        "foundation/http2/src/settings.rs",
        "MAX_HEADER_LIST_SIZE",
        "the number of a setting",
    ),
    (
        "foundation/http2/src/settings.rs",
        "MAX_WINDOW",
        "a number of the protocol",
    ),
    (
        "engines/policy/src/resiliency/breaker.rs",
        "DEFAULT_TIMEOUT",
        "a policy's own setting",
    ),
    (
        "engines/policy/src/resiliency/retry.rs",
        "DEFAULT_MAX_INTERVAL",
        "a policy's own setting",
    ),
    (
        "engines/policy/src/resiliency/retry.rs",
        "MAX_ELAPSED",
        "a policy's own setting",
    ),
    ("sidecar/daprd/src/main.rs", "MAX_WORKERS", "threads of our own"),
    ("sidecar/daprd/src/main.rs", "LIMIT", "of the command `--wait`"),
    (
        "sidecar/daprd/src/reload/watch.rs",
        "MAX_DELAY",
        "how often changes are reported",
    ),
    ("sidecar/daprd/src/wait.rs", "TIMEOUT", "of the command `--wait`"),
    (
        "foundation/http2/src/limits.rs",
        "FIELD_MEMORY",
        "how memory is counted",
    ),
    (
        "foundation/http2/src/limits.rs",
        "STREAMS_PER_FRAME",
        "how frames are counted",
    ),
    (
        "foundation/http2/src/limits.rs",
        "CREDIT_BYTES",
        "how frames are counted",
    ),
    (
        "control-plane/placement/src/config.rs",
        "MAX_FACTOR",
        "the range of a flag",
    ),
    (
        "engines/policy/src/status.rs",
        "DEADLINE_EXCEEDED",
        "a number of gRPC",
    ),
    (
        "sidecar/blocks/src/bindings/deliver.rs",
        "LIMITS",
        "the two before it together",
    ),
    (
        "sidecar/blocks/src/configuration/delivery.rs",
        "LIMITS",
        "the one before it, one at a time",
    ),
];

/// A row of the document.
#[derive(Debug)]
struct Row {
    line: usize,
    /// The first words of the column `default`.
    default: String,
    /// Flags in the column `set by`.
    flags: Vec<String>,
    file: String,
    name: String,
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every released crate, as `<folder>/<crate>`.
fn released() -> BTreeSet<String> {
    let folders = |of: &Path| {
        let entries = std::fs::read_dir(of).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let layers = folders(&crates()).into_iter().filter(|layer| layer != "testing");
    let names: BTreeSet<_> = layers
        .flat_map(|layer| {
            let inside = folders(&crates().join(&layer)).into_iter();
            inside.map(move |name| format!("{layer}/{name}"))
        })
        .collect();
    assert!(
        names.contains("sidecar/transport") && names.len() > 40,
        "{names:?}"
    );
    names
}

/// The rows of all tables: limit, default, set by, what exceeding gets, constant.
fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(crates().join("../docs/limits.md")).unwrap();
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = line
            .strip_prefix('|')
            .and_then(|line| line.trim_end().strip_suffix('|'))
        else {
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let line = number + 1;
        assert_eq!(cells.len(), 5, "docs/limits.md:{line} has five columns");
        if cells[0] == "limit" || cells[0].starts_with("---") {
            continue;
        }
        let source = cells[4].trim_matches('`').split_once(' ');
        let (file, name) =
            source.unwrap_or_else(|| panic!("docs/limits.md:{line} lacks `crate/src/file.rs CONSTANT`"));
        rows.push(Row {
            line,
            default: cells[1].to_owned(),
            flags: flags(cells[2]),
            file: file.to_owned(),
            name: name.to_owned(),
        });
    }
    rows
}

/// The flags that a text names: `--max-body-size`.
fn flags(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let flags = quoted.filter_map(|quoted| quoted.strip_prefix("--"));
    flags
        .filter_map(|flag| flag.split([' ', '=']).next())
        .map(str::to_owned)
        .collect()
}

/// The flags of every server, from the tables of them: `Flag::int("port", …)`.
fn flags_of_servers() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for name in released() {
        let table = crates().join(name).join("src/config/flags.rs");
        let text = std::fs::read_to_string(table).unwrap_or_default();
        let entries = text.split("Flag::").skip(1);
        names.extend(entries.filter_map(|entry| entry.split('"').nth(1).map(str::to_owned)));
    }
    assert!(names.contains("dapr-http-port") && names.len() > 60, "{names:?}");
    names
}

#[test]
fn every_flag_that_sets_a_limit_is_one() {
    let known = flags_of_servers();
    let named = rows()
        .into_iter()
        .flat_map(|row| row.flags.into_iter().map(move |flag| (row.line, flag)));
    let named: Vec<_> = named.collect();
    assert!(named.len() > 5, "only these were understood: {named:?}");
    let wrong: Vec<_> = named.iter().filter(|(_, flag)| !known.contains(flag)).collect();
    assert!(
        wrong.is_empty(),
        "docs/limits.md names flags that no server has: {wrong:?}"
    );
    assert_eq!(flags("`--a-b`: twice, `x`, or `--c=nobody`"), ["a-b", "c"]);
}

#[test]
fn every_default_is_that_of_the_code() {
    let rows = rows();
    assert!(rows.len() > 50, "only {} rows were understood", rows.len());
    let mut wrong = Vec::new();
    for row in rows {
        let Ok(text) = std::fs::read_to_string(crates().join(&row.file)) else {
            wrong.push(format!("line {}: there is no crates/{}", row.line, row.file));
            continue;
        };
        let said = Amount::said(&row.default);
        match value(&text, &row.name) {
            None => wrong.push(format!(
                "line {}: crates/{} has no {}",
                row.line, row.file, row.name
            )),
            Some(held) if said != Some(held) => wrong.push(format!(
                "line {}: says {:?} ({said:?}); {} in crates/{} is {held:?}",
                row.line, row.default, row.name, row.file
            )),
            Some(_) => {}
        }
    }
    assert!(wrong.is_empty(), "docs/limits.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_constant_that_is_named_as_a_limit_has_a_row() {
    let listed: BTreeSet<(String, String)> = rows()
        .into_iter()
        .map(|row| (row.file, row.name.split('.').next().unwrap().to_owned()))
        .chain(
            NOT_LIMITS
                .iter()
                .map(|(file, name, _)| ((*file).to_owned(), (*name).to_owned())),
        )
        .collect();
    let mut missing = Vec::new();
    for name in released() {
        for file in sources(&crates().join(name).join("src")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let file = file.strip_prefix(crates()).unwrap().display().to_string();
            for name in constants(&text) {
                let limiting =
                    file.ends_with("/limits.rs") || name.split('_').any(|word| LIMITING.contains(&word));
                if limiting && !listed.contains(&(file.clone(), name.to_owned())) {
                    missing.push(format!("crates/{file} {name}"));
                }
            }
        }
    }
    assert!(
        missing.is_empty(),
        "limits without a row in docs/limits.md (or a reason in NOT_LIMITS):\n{}",
        missing.join("\n")
    );
}

#[test]
fn every_exception_is_still_one() {
    let stale: Vec<_> = NOT_LIMITS
        .iter()
        .filter(|(file, name, _)| {
            let text = std::fs::read_to_string(crates().join(file)).unwrap_or_default();
            !constants(&text).any(|constant| constant == *name)
        })
        .collect();
    assert!(stale.is_empty(), "{stale:?}");
}

/// The source files below a folder, those of tests left out.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("test") || name.ends_with("tests.rs") || name == "fuzzing.rs" {
            continue;
        }
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}
