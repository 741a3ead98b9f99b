//! The directories of `crates/` are layers: a crate depends only on crates of the same or a lower
//! directory.
use std::collections::BTreeMap;
use std::path::Path;

/// The directories that each directory may depend on. Dev-dependencies are exempt: tests use the crates of
/// `testing`.
const LAYERS: [(&str, &[&str]); 6] = [
    ("foundation", &[]),
    ("engines", &["foundation"]),
    ("components", &["engines", "foundation"]),
    ("control-plane", &["components", "engines", "foundation"]),
    ("sidecar", &["components", "engines", "foundation"]),
    (
        "testing",
        &["sidecar", "control-plane", "components", "engines", "foundation"],
    ),
];

fn folders(of: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(of).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The names in the sections `[dependencies]` and `[build-dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut names = Vec::new();
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            continue;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if section.ends_with("dependencies") && !section.ends_with("dev-dependencies") {
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn crates_depend_on_lower_layers_only() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut manifests = BTreeMap::new();
    for folder in folders(&crates) {
        assert!(
            LAYERS.iter().any(|(name, _)| *name == folder),
            "crates/{folder} has no row in LAYERS"
        );
        for name in folders(&crates.join(&folder)) {
            let manifest = crates.join(&folder).join(&name).join("Cargo.toml");
            let text = std::fs::read_to_string(&manifest).unwrap();
            let package = text.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
            manifests.insert(package.to_owned(), (folder.clone(), text));
        }
    }
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (package, (folder, text)) in &manifests {
        let (_, allowed) = LAYERS.iter().find(|(name, _)| name == folder).unwrap();
        for dependency in dependencies(text) {
            let Some((other, _)) = manifests.get(&dependency) else {
                continue;
            };
            seen += 1;
            if other != folder && !allowed.contains(&other.as_str()) {
                wrong.push(format!("{package} ({folder}) depends on {dependency} ({other})"));
            }
        }
    }
    assert!(seen > 100, "only {seen} dependencies were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
