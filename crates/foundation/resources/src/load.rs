//! Loading of directories with resource files.
//!
//! An invalid document is skipped and the others still load. An unreadable directory, or two resources of
//! the same kind and name, is a startup error.

mod document;
mod kinds;
mod split;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::meta::{Source, in_scope};
use crate::problem::{Problem, near_path};

pub(crate) use document::{Broken, Document};
pub(crate) use kinds::Read;
pub use kinds::{Duplicates, FromJson, Kind, Loaded, Resource};

/// The `apiVersion` of most kinds.
pub(crate) const V1: &str = "dapr.io/v1alpha1";
/// The newer `apiVersion` of subscriptions.
pub(crate) const V2: &str = "dapr.io/v2alpha1";

/// Input of [`folders`].
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Directories in order; not searched recursively.
    pub paths: &'a [PathBuf],
    /// Kinds to load; others are ignored.
    pub kinds: &'a [Kind],
    /// `NAMESPACE` as set; `None` or empty loads components and endpoints of every namespace.
    pub namespace: Option<&'a str>,
    /// The app whose scopes apply.
    pub app_id: &'a str,
}

impl<'a> Request<'a> {
    /// For resources from other sources: all kinds, every namespace.
    fn without_folders(app_id: &'a str) -> Self {
        Self {
            paths: &[],
            kinds: Kind::ALL,
            namespace: None,
            app_id,
        }
    }

    /// Only resiliency policies may come from missing directories.
    fn needs_folder(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != Kind::Resiliency)
    }
}

/// Loads the resources of an app. `Err` has all startup errors.
pub fn folders(request: &Request<'_>) -> Result<Loaded, Vec<Problem>> {
    match folders_every(request) {
        (loaded, errors) if errors.is_empty() => Ok(loaded),
        (_, errors) => Err(errors),
    }
}

