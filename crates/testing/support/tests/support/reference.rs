//! Compares reference pages with names that no crate exports: annotations, Helm values, metrics, resource fields.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outrigger_testing::pages::Page;

use crate::sources::sources;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of all tables whose first cell has names in backticks: the names, and the next cell.
fn rows(page: &str) -> Vec<(Vec<&str>, &str)> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        (cells[1].split('`').skip(1).step_by(2).collect(), cells[2])
    })
    .collect()
}

fn names<'p>(rows: &[(Vec<&'p str>, &'p str)]) -> BTreeSet<&'p str> {
    rows.iter().flat_map(|(names, _)| names.iter().copied()).collect()
}

#[test]
fn annotations_match_injector() {
    let source = read("crates/control-plane/injector/src/patch/known.rs");
    let (_, table) = source.split_once("const KNOWN:").unwrap();
    let (table, _) = table.split_once("];").unwrap();
    let known: BTreeSet<_> = table
        .split("(\"")
        .skip(1)
        .filter_map(|entry| entry.split('"').next())
        .collect();
    assert!(known.len() > 50, "{known:?}");
    let page = Page::read("reference/annotations.md");
    assert_eq!(names(&rows(page.text())), known);
}

/// The paths of the leaves of `values.yaml`, with their values; an alias is a leaf.
fn chart_values(text: &str) -> BTreeMap<String, &str> {
    let mut found = BTreeMap::new();
    let mut parents: Vec<(usize, &str)> = Vec::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        let Some((key, value)) = trimmed.split_once(':') else {
            continue;
        };
        if trimmed.starts_with(['#', '[', '{']) {
            continue;
        }
        parents.retain(|(depth, _)| *depth < indent);
        let value = value.trim();
        if value.is_empty() || value.starts_with('&') {
            parents.push((indent, key));
            continue;
        }
        let path = parents.iter().map(|(_, parent)| *parent).chain([key]);
        found.insert(path.collect::<Vec<_>>().join("."), value);
    }
    found
}

#[test]
fn helm_values_are_those_of_the_chart() {
    let text = read("charts/outrigger/values.yaml");
    let values = chart_values(&text);
    assert!(values.len() > 200, "{values:?}");
    let page = Page::read("reference/helm-values.md");
    let rows = rows(page.text());
    let mut wrong = Vec::new();
    let mut used = BTreeSet::new();
    for (path, value) in &values {
        // A row names the path, or with `dapr_*.` that of every process; it may end with `.*` or with a parent.
        let rest = path.split_once('.').map_or("", |(_, rest)| rest);
        let covers = |name: &str| {
            let (name, path) = match name.strip_prefix("dapr_*.") {
                Some(name) if path.starts_with("dapr_") => (name, rest),
                Some(_) => return false,
                None => (name, path.as_str()),
            };
            let after = path.strip_prefix(name.trim_end_matches(".*"));
            after.is_some_and(|after| after.is_empty() || after.starts_with('.'))
        };
        let exact = rows.iter().find(|(names, _)| names[0] == path);
        let row = exact.or_else(|| rows.iter().find(|(names, _)| covers(names[0])));
        let Some((names, default)) = row else {
            wrong.push(format!("{path} has no row"));
            continue;
        };
        used.insert(names[0]);
        let default = default.trim_matches('`');
        let value = value.trim_matches('"');
        let is_exact = names[0] == path;
        if is_exact && !value.starts_with(['>', '*']) && default != value {
            wrong.push(format!("{path} is {value}, the page has {default}"));
        }
    }
    wrong.extend(
        names(&rows)
            .difference(&used)
            .filter(|name| name.contains('.'))
            .map(|name| format!("the chart has no {name}")),
    );
    assert!(
        wrong.is_empty(),
        "docs/reference/helm-values.md:\n{}",
        wrong.join("\n")
    );
}

/// What names of metrics begin with, after `dapr_`, and end with.
const BEGINS: [&str; 9] = [
    "http_server_",
    "http_client_",
    "http_healthprobes_",
    "grpc_io_",
    "runtime_",
    "component_",
    "resiliency_",
    "error_code_",
    "process_",
];
const ENDS: [&str; 16] = [
    "_count",
    "_total",
    "_latency",
    "_latencies",
    "_bytes",
    "_loaded",
    "_state",
    "_lag",
    "_in_flight",
    "_waiting",
    "_rpcs",
    "_per_rpc",
    "_ratio",
    "_timestamp",
    "_timers",
    "_calls",
];

#[test]
fn every_metric_has_a_row() {
    let mut files = Vec::new();
    for folder in [
        "crates/foundation/telemetry/src/metrics",
        "crates/sidecar/blocks/src",
        "crates/sidecar/blocks-actors/src",
        "crates/sidecar/runtime/src",
    ] {
        sources(&root().join(folder), &mut files);
    }
    let mut made = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let texts = code.split('"').skip(1).step_by(2);
        let metrics = texts.filter(|name| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                && BEGINS.iter().any(|begin| name.starts_with(begin))
                && ENDS.iter().any(|end| name.ends_with(end))
        });
        made.extend(metrics.map(str::to_owned));
    }
    assert!(made.len() > 60, "{made:?}");
    let page = Page::read("reference/metrics.md");
    let rows = rows(page.text());
    let listed = names(&rows);
    let missing: Vec<_> = made
        .iter()
        .filter(|name| !listed.contains(name.as_str()) && !listed.contains(format!("dapr_{name}").as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/reference/metrics.md lacks {missing:?}");
}

/// The fields of structures that are deserialized, in camel case or as they are renamed.
fn fields(source: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let (mut is_read, mut inside, mut renamed) = (false, false, None);
    for line in source.lines().map(str::trim_end) {
        let text = line.trim_start();
        if line.starts_with("#[derive(") {
            is_read = line.contains("Deserialize");
        } else if line.contains("struct ") && line.ends_with('{') {
            inside = std::mem::take(&mut is_read);
        } else if text == "}" {
            inside = false;
        } else if let Some((_, name)) = text.split_once("rename = \"") {
            renamed = name.split('"').next().map(str::to_owned);
        } else if inside && !text.starts_with(['/', '#']) {
            let field = text.split_once(": ").map_or("", |(field, _)| field);
            let name = field
                .rsplit(' ')
                .next()
                .unwrap_or_default()
                .trim_start_matches("r#");
            let mut words = name.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            let camel = words.fold(first, |camel, word| {
                let (initial, rest) = word.split_at(1);
                camel + &initial.to_uppercase() + rest
            });
            found.insert(renamed.take().unwrap_or(camel));
        }
    }
    found.retain(|name| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    found
}

#[test]
fn every_field_of_a_resource_is_on_the_page() {
    let mut files = Vec::new();
    sources(&root().join("crates/foundation/resources/src"), &mut files);
    files.retain(|path| !path.components().any(|part| part.as_os_str() == "yaml"));
    let mut known = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        known.extend(fields(text.split("#[cfg(test)]\nmod tests {").next().unwrap()));
    }
    assert!(known.len() > 80, "{known:?}");
    let page = Page::read("reference/resources.md");
    let words: BTreeSet<&str> = page.text().split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let missing: Vec<_> = known
        .iter()
        .filter(|name| !words.contains(name.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/reference/resources.md lacks {missing:?}"
    );
}
