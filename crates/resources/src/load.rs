//! Reads folders of resource files.
//!
//! A document that cannot be read is a warning and the others still load; a folder that cannot be read,
//! or two resources of one kind and name, end the start.

mod document;
mod json;
mod split;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::component::Component;
use crate::configuration::MAX_FILE_SIZE;
use crate::http_endpoint::HttpEndpoint;
use crate::meta::{Source, in_scope};
use crate::problem::{Problem, near_path};
use crate::resiliency::Resiliency;
use crate::subscription::Subscription;

use document::Resource;
pub use json::FromJson;

/// The kinds a sidecar loads from folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `Component`.
    Component,
    /// `HTTPEndpoint`.
    HttpEndpoint,
    /// `Subscription`, both versions.
    Subscription,
    /// `Resiliency`.
    Resiliency,
}

/// A set of [`Kind`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kinds {
    /// Load components.
    pub components: bool,
    /// Load HTTP endpoints.
    pub http_endpoints: bool,
    /// Load subscriptions.
    pub subscriptions: bool,
    /// Load resiliency policies.
    pub resiliency: bool,
}

impl Kinds {
    /// Everything.
    pub const ALL: Kinds = Kinds {
        components: true,
        http_endpoints: true,
        subscriptions: true,
        resiliency: true,
    };

    /// Whether a kind is in the set.
    pub fn has(self, kind: Kind) -> bool {
        match kind {
            Kind::Component => self.components,
            Kind::HttpEndpoint => self.http_endpoints,
            Kind::Subscription => self.subscriptions,
            Kind::Resiliency => self.resiliency,
        }
    }

    /// Only resiliency policies may come from folders that do not exist.
    fn needs_folder(self) -> bool {
        self.components || self.http_endpoints || self.subscriptions
    }
}

/// What to load, and for whom.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Folders in order; not searched deeper.
    pub paths: &'a [PathBuf],
    /// Kinds wanted; others are ignored.
    pub kinds: Kinds,
    /// `NAMESPACE` as set; `None` or empty = components and endpoints of every namespace.
    pub namespace: Option<&'a str>,
    /// The app whose scopes count.
    pub app_id: &'a str,
}

impl<'a> Request<'a> {
    /// For resources that come another way: all kinds, every namespace.
    fn without_folders(app_id: &'a str) -> Self {
        Self {
            paths: &[],
            kinds: Kinds::ALL,
            namespace: None,
            app_id,
        }
    }
}

/// The resources of a sidecar, in order of folder, file name and place in the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Loaded {
    /// Components in scope.
    pub components: Vec<Component>,
    /// HTTP endpoints in scope.
    pub http_endpoints: Vec<HttpEndpoint>,
    /// Subscriptions in scope; of equal names the last.
    pub subscriptions: Vec<Subscription>,
    /// Resiliency documents in scope.
    pub resiliency: Vec<Resiliency>,
    /// What was skipped or looks odd.
    pub warnings: Vec<Problem>,
    /// Files that could not be read, or not every document of them: what they hold is not known.
    pub broken: Vec<PathBuf>,
}