/// Like [`folders`], but also returns the valid resources despite startup errors, for further validation.
pub fn folders_every(request: &Request<'_>) -> (Loaded, Vec<Problem>) {
    let mut loading = Loading::new(request);
    for folder in request.paths {
        match files(folder) {
            Ok(files) => files.iter().for_each(|file| loading.file(file)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !request.needs_folder() => {}
            Err(e) => loading.errors.push(Problem::new(
                folder,
                0,
                format!("cannot read resources folder {}: {e}", folder.display()),
                match folder.is_file() {
                    true => "it is a file: give --resources-path the folder that it is in".to_owned(),
                    false => near_path(folder) + "create the folder or correct --resources-path",
                },
            )),
        }
    }
    (loading.loaded, loading.errors)
}

/// Parses a text like a file of a directory, for an app; for tests and tools.
pub fn text(text: &str, app_id: &str) -> Result<Loaded, Vec<Problem>> {
    let request = Request::without_folders(app_id);
    let mut loading = Loading::new(&request);
    loading.documents(Path::new(""), text);
    loading.finish()
}

/// Reported location of the operator's resources.
const OPERATOR: &str = "operator";

/// Parses the operator's JSON resources for an app. An invalid one is a warning, and marks the source as
/// `broken`.
pub fn objects(
    objects: impl IntoIterator<Item = (Kind, impl AsRef<[u8]>)>,
    app_id: &str,
) -> Result<Loaded, Vec<Problem>> {
    let request = Request::without_folders(app_id);
    let mut loading = Loading::new(&request);
    for (kind, json) in objects {
        if let Err(error) = loading.json(kind, json.as_ref(), Source::new(OPERATOR, 0)) {
            let what = format!("{}: {error}", kind.name());
            let remedy = "correct the resource in the cluster; it is not loaded";
            let problem = Problem::new(Path::new(OPERATOR), 0, what, remedy);
            loading.loaded.warnings.push(problem.into_error());
            loading.loaded.broken.push(OPERATOR.into());
            loading.unreadable(|one| one == kind, &Source::new(OPERATOR, 0));
        }
    }
    loading.finish()
}

/// The files of a directory by name, without subdirectories.
fn files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            files.push(entry.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The text of a file.
pub(crate) fn read(file: &Path) -> Result<String, Problem> {
    let unreadable = |e: std::io::Error| {
        Problem::new(
            file,
            0,
            format!("cannot read file {}: {e}", file.display()),
            near_path(file) + "check path and permissions",
        )
    };
    let bytes = match outrigger_files::read(file) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let remedy = "remove it, or put a file in its place";
            return Err(Problem::new(
                file,
                0,
                format!("cannot read file: {error}"),
                remedy,
            ));
        }
        read => read.map_err(unreadable)?,
    };
    // UTF-16 of Latin text is UTF-8 with zero bytes.
    let text = String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
        .ok_or_else(|| Problem::new(file, 0, "file is not UTF-8 text", "save the file as UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

struct Loading<'a> {
    request: &'a Request<'a>,
    loaded: Loaded,
    errors: Vec<Problem>,
    /// Names in use, by kind and name.
    names: HashMap<(Kind, String), (String, Source)>,
}

impl<'a> Loading<'a> {
    fn new(request: &'a Request<'a>) -> Loading<'a> {
        Loading {
            request,
            loaded: Loaded::default(),
            errors: Vec::new(),
            names: HashMap::new(),
        }
    }

    fn finish(self) -> Result<Loaded, Vec<Problem>> {
        if self.errors.is_empty() {
            Ok(self.loaded)
        } else {
            Err(self.errors)
        }
    }

    fn file(&mut self, file: &Path) {
        let yaml = file
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("yaml") || e.eq_ignore_ascii_case("yml"));
        if !yaml {
            let what = "a non-YAML file was detected, it will not be loaded";
            let remedy = "name resource files *.yaml or *.yml and keep other files elsewhere";
            self.loaded.warnings.push(Problem::new(file, 0, what, remedy));
            return;
        }
        match read(file) {
            Ok(text) => self.documents(file, &text),
            Err(problem) => {
                self.loaded.warnings.push(problem.into_error());
                self.loaded.broken.push(file.to_owned());
                self.unreadable(|_| true, &Source::new(file, 0));
            }
        }
    }

    fn documents(&mut self, file: &Path, text: &str) {
        let mut is_empty = true;
        for (index, chunk) in split::documents(text).enumerate() {
            let mut document = match Document::parse(file, index, &chunk) {
                Ok(Some(document)) => document,
                Ok(None) => continue,
                Err(problem) => {
                    self.loaded.warnings.push(problem);
                    self.loaded.broken.push(file.to_owned());
                    self.unreadable(
                        |kind| chunk.text.contains(kind.name()),
                        &Source::new(file, chunk.line),
                    );
                    continue;
                }
            };
            is_empty &= document.text("kind").is_none();
            let read = self.document(&mut document, chunk.text);
            self.loaded.warnings.append(&mut document.warnings);
            if let Err(Broken) = read {
                self.loaded.broken.push(file.to_owned());
            }
        }
        if is_empty {
            self.loaded.empty.push(file.to_owned());
        }
    }

    /// Reads a document of a requested kind; errors become warnings of the document.
    fn document(&mut self, document: &mut Document<'_>, text: &str) -> Result<(), Broken> {
        let Some(named) = document.text("kind") else {
            document.warn_missing_kind();
            self.unreadable(|kind| text.contains(kind.name()), &document.source());
            return Ok(());
        };
        let api = document.text("apiVersion").unwrap_or_default();
        match Kind::ALL.iter().find(|kind| kind.name() == named) {
            Some(kind) if self.request.kinds.contains(kind) => {
                let read = self.read(*kind, document, &api);
                if read.is_err() {
                    self.unreadable(|one| one == *kind, &document.source());
                }
                read
            }
            Some(_) => Ok(()),
            None => {
                if let Some(meant) = document.check_kind(&named, &api) {
                    self.unreadable(|kind| kind.name() == meant, &document.source());
                }
                Ok(())
            }
        }
    }

    fn accept<R: Resource + Read>(&mut self, resource: R) {
        let is_ours = match R::DUPLICATES {
            Duplicates::Refused => self.admit(&resource),
            Duplicates::LastCounts | Duplicates::Kept => self.is_in_scope(&resource),
        };
        if !is_ours {
            return;
        }
        self.loaded.warnings.extend(resource.problems());
        let all = R::of_mut(&mut self.loaded);
        if R::DUPLICATES == Duplicates::LastCounts {
            all.retain(|known| known.name() != resource.name());
        }
        all.push(resource);
    }

    fn is_in_scope<R: Resource>(&mut self, resource: &R) -> bool {
        let ours = in_scope(resource.scopes(), self.request.app_id);
        if !ours {
            let scopes = resource.scopes().join(", ");
            let app = self.request.app_id;
            self.leave_out(resource, format!("its scopes are {scopes}, and not {app}"));
        }
        ours
    }

    fn leave_out<R: Resource>(&mut self, resource: &R, why: String) {
        let (kind, name, source) = (R::KIND.name(), resource.log_name(), resource.source());
        let what = format!("{kind} {name}: {why}");
        let remedy = "change scopes or namespace if this app is to have it";
        let problem = Problem::new(&source.file, source.line, what, remedy);
        self.loaded.left_out.push(problem);
    }

    /// Checks namespace, then uniqueness, then scope.
    fn admit<R: Resource>(&mut self, resource: &R) -> bool {
        let (ours, namespace) = (self.request.namespace.unwrap_or(""), resource.namespace());
        if !ours.is_empty() && !namespace.is_empty() && ours != namespace {
            self.leave_out(resource, format!("its namespace is {namespace}, and not {ours}"));
            return false;
        }
        let key = (R::KIND, resource.name().to_owned());
        let (log_name, source) = (resource.log_name(), resource.source());
        if let Some((existing, place)) = self.names.get(&key) {
            let kind = R::KIND.name();
            let what = format!("duplicate definition of {kind} name {log_name} with existing {existing}");
            let remedy = format!(
                "the other is at {place}: rename or remove one, or give them other scopes or namespaces"
            );
            self.errors
                .push(Problem::new(&source.file, source.line, what, remedy));
            return false;
        }
        if !self.is_in_scope(resource) {
            return false;
        }
        self.names.insert(key, (log_name, source.clone()));
        true
    }
}

#[cfg(test)]
mod tests;
