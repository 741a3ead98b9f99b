//! The features of this crate, and those of the sidecar that forward them.
use std::path::Path;

/// Backends that one has to ask for, as their build needs a program that few machines have.
const ASKED_FOR: [&str; 1] = ["pulsar"];

/// The part of a manifest from `[features]` to the next table.
fn features(manifest: &Path) -> String {
    let text = std::fs::read_to_string(manifest).unwrap();
    let (_, after) = text.split_once("[features]").unwrap();
    let end = after.find("\n[").unwrap_or(after.len());
    after[..end].to_owned()
}

#[test]
fn every_backend_is_in_the_sidecar_and_all_but_few_in_its_default_build() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (own, sidecar) = (
        features(&here.join("Cargo.toml")),
        features(&here.join("../../sidecar/daprd/Cargo.toml")),
    );
    let (_, list) = sidecar.split_once("default = [").unwrap();
    let (default, _) = list.split_once(']').unwrap();
    let mut seen = 0;
    for line in own.lines() {
        let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| *name != "default") else {
            continue;
        };
        seen += 1;
        let forwards = format!("{name} = [\"outrigger-components/{name}\"]");
        assert!(
            sidecar.lines().any(|line| line == forwards),
            "crates/sidecar/daprd/Cargo.toml has no line {forwards}"
        );
        assert_eq!(
            default.contains(&format!("\"{name}\"")),
            !ASKED_FOR.contains(&name),
            "{name} in the default features of crates/sidecar/daprd/Cargo.toml"
        );
    }
    assert!(seen > 10, "only {seen} features were found");
}

#[test]
fn a_build_without_a_backend_says_how_to_get_it() {
    let catalog = outrigger_components::builtin();
    let found = catalog.pubsub.find("pubsub.pulsar", "v1").map(drop);
    assert_eq!(found.is_ok(), cfg!(feature = "pulsar"));
    let Err(error) = found else { return };
    let text = error.to_string();
    assert!(
        text.contains("this build lacks it") && text.contains("--features pulsar"),
        "{text}"
    );
}
