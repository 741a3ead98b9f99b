//! One thing wrong with a file, where, and what to do about it.

use std::path::{Path, PathBuf};

use outrigger_nearest::nearest;

use crate::yaml;

/// Entries of a folder that are looked at for a name.
const LISTED: usize = 1000;

/// One thing wrong with a file or folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what} ({remedy})", self.place())]
pub struct Problem {
    /// The file or folder.
    pub file: PathBuf,
    /// 1-based; 0 = the whole file.
    pub line: usize,
    /// The reason, for the message.
    pub what: String,
    /// The remedy, for the message.
    pub remedy: String,
    /// Something does not run because of it: log it as an error, not as a warning.
    pub error: bool,
}

impl Problem {
    pub(crate) fn new(
        file: &Path,
        line: usize,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        Problem {
            file: file.to_owned(),
            line,
            what: what.into(),
            remedy: remedy.into(),
            error: false,
        }
    }

    pub(crate) fn into_error(self) -> Problem {
        Problem { error: true, ..self }
    }

    pub(crate) fn from_yaml(file: &Path, error: &yaml::Error, remedy: &str) -> Problem {
        Problem::new(file, error.line, error.to_string(), remedy)
    }

    /// The file, and the line where there is one.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.display().to_string(),
            line => format!("{}:{line}", self.file.display()),
        }
    }
}

/// What is wrong, a line per problem and nothing else: the text tools match in the last log line. Places and remedies
/// belong into the log before.
pub fn summary(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|p| p.what.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

/// What to put before the remedy for a path that cannot be read: `did you mean PATH? ` where it does not exist and its
/// folder has a name that is near; that it is a link, where it leads nowhere; else empty.
pub(crate) fn near_path(path: &Path) -> String {
    let (Some(name), false) = (path.file_name().and_then(|name| name.to_str()), path.exists()) else {
        return String::new();
    };
    if let Ok(target) = path.read_link() {
        let target = target.display();
        return format!("it is a link to {target}, which does not exist: correct the link, or ");
    }
    let parent = path.parent().unwrap_or_else(|| Path::new(""));
    let folder = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let entries = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .take(LISTED)
        .flatten();
    let names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        // It is there where its attributes cannot be read.
        .filter(|other| other != name)
        .collect();
    match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}? ", parent.join(near).display()),
        None => String::new(),
    }
}
