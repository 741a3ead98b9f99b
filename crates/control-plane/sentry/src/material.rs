//! Reads and writes the authority's files, and reports problems with them.

mod staged;

use std::{
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Paths of the authority's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Root certificates, PEM.
    pub root: PathBuf,
    /// Issuer certificate chain, PEM.
    pub issuer: PathBuf,
    /// Private key of the issuer, PEM.
    pub issuer_key: PathBuf,
    /// Private key that signs JWTs, PEM.
    pub jwt_key: PathBuf,
    /// Public keys that verify JWTs, a JWK set.
    pub jwks: PathBuf,
    /// The record of the CA's rotation, JSON.
    pub rotation: PathBuf,
}

impl Paths {
    /// Completes an interrupted write of an earlier start and removes its drafts. Blocking.
    ///
    /// # Errors
    /// [`MaterialError`].
    pub(crate) fn recover(&self) -> Result<(), MaterialError> {
        staged::recover(self)
    }

    /// The path of one file.
    pub fn of(&self, file: File) -> &Path {
        match file {
            File::Root => &self.root,
            File::Issuer => &self.issuer,
            File::IssuerKey => &self.issuer_key,
            File::JwtKey => &self.jwt_key,
            File::Jwks => &self.jwks,
            File::Rotation => &self.rotation,
        }
    }
}

/// The folder of a file.
pub(crate) fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// One of the authority's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum File {
    /// Root certificates.
    Root,
    /// Issuer certificate chain.
    Issuer,
    /// Private key of the issuer.
    IssuerKey,
    /// Private key that signs JWTs.
    JwtKey,
    /// Public keys that verify JWTs.
    Jwks,
    /// The record of the CA's rotation.
    Rotation,
}

impl File {
    pub(crate) const ALL: [Self; 6] = [
        Self::Root,
        Self::Issuer,
        Self::IssuerKey,
        Self::JwtKey,
        Self::Jwks,
        Self::Rotation,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Root => "root certificates",
            Self::Issuer => "issuer certificate",
            Self::IssuerKey => "issuer key",
            Self::JwtKey => "JWT signing key",
            Self::Jwks => "JWKS",
            Self::Rotation => "record of the CA's rotation",
        }
    }

    pub(crate) fn fault(self, problem: impl Display, remedy: &'static str) -> Fault {
        Fault {
            file: self,
            problem: problem.to_string(),
            remedy,
        }
    }
}

/// A problem with the contents of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub file: File,
    pub problem: String,
    pub remedy: &'static str,
}

impl Fault {
    pub(crate) fn at(self, paths: &Paths) -> MaterialError {
        let remedy = if self.remedy.is_empty() {
            String::new()
        } else {
            format!(". {}", self.remedy)
        };
        MaterialError::Invalid {
            title: self.file.title(),
            path: paths.of(self.file).to_owned(),
            problem: self.problem,
            remedy,
        }
    }
}

/// Why the authority's files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// The contents of a file are not valid.
    #[error("{title} in {}: {problem}{remedy}", path.display())]
    Invalid {
        /// Description of the file.
        title: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The reason, for the message.
        problem: String,
        /// The remedy as a sentence, or empty.
        remedy: String,
    },
    /// A file exists but cannot be read.
    #[error("{title}: cannot read {}", path.display())]
    Read {
        /// Description of the file.
        title: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(
        "{title}: cannot write {}; the folder must exist and be writable, or contain your own CA material",
        path.display()
    )]
    Write {
        /// Description of the file.
        title: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Some files of a set are missing; generated ones would not match the rest.
    #[error(
        "{} is missing while other files of the CA exist: replacing them would invalidate all certificates that they \
         signed. Either restore it from a backup, or move all of them away ({}) to start with a new CA",
        missing.display(), joined(found)
    )]
    Incomplete {
        /// The missing file.
        missing: PathBuf,
        /// The existing files.
        found: Vec<PathBuf>,
    },
    /// Files that were loaded at start are missing now.
    #[error(
        "{} no longer exist: restore them from a backup, or restart sentry with a new CA (no process trusts it yet)",
        joined(missing)
    )]
    Gone {
        /// The missing files.
        missing: Vec<PathBuf>,
    },
}

fn joined(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// A store for the authority's files.
pub(crate) trait MaterialStore {
    /// Reads a file; `None` if it does not exist.
    fn read(&self, file: File) -> Result<Option<Vec<u8>>, MaterialError>;
    /// Writes new files that belong together, all or none, in this order. Existing files are never replaced,
    /// except the record.
    fn create(&self, files: &[(File, &[u8])]) -> Result<(), MaterialError>;
    /// Writes a file, replacing an existing one.
    fn replace(&self, file: File, contents: &[u8]) -> Result<(), MaterialError>;
}

impl MaterialStore for Paths {
    fn read(&self, file: File) -> Result<Option<Vec<u8>>, MaterialError> {
        read(self, file)
    }

    fn create(&self, files: &[(File, &[u8])]) -> Result<(), MaterialError> {
        staged::create(self, files)
    }

    fn replace(&self, file: File, contents: &[u8]) -> Result<(), MaterialError> {
        write(file.title(), self.of(file), contents, |draft, path| {
            std::fs::rename(draft, path)
        })
    }
}

/// Reads a file; `None` if it does not exist.
fn read(paths: &Paths, file: File) -> Result<Option<Vec<u8>>, MaterialError> {
    read_at(file.title(), paths.of(file))
}

fn read_at(title: &'static str, path: &Path) -> Result<Option<Vec<u8>>, MaterialError> {
    let fail = |source| MaterialError::Read {
        title,
        path: path.to_owned(),
        source,
    };
    match outrigger_files::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(fail),
    }
}

/// The temporary path for writing a file.
fn draft(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    folder(path).join(name)
}

/// Links a draft to its path. Unlike a rename, this does not replace an existing file.
fn link(draft: &Path, path: &Path) -> io::Result<()> {
    std::fs::hard_link(draft, path)?;
    std::fs::remove_file(draft)
}

/// Writes a whole file, readable by its owner only. `place` moves the draft to its path.
fn write(
    title: &'static str,
    path: &Path,
    contents: &[u8],
    place: impl Fn(&Path, &Path) -> io::Result<()>,
) -> Result<(), MaterialError> {
    let draft = draft(path);
    let written = || {
        let mut handle = private_file(&draft)?;
        handle.write_all(contents)?;
        handle.sync_all()?;
        place(&draft, path)?;
        // Syncs the folder, so that the name survives a crash; the order of several files relies on it.
        std::fs::File::open(folder(path))?.sync_all()
    };
    written().map_err(|source| {
        // Best effort: the draft may not exist.
        let _ = std::fs::remove_file(&draft);
        MaterialError::Write {
            title,
            path: path.to_owned(),
            source,
        }
    })
}

fn private_file(path: &Path) -> io::Result<std::fs::File> {
    // A draft left by a crash could have another mode.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}
