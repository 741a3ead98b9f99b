//! Lists the fuzz targets, so that new ones are replayed without being registered.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // Cargo sets both for every build script.
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var("OUT_DIR").expect("set by cargo"));
    let targets = here.join("../../../fuzz/fuzz_targets").canonicalize()?;
    println!("cargo::rerun-if-changed={}", targets.display());
    let mut files: Vec<PathBuf> = fs::read_dir(&targets)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    let text: String = files.iter().map(|file| entry(file)).collect();
    fs::write(out.join("targets.rs"), text)
}

/// The module of a target, and its replay test.
fn entry(file: &Path) -> String {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "#[path = {path:?}]\n#[allow(clippy::all)]\nmod {name};\n#[test]\nfn {name}() {{\n    replay({name:?}, {name}::run);\n}}\n",
        path = file.display().to_string(),
    );
    text
}
