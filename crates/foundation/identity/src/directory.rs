//! The identity as files, for libraries that read TLS material from disk.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::pem;
use crate::svid::Svid;

/// A path whose content is always complete: a symbolic link to a directory that is replaced, never changed.
///
/// Files: `key.pem`, `cert.pem`, `ca.pem`, and `jwt_svid.token` if there is a JWT.
#[derive(Debug, Clone)]
pub struct IdentityDirectory {
    target: PathBuf,
}

impl IdentityDirectory {
    /// Writes nothing yet. `target` must not exist, or must be a symbolic link.
    pub fn new(target: impl Into<PathBuf>) -> Self {
        Self {
            target: target.into(),
        }
    }

    /// The path for readers.
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Writes a new directory, redirects the link, and removes the previous directory.
    ///
    /// # Errors
    /// Of the file system; the previous contents remain.
    pub fn write(&self, svid: &Svid, trust_anchors: &str) -> io::Result<()> {
        let name = self
            .target
            .file_name()
            .ok_or(io::ErrorKind::InvalidInput)?
            .to_string_lossy()
            .into_owned();
        let base = match self.target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let version = format!("{}-{name}", Timestamp::now().as_nanosecond());
        let folder = base.join(&version);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let previous = fs::read_link(&self.target).ok();
        fill(&folder, svid, trust_anchors)
            .and_then(|()| self.point_at(&version, base))
            .inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
        // Removes only directories of an earlier write. A link created by an operator has a target with
        // another name.
        let made_here = |path: &PathBuf| {
            path.components().count() == 1 && path.to_string_lossy().ends_with(&format!("-{name}"))
        };
        if let Some(previous) = previous.filter(made_here) {
            fs::remove_dir_all(base.join(previous))?;
        }
        Ok(())
    }

    fn point_at(&self, version: &str, base: &Path) -> io::Result<()> {
        let link = base.join(format!("{version}.link"));
        symlink(version, &link)?;
        fs::rename(&link, &self.target).inspect_err(|_| drop(fs::remove_file(&link)))
    }
}

fn fill(folder: &Path, svid: &Svid, trust_anchors: &str) -> io::Result<()> {
    let intermediates_too = svid
        .chain()
        .iter()
        .filter(|certificate| !pem::is_self_signed(certificate));
    put(folder, "key.pem", &pem::encode_private_key(svid.key()))?;
    put(folder, "cert.pem", &pem::encode_certificates(intermediates_too))?;
    put(folder, "ca.pem", trust_anchors)?;
    match svid.jwt() {
        Some(jwt) => put(folder, "jwt_svid.token", jwt.token()),
        None => Ok(()),
    }
}

fn put(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join(name))?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::{Algorithm, Authority};

    #[test]
    fn replaces_files_atomically() {
        let base = tempfile::tempdir().unwrap();
        let directory = IdentityDirectory::new(base.path().join("identity"));
        let authority = Authority::new("td", Algorithm::P256);
        for _ in 0..3 {
            let svid = authority.workload("ns", "app").into_svid();
            directory.write(&svid, &authority.root_pem()).unwrap();
            let read = |name| fs::read(directory.path().join(name)).unwrap();
            let chain = pem::parse_chain(&read("cert.pem")).unwrap();
            assert_eq!(chain, svid.chain());
            let key = pem::parse_private_key(&read("key.pem")).unwrap();
            assert!(pem::key_matches(&key, &chain[0]).unwrap());
            assert_eq!(read("ca.pem"), authority.root_pem().as_bytes());
            assert!(!directory.path().join("jwt_svid.token").exists());
        }
        assert_eq!(
            fs::read_dir(base.path()).unwrap().count(),
            2,
            "the link and one folder"
        );
        let key = fs::metadata(directory.path().join("key.pem")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn existing_directory_is_error() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("identity/full")).unwrap();
        let authority = Authority::new("td", Algorithm::P256);
        let svid = authority.workload("ns", "app").into_svid();
        let directory = IdentityDirectory::new(base.path().join("identity"));
        assert!(directory.write(&svid, &authority.root_pem()).is_err());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 1);
    }
}
