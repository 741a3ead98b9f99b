//! The local storage binding.
use std::fs;
use std::time::Duration;

use outrigger_component::Kind;
use outrigger_component_conformance as conformance;

use outrigger_components_testing::{Components, call, text};

fn components() -> Components {
    Components::of(outrigger_components_local::add)
}

const STORAGE: &str = "bindings.localstorage";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_storage_passes_conformance() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("made/when/needed");
    let binding = components()
        .output(STORAGE, "v1", &[("rootPath", root.to_str().unwrap())])
        .await;
    let sample = call("create", &[("fileName", "sample")], "data!");
    conformance::output_binding(&binding.unwrap(), &sample).await;
    assert_eq!(fs::read(root.join("sample")).unwrap(), b"data!");
}

#[tokio::test]
async fn writes_reads_lists_and_deletes_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let binding = components()
        .output(STORAGE, "v1", &[("rootPath", root.to_str().unwrap())])
        .await
        .unwrap();
    let list = || async { text(binding.invoke(&call("list", &[], "")).await.unwrap()) };
    assert_eq!(list().await, "null");
    let name = [("fileName", "a/b.txt")];
    let made = binding
        .invoke(&call("create", &name, r#""hello\n""#))
        .await
        .unwrap();
    assert_eq!(text(made), r#"{"fileName":"a/b.txt"}"#);
    assert_eq!(fs::read(root.join("a/b.txt")).unwrap(), b"hello\n");
    let unnamed = binding.invoke(&call("create", &[], "eA==")).await.unwrap();
    let unnamed: serde_json::Value = serde_json::from_slice(&unnamed.unwrap().data).unwrap();
    let unnamed = unnamed["fileName"].as_str().unwrap().to_owned();
    assert_eq!(fs::read(root.join(&unnamed)).unwrap(), b"x");
    let got = binding.invoke(&call("get", &name, "")).await.unwrap();
    assert_eq!(text(got), "hello\n");
    let both = [root.join("a/b.txt"), root.join(&unnamed)].map(|path| path.to_str().unwrap().to_owned());
    let mut both = both.to_vec();
    both.sort_unstable();
    assert_eq!(list().await, serde_json::to_string(&both).unwrap());
    assert!(
        binding
            .invoke(&call("delete", &name, ""))
            .await
            .unwrap()
            .is_none()
    );
    let error = binding.invoke(&call("get", &name, "")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().starts_with("file not found: "), "{error}");
    let error = binding.invoke(&call("delete", &[], "")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidRequest);
    assert!(root.is_dir());
    let pipe = root.join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let read = binding.invoke(&call("get", &[("fileName", "pipe")], "")).await;
    assert!(read.is_err(), "a pipe is no file");
}

#[tokio::test]
async fn names_cannot_leave_root() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::write(folder.path().join("secret"), "s").unwrap();
    let binding = components()
        .output(STORAGE, "v1", &[("rootPath", root.to_str().unwrap())])
        .await
        .unwrap();
    for name in ["../secret", "/../../secret", "a/../../secret"] {
        let found = binding.invoke(&call("get", &[("fileName", name)], "")).await;
        assert_eq!(found.unwrap_err().kind(), Kind::NotFound, "{name}");
    }
    let outside = call("create", &[("fileName", "../../made")], "!");
    binding.invoke(&outside).await.unwrap();
    assert!(root.join("made").is_file());
    for path in ["/proc/self", "/sys"] {
        let opened = components().output(STORAGE, "v1", &[("rootPath", path)]).await;
        assert_eq!(opened.map(drop).unwrap_err().kind(), Kind::Configuration);
    }
}

/// Invariant: a file being written at shutdown is written completely, and no temporary file is left.
#[tokio::test]
async fn close_waits_for_abandoned_write() {
    let folder = tempfile::tempdir().unwrap();
    let binding = components()
        .output(STORAGE, "v1", &[("rootPath", folder.path().to_str().unwrap())])
        .await
        .unwrap();
    let large = "!".repeat(32 << 20);
    let create = call("create", &[("fileName", "large")], &large);
    let given_up = tokio::time::timeout(Duration::ZERO, binding.invoke(&create)).await;
    assert!(given_up.is_err());
    binding.close().await;
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1);
    assert_eq!(fs::metadata(folder.path().join("large")).unwrap().len(), 32 << 20);
}
