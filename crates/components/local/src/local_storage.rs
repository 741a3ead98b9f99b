//! `bindings.localstorage`: files below a folder.

mod confine;
mod decode;

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, OutputBinding, Result,
    bindings::{Invoke, Invoked},
    catalog::Version,
};
use outrigger_go_json::{Html, canonical};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::confine::Root;

const OPERATIONS: &[&str] = &["create", "get", "list", "delete"];
const FILE_NAME: &str = "fileName";
/// Maximum size of a file to read, bytes.
const MAX_FILE: u64 = 256 << 20;

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .output_bindings
        .add(Entry::new(&["localstorage"], Version::Only, |setup| async move {
            let binding = LocalStorage::open(&setup.metadata)?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        }));
}

struct LocalStorage {
    root: Arc<Root>,
    closed: AtomicBool,
    /// File operations; they continue if their caller gives up.
    operations: TaskTracker,
    component: Arc<str>,
}

impl LocalStorage {
    fn open(metadata: &Metadata) -> Result<Self> {
        let path = metadata.required(&["rootPath"])?;
        let root = Root::open(Path::new(path)).map_err(|error| metadata.wrong(&["rootPath"], &error))?;
        Ok(Self {
            root: Arc::new(root),
            closed: AtomicBool::new(false),
            operations: TaskTracker::new(),
            component: metadata.component().clone(),
        })
    }
}

fn failure(what: &str, path: &Path, error: std::io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::NotFound => Kind::NotFound,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        _ => Kind::Internal,
    };
    Error::new(kind, format!("error {what} {}", path.display())).because(error)
}

fn json(value: &serde_json::Value) -> Result<Option<Invoked>> {
    let data = canonical(value.to_string().as_bytes(), Html::Escape)
        .map_err(|error| Error::new(Kind::Internal, "error encoding response as JSON").because(error))?;
    Ok(Some(Invoked {
        data,
        ..Invoked::default()
    }))
}

fn create(root: &Root, name: &str, data: &[u8]) -> Result<Option<Invoked>> {
    let path = root.inside(name)?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| failure("creating directory", folder, error))?;
    }
    write(&path, &decode::data(data)).map_err(|error| failure("writing to file", &path, error))?;
    let relative = path.strip_prefix(root.path()).unwrap_or(&path);
    json(&serde_json::json!({ FILE_NAME: relative.to_string_lossy() }))
}

/// Writes a file atomically: readers never see a part.
fn write(path: &Path, data: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let partial = folder.join(format!(".{}.part", Uuid::new_v4()));
    let written = (|| {
        let mut file = fs::File::create_new(&partial)?;
        file.write_all(data)?;
        if let Ok(present) = fs::metadata(path) {
            file.set_permissions(present.permissions())?;
        }
        fs::rename(&partial, path)
    })();
    if written.is_err() {
        // It may not exist.
        let _gone = fs::remove_file(&partial);
    }
    written
}

fn get(root: &Root, name: &str) -> Result<Option<Invoked>> {
    let path = root.inside(name)?;
    let mut data = Vec::new();
    let read = outrigger_files::open(&path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut data));
    read.map_err(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(Kind::NotFound, format!("file not found: {}", path.display())),
        _ => failure("reading file", &path, error),
    })?;
    if data.len() as u64 > MAX_FILE {
        return Err(Error::invalid_request(format!(
            "the file {} exceeds the limit of {MAX_FILE} bytes",
            path.display()
        )));
    }
    Ok(Some(Invoked {
        data: Bytes::from(data),
        ..Invoked::default()
    }))
}

fn delete(root: &Root, name: &str) -> Result<Option<Invoked>> {
    let path = root.inside(name)?;
    if path == root.path() {
        return Err(Error::invalid_request(format!(
            "the metadata item {FILE_NAME} must name a file below rootPath"
        )));
    }
    let removed = match fs::metadata(&path) {
        Ok(found) if found.is_dir() => fs::remove_dir(&path),
        _ => fs::remove_file(&path),
    };
    removed.map_err(|error| failure("deleting file", &path, error))?;
    Ok(None)
}

fn list(root: &Root, name: &str) -> Result<Option<Invoked>> {
    let path = root.inside(name)?;
    let found = fs::metadata(&path).map_err(|error| failure("getting stats for path", &path, error))?;
    if !found.is_dir() {
        let text = "unable to list files as the file specified is not a directory";
        return Err(Error::invalid_request(format!("{text}: {}", path.display())));
    }
    let mut files = Vec::new();
    walk(&path, &mut files)?;
    let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    if files.is_empty() {
        return json(&serde_json::Value::Null);
    }
    json(&serde_json::json!(files))
}

/// All entries except folders, by name.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |error| failure("listing files in the directory", folder, error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().map_err(failed)?.is_dir() {
            walk(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[async_trait]
impl OutputBinding for LocalStorage {
    fn operations(&self) -> Vec<&str> {
        OPERATIONS.to_vec()
    }

    async fn invoke(&self, call: &Invoke) -> Result<Option<Invoked>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::closed().of(&self.component));
        }
        let name = call.metadata.get(FILE_NAME).cloned().unwrap_or_default();
        let (root, data) = (self.root.clone(), call.data.clone());
        let operation = call.operation.clone();
        let work = self.operations.spawn_blocking(move || match operation.as_str() {
            "create" if name.is_empty() => create(&root, &Uuid::new_v4().to_string(), &data),
            "create" => create(&root, &name, &data),
            "get" => get(&root, &name),
            "delete" => delete(&root, &name),
            "list" => list(&root, &name),
            other => Err(Error::unsupported(format!("unsupported operation {other}"))),
        });
        let done = work.await;
        let done = done.map_err(|error| Error::new(Kind::Internal, "local storage").because(error));
        done.and_then(|done| done)
            .map_err(|error| error.of(&self.component))
    }

    async fn ping(&self) -> Result<()> {
        let path = self.root.path();
        match tokio::fs::metadata(path).await {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => Err(Error::new(
                Kind::Unavailable,
                format!("rootPath {} is not a folder", path.display()),
            )),
            Err(error) => Err(failure("getting stats for path", path, error)),
        }
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.operations.close();
        self.operations.wait().await;
    }
}
