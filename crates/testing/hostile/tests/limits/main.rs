//! Compares `docs/reference/limits.md` with the code: a comment in each row names the constant with its
//! default, and every public constant in a file `limits.rs` has a row.
#![expect(clippy::unwrap_used, reason = "shared test functions may panic")]

mod constant;
mod files;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use constant::{Amount, public_constants, value};

/// Valid values of the column `against`.
const SIDES: [&str; 5] = ["network", "peer", "app", "server", "cluster"];

/// A row of the document.
#[derive(Debug)]
struct Row {
    line: usize,
    /// The amount at the start of the column `default`.
    default: String,
    /// The column `against`.
    against: String,
    /// Flags in the column `raised by`.
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

/// The rows of all tables: limit, default, against, raised by, at the limit; then a comment with the constant.
fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(crates().join("../docs/reference/limits.md")).unwrap();
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
        assert_eq!(cells.len(), 5, "docs/reference/limits.md:{line} has five columns");
        if cells[0] == "limit" || cells[0].starts_with("---") {
            continue;
        }
        let comment = cells[4].split_once("<!-- ");
        let source = comment.and_then(|(_, source)| source.strip_suffix(" -->")?.split_once(' '));
        let (file, name) = source.unwrap_or_else(|| {
            panic!("docs/reference/limits.md:{line} lacks <!-- crate/src/file.rs CONSTANT -->")
        });
        rows.push(Row {
            line,
            default: cells[1].to_owned(),
            against: cells[2].to_owned(),
            flags: flags(cells[3]),
            file: file.to_owned(),
            name: name.to_owned(),
        });
    }
    rows
}

/// The flags in a text, such as `--max-body-size`.
fn flags(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let flags = quoted.filter_map(|quoted| quoted.strip_prefix("--"));
    flags
        .filter_map(|flag| flag.split([' ', '=']).next())
        .map(str::to_owned)
        .collect()
}

/// The flags of every server, from their tables: `Flag::int("port", …)`.
fn server_flags() -> BTreeSet<String> {
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
fn documented_flags_exist() {
    let known = server_flags();
    let named = rows()
        .into_iter()
        .flat_map(|row| row.flags.into_iter().map(move |flag| (row.line, flag)));
    let named: Vec<_> = named.collect();
    assert!(named.len() > 5, "only these were understood: {named:?}");
    let wrong: Vec<_> = named.iter().filter(|(_, flag)| !known.contains(flag)).collect();
    assert!(
        wrong.is_empty(),
        "docs/reference/limits.md names flags that no server has: {wrong:?}"
    );
    assert_eq!(flags("`--a-b`: twice, `x`, or `--c=nobody`"), ["a-b", "c"]);
}

#[test]
fn documented_defaults_match_code() {
    let rows = rows();
    assert!(
        (51..=120).contains(&rows.len()),
        "{} rows were understood",
        rows.len()
    );
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
    assert!(
        wrong.is_empty(),
        "docs/reference/limits.md:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn every_limit_has_documented_row() {
    let rows = rows();
    let strange: Vec<_> = rows
        .iter()
        .filter(|row| !SIDES.contains(&row.against.as_str()))
        .collect();
    assert!(strange.is_empty(), "not one of {SIDES:?}: {strange:?}");
    let has_row = |file: &str, name: &str| rows.iter().any(|row| row.file == file && row.name == name);
    let (mut files, mut missing) = (0, Vec::new());
    for name in released() {
        for file in sources(&crates().join(name).join("src")) {
            if !file.ends_with("limits.rs") {
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&file).unwrap();
            let file = file.strip_prefix(crates()).unwrap().display().to_string();
            let public = public_constants(&text).filter(|name| !has_row(&file, name));
            missing.extend(public.map(|name| format!("crates/{file} {name}")));
        }
    }
    assert!(files > 0, "no crate has a limits.rs");
    assert!(
        missing.is_empty(),
        "limits without a row in docs/reference/limits.md:\n{}",
        missing.join("\n")
    );
}

/// The source files below a directory, without tests.
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
