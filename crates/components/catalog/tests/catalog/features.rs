//! The features of the catalog.
use std::path::Path;

/// Backends outside the default build: their builds need a tool that few machines have.
const NOT_DEFAULT: [&str; 1] = ["pulsar"];

#[test]
fn default_build_has_most_backends() {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let text = std::fs::read_to_string(manifest).unwrap();
    let (_, after) = text.split_once("[features]\n").unwrap();
    let (features, _) = after.split_once("\n[").unwrap();
    let default = features.lines().find(|line| line.starts_with("default")).unwrap();
    let named: Vec<_> = features
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| *name != "default")
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        assert_eq!(
            default.contains(&format!("\"{name}\"")),
            !NOT_DEFAULT.contains(&name),
            "{name} in the default features of crates/components/catalog"
        );
    }
}
