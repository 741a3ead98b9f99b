//! Sections of the pages in `docs/` that are generated from the code. Tests compare them, and rewrite them
//! if the variable `UPDATE_DOCS` is set.
//!
//! A generated section is between the lines `<!-- made from the code: NAME -->` and `<!-- end -->`.

pub mod settings;

use std::path::{Path, PathBuf};

/// Makes the tests rewrite the sections.
const UPDATE: &str = "UPDATE_DOCS";
const END: &str = "<!-- end -->";

/// A page of `docs/`.
pub struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    /// Reads a page such as `flags.md`.
    ///
    /// # Panics
    /// If the page does not exist.
    pub fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../docs")
            .join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("docs/{name}: {error}"));
        Self { path, text }
    }

    /// Reads all pages in a folder such as `reference/components`, recursively.
    ///
    /// # Panics
    /// If the folder does not exist.
    pub fn read_folder(name: &str) -> Vec<Self> {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs");
        let entries =
            std::fs::read_dir(docs.join(name)).unwrap_or_else(|error| panic!("docs/{name}: {error}"));
        let mut pages = Vec::new();
        for entry in entries {
            let entry = entry.unwrap_or_else(|error| panic!("docs/{name}: {error}"));
            let path = format!("{name}/{}", entry.file_name().display());
            if entry.path().is_dir() {
                pages.extend(Self::read_folder(&path));
            } else if path.ends_with(".md") {
                pages.push(Self::read(&path));
            }
        }
        pages
    }

    /// The complete text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Compares the section `name` with the generated text, or rewrites it.
    ///
    /// # Panics
    /// If they differ, or the page has no such section.
    pub fn check(self, name: &str, made: &str) {
        let (before, held, after) = split(&self.text, name)
            .unwrap_or_else(|| panic!("{} has no section {name}", self.path.display()));
        if held.trim() == made.trim() {
            return;
        }
        let shown = self.path.display();
        if std::env::var_os(UPDATE).is_none() {
            panic!("{shown}: section {name} is outdated; run `{UPDATE}=1 cargo test`:\n{made}");
        }
        let text = format!("{before}\n{}\n{after}", made.trim());
        if let Err(error) = std::fs::write(&self.path, text) {
            panic!("{shown}: {error}");
        }
    }
}

/// The text before, in and after the section `name`.
fn split<'t>(text: &'t str, name: &str) -> Option<(&'t str, &'t str, &'t str)> {
    let begin = format!("<!-- made from the code: {name} -->");
    let at = text.find(&begin)? + begin.len();
    let end = at + text.get(at..)?.find(END)?;
    Some((text.get(..at)?, text.get(at..end)?, text.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_page_at_markers() {
        let text = "a\n<!-- made from the code: x -->\nold\n<!-- end -->\nb";
        let (before, held, after) = split(text, "x").unwrap();
        assert!(before.ends_with("x -->") && after.starts_with(END));
        assert_eq!(held.trim(), "old");
        assert!(split(text, "y").is_none());
    }
}
