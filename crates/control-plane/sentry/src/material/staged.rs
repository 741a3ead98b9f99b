//! New files of the CA that belong together, published in one step.
//!
//! All of them are staged in one hidden file first. Its name is the step that publishes them: before it exists there is
//! no CA, afterwards each start writes the files that are still missing. A process may be killed at any point.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{File, MaterialError, MaterialStore, Paths, draft, folder, link, read, read_at, write};

const LOG: &str = "dapr.sentry.ca";
/// Name of the hidden file, in the folder of the credentials.
const NAME: &str = ".new-ca.json";
/// What it holds, for errors.
const TITLE: &str = "new files of the CA";

/// Files with their contents, in the order in which they are written.
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

/// Publishes new files; no file that exists is replaced, except for the record.
pub(super) fn create(paths: &Paths, files: &[(File, &[u8])]) -> Result<(), MaterialError> {
    stage(paths, files)?;
    match place(paths)? {
        true => Ok(()),
        false => Err(unwritten(&path(paths), io::ErrorKind::AlreadyExists)),
    }
}

/// Finishes what an earlier process was killed in, and removes the drafts that it left.
pub(super) fn recover(paths: &Paths) -> Result<(), MaterialError> {
    let hidden = path(paths);
    let places = File::ALL.iter().map(|file| paths.of(*file));
    for draft in places.chain([hidden.as_path()]).map(draft) {
        if remove(&draft)? {
            tracing::warn!(target: LOG, "removed {}, left by a write that did not finish", draft.display());
        }
    }
    if !hidden.exists() {
        return Ok(());
    }
    match place(paths)? {
        true => tracing::warn!(target: LOG, "an earlier start did not finish: wrote the rest of its files"),
        false => tracing::warn!(
            target: LOG,
            "removed {}: an earlier start did not finish, and other files are in the place of its files",
            hidden.display()
        ),
    }
    Ok(())
}

/// From here on the files count as made.
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

/// Writes the staged files that are missing, and ends the staging. Where another file is in one of these places, or
/// nothing can be read, none is written: `false`.
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
            // That of a CA that was there before is stale.
            File::Rotation => paths.replace(*file, contents.as_bytes())?,
            _ => write(file.title(), paths.of(*file), contents.as_bytes(), link)?,
        }
    }
    remove(&hidden)?;
    Ok(missing.is_some())
}

/// The staged files that are not in their places yet; `None` when another file is in one of these places.
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

/// Whether there was such a file to remove.
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
    fn a_kill_behind_any_file_is_made_up_for() {
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
    fn a_kill_before_the_step_leaves_no_ca() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths(folder.path());
        std::fs::write(draft(&path(&paths)), "half").unwrap();
        recover(&paths).unwrap();
        assert_eq!(count(&folder), 0);
    }

    #[test]
    fn files_of_another_ca_stay_and_the_staged_ones_go() {
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
    fn the_record_of_a_ca_that_is_gone_is_replaced() {
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
