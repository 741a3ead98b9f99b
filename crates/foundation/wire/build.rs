//! Compiles `proto/` without a system `protoc`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::prost_reflect::prost_types::FileDescriptorSet;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../../proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", root.display());

    let mut files = Vec::new();
    proto_files(&root, &mut files)?;
    files.sort();
    for file in &files {
        println!("cargo:rerun-if-changed={}", file.display());
    }

    let mut compiler = protox::Compiler::new([&root])?;
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&files)?;
    let with_comments = compiler.file_descriptor_set();
    compiler.include_source_info(false);
    fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;

    tonic_prost_build::configure()
        .bytes(".")
        .generate_default_stubs(true)
        .emit_rerun_if_changed(false)
        .compile_fds(without_deprecation(with_comments))?;
    Ok(())
}

fn proto_files(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            proto_files(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}

/// Clears `deprecated`, which addresses authors of apps. This server must implement those fields and calls
/// without compiler warnings; the descriptors for reflection keep the option.
fn without_deprecation(mut set: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut set.file {
        for message in &mut file.message_type {
            if let Some(options) = &mut message.options {
                options.deprecated = None;
            }
            for field in &mut message.field {
                if let Some(options) = &mut field.options {
                    options.deprecated = None;
                }
            }
        }
        for method in file.service.iter_mut().flat_map(|s| &mut s.method) {
            if let Some(options) = &mut method.options {
                options.deprecated = None;
            }
        }
    }
    set
}
