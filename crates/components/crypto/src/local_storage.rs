//! `crypto.dapr.localstorage`: a folder with one file per key, read on each use.

use std::{
    io::ErrorKind,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, CryptoProvider, Entry, Error, Kind, Metadata, Result, catalog::Version, crypto::Secret,
};
use outrigger_files::read_async;

use super::{
    key::{Format, Key},
    local::{KeySource, Local},
};

pub(super) fn add(catalog: &mut Catalog) {
    catalog.crypto.add(Entry::new(
        &["dapr.localstorage"],
        Version::Only,
        |setup| async move {
            let folder = Folder::open(&setup.metadata).await?;
            Ok(Arc::new(Local(folder)) as Arc<dyn CryptoProvider>)
        },
    ));
}

struct Folder {
    path: PathBuf,
}

impl Folder {
    async fn open(metadata: &Metadata) -> Result<Self> {
        let path = metadata.required(&["path"])?;
        let failed =
            |what: &str| Error::new(Kind::Configuration, format!("path '{path}' {what}")).about("path");
        // Names are checked against the canonical path of the folder.
        let real = tokio::fs::canonicalize(path)
            .await
            .map_err(|error| failed("cannot be read").because(error))?;
        let kind = tokio::fs::metadata(&real)
            .await
            .map_err(|error| failed("cannot be read").because(error))?;
        if !kind.is_dir() {
            return Err(failed("is not a directory"));
        }
        Ok(Self { path: real })
    }

    /// The file of a key. Names cannot leave the folder; symbolic links placed by the administrator can.
    fn file(&self, key: &str) -> Result<PathBuf> {
        if key.contains("..") {
            return Err(Error::invalid_request("invalid key path: cannot contain '..'"));
        }
        let name = Path::new(key.trim_start_matches('/'));
        let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || name.as_os_str().is_empty() || key.contains('\0') {
            return Err(Error::invalid_request(format!(
                "invalid key path {key:?}: it must name a file in the folder"
            )));
        }
        Ok(self.path.join(name))
    }
}

#[async_trait]
impl KeySource for Folder {
    async fn key(&self, name: &str) -> Result<Arc<Key>> {
        let path = self.file(name)?;
        let text = read_async(&path).await.map_err(|error| {
            let kind = match error.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory => Kind::NotFound,
                ErrorKind::PermissionDenied => Kind::Denied,
                _ => Kind::Internal,
            };
            Error::new(kind, format!("failed to load key '{name}'")).because(error)
        })?;
        let text = Secret::new(text);
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        let format = match extension.to_str() {
            Some("json") => Format::Jwk,
            Some("pem") => Format::Pem,
            _ => Format::Unknown,
        };
        let key = Key::parse(&text, format);
        key.map(Arc::new)
            .map_err(|error| Error::new(error.kind(), format!("failed to parse key '{name}'")).because(error))
    }
}
