//! Publishes a set of new CA files in one atomic step.
//!
//! All files are first staged in one hidden file. Giving it its name publishes them: before that no CA
//! exists, afterwards each start writes the files that are still missing. The process may be killed at any
//! point.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{File, MaterialError, MaterialStore, Paths, draft, folder, link, read, read_at, write};

const LOG: &str = "dapr.sentry.ca";
/// Name of the hidden file in the credentials folder.
const NAME: &str = ".new-ca.json";
/// Description of the file, for errors.
const TITLE: &str = "new files of the CA";

/// Files and their contents, in write order.
#[derive(Serialize, Deserialize)]
struct Staged(Vec<(File, String)>);

impl Drop for Staged {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|(_, contents)| contents.zeroize());
    }
}

fn path(paths: &Paths) -> PathBuf {
    folder(&paths.rotation).join(NAME)
}

/// Publishes new files. Existing files are never replaced, except the record.
pub(super) fn create(paths: &Paths, files: &[(File, &[u8])]) -> Result<(), MaterialError> {
    stage(paths, files)?;
    match place(paths)? {
        true => Ok(()),
        false => Err(unwritten(&path(paths), io::ErrorKind::AlreadyExists)),
    }
}

/// Completes an interrupted publication and removes left-over drafts.
pub(super) fn recover(paths: &Paths) -> Result<(), MaterialError> {
    let hidden = path(paths);
    let places = File::ALL.iter().map(|file| paths.of(*file));
    for draft in places.chain([hidden.as_path()]).map(draft) {
        if remove(&draft)? {
            tracing::warn!(target: LOG, "removed {}, left by an interrupted write", draft.display());
        }
    }
    if !hidden.exists() {
        return Ok(());
    }
    match place(paths)? {
        true => tracing::warn!(target: LOG, "completed the files of an interrupted start"),
        false => tracing::warn!(
            target: LOG,
            "removed {} of an interrupted start: other files have taken the place of its files",
            hidden.display()
        ),
    }
    Ok(())
}

/// Stages the files; once this returns, they are published.
fn stage(paths: &Paths, files: &[(File, &[u8])]) -> Result<(), MaterialError> {
    let path = path(paths);
    let texts = files.iter().map(|(file, contents)| {
        let text =
            std::str::from_utf8(contents).map_err(|error| unwritten(&path, io::Error::other(error)))?;
        Ok((*file, text.to_owned()))
    });
    let staged = Staged(texts.collect::<Result<_, MaterialError>>()?);
    let text = serde_json::to_vec(&staged).map_err(|error| unwritten(&path, error))?;
    write(TITLE, &path, &Zeroizing::new(text), link)
}

/// Writes the missing staged files and ends the staging. Returns `false` and writes none if one of the paths
/// has another file, or a file cannot be read.
fn place(paths: &Paths) -> Result<bool, MaterialError> {
    let hidden = path(paths);
    let text = read_at(TITLE, &hidden)?.map(Zeroizing::new).unwrap_or_default();
    let staged: Option<Staged> = serde_json::from_slice(&text).ok();
    let missing = match &staged {
        Some(staged) => missing(paths, staged)?,
        None => None,
    };
    for (file, contents) in missing.iter().flatten() {
        match file {
            // The record of an earlier CA is stale.
            File::Rotation => paths.replace(*file, contents.as_bytes())?,
            _ => write(file.title(), paths.of(*file), contents.as_bytes(), link)?,
        }
    }
    remove(&hidden)?;
    Ok(missing.is_some())
}

/// The staged files that are still missing; `None` if one of the paths has another file.
fn missing<'a>(paths: &Paths, staged: &'a Staged) -> Result<Option<Vec<&'a (File, String)>>, MaterialError> {
    let mut missing = Vec::new();
    for entry @ (file, contents) in &staged.0 {
        match read(paths, *file)?.map(Zeroizing::new) {
            Some(found) if *found == contents.as_bytes() => {}
            Some(_) if *file != File::Rotation => return Ok(None),
            _ => missing.push(entry),
        }
    }
    Ok(Some(missing))
}

/// Removes a file; `false` if it did not exist.
fn remove(path: &Path) -> Result<bool, MaterialError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(unwritten(path, source)),
    }
}

fn unwritten(path: &Path, source: impl Into<io::Error>) -> MaterialError {
    MaterialError::Write {
        title: TITLE,
        path: path.to_owned(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(File, &[u8]); 4] = [
        (File::IssuerKey, b"key"),
        (File::Issuer, b"issuer"),
        (File::Rotation, b"record"),
        (File::Root, b"root"),
    ];

    fn paths(folder: &Path) -> Paths {
        Paths {
            root: folder.join("ca.crt"),
            issuer: folder.join("issuer.crt"),
            issuer_key: folder.join("issuer.key"),
            jwt_key: folder.join("jwt.key"),
            jwks: folder.join("jwks.json"),
            rotation: folder.join("ca-rotation.json"),
        }
    }

    fn count(folder: &tempfile::TempDir) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn recovers_after_kill_between_files() {
        for placed in 0..=FILES.len() {
            let folder = tempfile::tempdir().unwrap();
            let paths = paths(folder.path());
            stage(&paths, &FILES).unwrap();
            for (file, contents) in &FILES[..placed] {
                std::fs::write(paths.of(*file), contents).unwrap();
            }
            if let Some((file, _)) = FILES.get(placed) {
                std::fs::write(draft(paths.of(*file)), "half").unwrap();
            }
            recover(&paths).unwrap();
            for (file, contents) in FILES {
                let found = read(&paths, file).unwrap();
                assert_eq!(found.as_deref(), Some(contents), "{file:?} after {placed}");
            }
            assert_eq!(count(&folder), FILES.len(), "no leftovers");
        }
    }

    #[test]
    fn kill_before_publication_leaves_no_ca() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        std::fs::write(draft(&path(&paths)), "half").unwrap();
        recover(&paths).unwrap();
        assert_eq!(count(&folder), 0);
    }

    #[test]
    fn keeps_files_of_another_ca() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        stage(&paths, &FILES).unwrap();
        std::fs::write(&paths.issuer, "of another").unwrap();
        recover(&paths).unwrap();
        assert_eq!(
            read(&paths, File::Issuer).unwrap().as_deref(),
            Some(&b"of another"[..])
        );
        assert_eq!(count(&folder), 1);
        let error = create(&paths, &FILES).unwrap_err().to_string();
        assert!(error.contains(NAME), "{error}");
        assert_eq!(count(&folder), 1);
    }

    #[test]
    fn replaces_stale_record() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        std::fs::write(&paths.rotation, "stale").unwrap();
        create(&paths, &FILES).unwrap();
        assert_eq!(
            read(&paths, File::Rotation).unwrap().as_deref(),
            Some(&b"record"[..])
        );
    }
}
