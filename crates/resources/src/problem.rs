//! One thing wrong with a file, where, and what to do about it.

use std::path::{Path, PathBuf};

use crate::yaml;

/// One thing wrong with a file or folder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what} ({remedy})", self.place())]
pub struct Problem {
    /// The file or folder.
    pub file: PathBuf,
    /// 1-based; 0 = the whole file.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
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
        }
    }

    pub(crate) fn from_yaml(file: &Path, error: &yaml::Error, remedy: &str) -> Problem {
        Problem::new(file, error.line, error.to_string(), remedy)
    }

    fn place(&self) -> String {
        match self.line {
            0 => self.file.display().to_string(),
            line => format!("{}:{line}", self.file.display()),
        }
    }
}

/// What is wrong, a line per problem and without places: the text tools match in the last log line.
pub fn summary(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|p| p.what.as_str())
        .collect::<Vec<_>>()
        .join("\n")
}
