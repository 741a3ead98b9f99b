//! An error in a file with its location and remedy.

use std::path::{Path, PathBuf};

use outrigger_nearest::nearest;

use crate::yaml;

/// Maximum number of directory entries searched for a similar name.
const LISTED: usize = 1000;

/// An error in a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what} ({remedy})", self.place())]
pub struct Problem {
    /// The file or directory.
    pub file: PathBuf,
    /// 1-based; 0 means the whole file.
    pub line: usize,
    /// The problem.
    pub what: String,
    /// The remedy.
    pub remedy: String,
    /// Whether something does not run because of it; logged as an error instead of a warning.
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

    /// The file, and the line if known.
    pub fn place(&self) -> String {
        match self.line {
            0 => self.file.display().to_string(),
            line => format!("{}:{line}", self.file.display()),
        }
    }
}

/// The problems without locations, one per line: tools match this text in the last log line. Log the
/// locations and remedies before.
pub fn summary(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|p| p.what.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}

/// A hint to put before the remedy for an unreadable path. `did you mean PATH? ` if it does not exist and
/// there is a similar name; a note about a dangling link; otherwise empty.
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
        // Skips the path itself, which exists with unreadable attributes.
        .filter(|other| other != name)
        .collect();
    match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {}? ", parent.join(near).display()),
        None => String::new(),
    }
}