/// Loads the resources an app sees. `Err` holds everything that must end the start.
pub fn folders(request: &Request<'_>) -> Result<Loaded, Vec<Problem>> {
    let mut loading = Loading {
        request,
        loaded: Loaded::default(),
        errors: Vec::new(),
        names: HashMap::new(),
    };
    for folder in request.paths {
        match files(folder) {
            Ok(files) => files.iter().for_each(|file| loading.file(file)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !request.kinds.needs_folder() => {}
            Err(e) => loading.errors.push(Problem::new(
                folder,
                0,
                format!("cannot read resources folder {}: {e}", folder.display()),
                near_path(folder) + "create the folder or correct --resources-path",
            )),
        }
    }
    if loading.errors.is_empty() {
        Ok(loading.loaded)
    } else {
        Err(loading.errors)
    }
}

/// The resources of a text, as if it were a file of a folder, for an app; for tests and tools.
pub fn text(text: &str, app_id: &str) -> Result<Loaded, Vec<Problem>> {
    let request = Request::without_folders(app_id);
    let mut loading = Loading::new(&request);
    loading.documents(Path::new(""), text);
    loading.finish()
}

/// Where resources are said to be that an operator sent.
const OPERATOR: &str = "operator";

/// The resources of an app among those that an operator sent, as JSON. What cannot be read is a warning, and makes
/// the source `broken`.
pub fn objects(
    objects: impl IntoIterator<Item = (Kind, impl AsRef<[u8]>)>,
    app_id: &str,
) -> Result<Loaded, Vec<Problem>> {
    let request = Request::without_folders(app_id);
    let mut loading = Loading::new(&request);
    for (kind, json) in objects {
        match Resource::from_json(kind, json.as_ref(), Source::new(OPERATOR, 0)) {
            Ok(resource) => loading.accept(resource),
            Err(error) => {
                let remedy = "correct the resource in the cluster; it is not loaded";
                let problem = Problem::new(Path::new(OPERATOR), 0, format!("{kind:?}: {error}"), remedy);
                loading.loaded.warnings.push(problem);
                loading.loaded.broken.push(OPERATOR.into());
            }
        }
    }
    loading.finish()
}

/// The files of a folder by name; folders in it are left out.
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

/// The text of a file within the size limit.
pub(crate) fn read(file: &Path) -> Result<String, Problem> {
    let unreadable = |e: std::io::Error| {
        Problem::new(
            file,
            0,
            format!("cannot read file {}: {e}", file.display()),
            near_path(file) + "check path and permissions",
        )
    };
    let bytes = match outrigger_files::read(file, MAX_FILE_SIZE) {
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let what = format!("file is larger than {} MiB", MAX_FILE_SIZE >> 20);
            return Err(Problem::new(file, 0, what, "split the file"));
        }
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
    let text = String::from_utf8(bytes)
        .map_err(|_| Problem::new(file, 0, "file is not UTF-8 text", "save the file as UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

struct Loading<'a> {
    request: &'a Request<'a>,
    loaded: Loaded,
    errors: Vec<Problem>,
    /// What holds a name already, by kind and name.
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
                self.loaded.warnings.push(problem);
                self.loaded.broken.push(file.to_owned());
            }
        }
    }

    fn documents(&mut self, file: &Path, text: &str) {
        for (index, chunk) in split::documents(text).enumerate() {
            if index == split::MAX_DOCUMENTS {
                let what = format!(
                    "more than {} documents, the rest is not loaded",
                    split::MAX_DOCUMENTS
                );
                self.loaded
                    .warnings
                    .push(Problem::new(file, chunk.line, what, "split the file"));
                return;
            }
            let warnings = &mut self.loaded.warnings;
            match document::read(file, index, &chunk, self.request.kinds, warnings) {
                Ok(Some(resource)) => self.accept(resource),
                Ok(None) => {}
                Err(document::Broken) => self.loaded.broken.push(file.to_owned()),
            }
        }
    }

    fn accept(&mut self, resource: Resource) {
        match resource {
            Resource::Component(c) => {
                if self.admit(
                    Kind::Component,
                    &c.name,
                    &c.namespace,
                    &c.scopes,
                    c.log_name(),
                    &c.source,
                ) {
                    self.loaded.components.push(c);
                }
            }
            Resource::HttpEndpoint(e) => {
                if self.admit(
                    Kind::HttpEndpoint,
                    &e.name,
                    &e.namespace,
                    &e.scopes,
                    e.log_name(),
                    &e.source,
                ) {
                    self.loaded.http_endpoints.push(*e);
                }
            }
            Resource::Subscription(s) if in_scope(&s.scopes, self.request.app_id) => {
                self.loaded.subscriptions.retain(|known| known.name != s.name);
                self.loaded.subscriptions.push(s);
            }
            Resource::Resiliency(r) if in_scope(&r.scopes, self.request.app_id) => {
                self.loaded.resiliency.push(r)
            }
            Resource::Subscription(_) | Resource::Resiliency(_) => {}
        }
    }

    /// Namespace, then uniqueness, then scope.
    fn admit(
        &mut self,
        kind: Kind,
        name: &str,
        namespace: &str,
        scopes: &[String],
        log_name: String,
        source: &Source,
    ) -> bool {
        let ours = self.request.namespace.unwrap_or("");
        if !ours.is_empty() && !namespace.is_empty() && ours != namespace {
            return false;
        }
        let key = (kind, name.to_owned());
        if let Some((existing, place)) = self.names.get(&key) {
            let kind = if kind == Kind::Component {
                "Component"
            } else {
                "HTTPEndpoint"
            };
            let what = format!("duplicate definition of {kind} name {log_name} with existing {existing}");
            let remedy = format!(
                "the other is at {place}: rename or remove one, or give them other scopes or namespaces"
            );
            self.errors
                .push(Problem::new(&source.file, source.line, what, remedy));
            return false;
        }
        if !in_scope(scopes, self.request.app_id) {
            return false;
        }
        self.names.insert(key, (log_name, source.clone()));
        true
    }
}

#[cfg(test)]
mod tests;
