//! A document: its kind, name and content.

use std::collections::BTreeMap;
use std::path::Path;

use outrigger_nearest::nearest;
use serde::de::DeserializeOwned;

use super::Read;
use super::split::Chunk;
use crate::configuration::{self, UNKNOWN_KEY};
use crate::meta::{Source, valid_name};
use crate::problem::Problem;
use crate::yaml::{self, Decoded, Flavour, Node};

/// An invalid document; a warning has the reason.
pub(crate) struct Broken;

/// Lines of values that later errors refer to; see [`Source::of`].
fn lines(node: &Node) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    let Some(spec) = node.get("spec") else {
        return lines;
    };
    for key in ["type", "version", "initTimeout", "baseUrl"] {
        let path = format!("spec.{key}").to_lowercase();
        lines.extend(spec.get(key).map(|value| (path, value.line)));
    }
    if let Some(yaml::Kind::Seq(items)) = spec.get("metadata").map(|metadata| &metadata.kind) {
        let named = |item: &Node| Some((item.text("name")?.to_lowercase(), item.line));
        lines.extend(items.iter().filter_map(named));
    }
    for part in ["policies", "targets", "endpoint", "middleware", "rules"] {
        let members = spec.get(part).map(|node| (format!("spec.{part}"), node));
        members.into_iter().for_each(|(path, node)| {
            members_of(node, &path, &mut lines);
            lines.insert(path, node.line);
        });
    }
    let rules = spec.get("routes").and_then(|routes| routes.get("rules"));
    if let Some(yaml::Kind::Seq(rules)) = rules.map(|rules| &rules.kind) {
        let matches = rules.iter().enumerate().map(|(index, rule)| {
            let place = rule.get("match").unwrap_or(rule);
            (format!("spec.routes.rules[{index}].match"), place.line)
        });
        lines.extend(matches);
    }
    lines
}

/// Lines of the members of a mapping or list and of nested ones, by path.
fn members_of(node: &Node, path: &str, lines: &mut BTreeMap<String, usize>) {
    let mut member = |path: String, value: &Node, line| {
        members_of(value, &path, lines);
        lines.insert(path.to_lowercase(), line);
    };
    match &node.kind {
        yaml::Kind::Scalar(_) => {}
        yaml::Kind::Seq(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, item)| member(format!("{path}[{index}]"), item, item.line));
        }
        yaml::Kind::Map(entries) => {
            let entries = entries.iter();
            entries.for_each(|entry| member(format!("{path}.{}", entry.key.text), &entry.value, entry.line));
        }
    }
}

/// A document of a file.
pub(crate) struct Document<'a> {
    file: &'a Path,
    /// Its position in the file.
    pub(crate) index: usize,
    node: Node,
    pub(super) warnings: Vec<Problem>,
}

impl<'a> Document<'a> {
    /// Parses the document; `None` if it is empty.
    ///
    /// # Errors
    /// A YAML error.
    pub(super) fn parse(file: &'a Path, index: usize, chunk: &Chunk<'_>) -> Result<Option<Self>, Problem> {
        let node = yaml::parse(chunk.text, chunk.line).map_err(|error| {
            Problem::from_yaml(file, &error, "correct the YAML; the document is not loaded").into_error()
        })?;
        Ok(node.map(|node| Self {
            file,
            index,
            node,
            warnings: Vec::new(),
        }))
    }

    /// Its location.
    pub(super) fn source(&self) -> Source {
        Source::new(self.file, self.node.line)
    }

    /// The text of a member.
    pub(super) fn text(&self, member: &str) -> Option<String> {
        self.node.text(member).map(str::to_owned)
    }

    pub(crate) fn warn(&mut self, what: impl Into<String>, remedy: &str) {
        self.warnings
            .push(Problem::new(self.file, self.node.line, what, remedy));
    }

    /// Like [`Document::warn`], for an error that prevents loading.
    pub(crate) fn error(&mut self, what: impl Into<String>, remedy: &str) {
        let problem = Problem::new(self.file, self.node.line, what, remedy);
        self.warnings.push(problem.into_error());
    }

    /// Warns of a value at its location.
    pub(crate) fn warn_at(&mut self, place: &Source, what: String, remedy: &str) {
        self.warnings
            .push(Problem::new(self.file, place.line, what, remedy));
    }

    /// Warns of a document without a kind, which Dapr silently ignores.
    pub(super) fn warn_missing_kind(&mut self) {
        if self.node.is_null() {
            return;
        }
        let what = match (&self.node.kind, self.node.get("kind")) {
            (yaml::Kind::Map(_), Some(kind)) if !kind.is_null() => format!("kind is {}", kind.describe()),
            (yaml::Kind::Map(_), _) => "kind is missing".to_owned(),
            _ => format!("this is {} and no resource", self.node.describe()),
        };
        let entries = self.node.entries();
        let keys = entries
            .iter()
            .map(|(key, _)| *key)
            .filter(|key| !key.eq_ignore_ascii_case("kind"));
        let near = nearest("kind", keys).map(|key| format!("is {key} meant to be kind? "));
        let kinds: Vec<_> = super::Kind::ALL.iter().map(|kind| kind.name()).collect();
        let remedy = format!(
            "{}the kinds that are read are {}",
            near.unwrap_or_default(),
            kinds.join(", ")
        );
        self.warn(format!("{what}: the document is not loaded"), &remedy);
    }

    /// Warns of a kind that is similar to a known one, and returns that. Directories may contain any other
    /// kind.
    pub(super) fn check_kind(&mut self, kind: &str, api_version: &str) -> Option<&'static str> {
        let is_ours = api_version.is_empty() || api_version.starts_with("dapr.io/");
        if !is_ours {
            return None;
        }
        if kind == configuration::KIND {
            let metadata = self.node.get("metadata");
            let name = metadata
                .and_then(|metadata| metadata.text("name"))
                .unwrap_or_default();
            let what = format!("Configuration {name} applies only as a file of --config");
            self.warn(what, "name the file there, or leave it if it is named");
            return None;
        }
        let known = super::Kind::ALL.iter().map(|kind| kind.name());
        let near = nearest(kind, known.chain([configuration::KIND]))?;
        let what = format!("unknown kind {kind:?}");
        self.error(what, &format!("did you mean {near}? it is not loaded"));
        Some(near)
    }

    /// Whether the kind has this version. Otherwise warns, where Dapr silently ignores the document.
    pub(super) fn check_version(&mut self, versions: &[&str], api_version: &str) -> bool {
        if versions.is_empty() || versions.contains(&api_version) {
            return true;
        }
        let kind = self.node.text("kind").unwrap_or_default();
        let what = match api_version {
            "" => format!("apiVersion is missing: this {kind} is not loaded"),
            other => format!("apiVersion {other:?} has no kind {kind}: it is not loaded"),
        };
        let line = self
            .node
            .get("apiVersion")
            .map_or(self.node.line, |node| node.line);
        let remedy = format!("set apiVersion to {}", versions.join(" or "));
        self.warnings
            .push(Problem::new(self.file, line, what, remedy).into_error());
        false
    }

    /// Warns of a component or endpoint without a name. It is still loaded, as in Dapr.
    fn check_name(&mut self) {
        let kind = self.node.text("kind").unwrap_or_default();
        let metadata = self.node.get("metadata");
        let name = metadata
            .and_then(|metadata| metadata.text("name"))
            .unwrap_or_default();
        if name.is_empty() && ["Component", "HTTPEndpoint", "MCPServer"].contains(&kind) {
            let what = format!("metadata.name is missing: no call can name this {kind}");
            let line = metadata.map_or(self.node.line, |metadata| metadata.line);
            self.warnings
                .push(Problem::new(self.file, line, what, "set metadata.name"));
        }
    }

    /// Decodes the document as `T`, unless its name is invalid.
    pub(crate) fn decode<T: DeserializeOwned>(&mut self) -> Result<(T, Source), Broken> {
        self.check_valid_name()?;
        match yaml::decode_every::<T>(&self.node, Flavour::Json) {
            Ok(decoded) => Ok(self.decoded(decoded)),
            Err(errors) => Err(self.broken(&errors)),
        }
    }

    /// Like [`Document::decode`], but invalid values count as absent if the resource is usable without
    /// them.
    pub(crate) fn decode_usable<T: DeserializeOwned, R: Read>(
        &mut self,
        finish: impl FnOnce(T, Source) -> R,
    ) -> Result<R, Broken> {
        self.check_valid_name()?;
        match yaml::decode_usable::<T>(&self.node, Flavour::Json) {
            (Some(decoded), errors) => {
                let (value, source) = self.decoded(decoded);
                let usable = finish(value, source).with_mistakes(errors);
                usable.map_err(|errors| self.broken(&errors))
            }
            (None, errors) => Err(self.broken(&errors)),
        }
    }

    fn check_valid_name(&mut self) -> Result<(), Broken> {
        let name = self.node.get("metadata").and_then(|m| m.text("name"));
        let Some((name, Err(why))) = name.map(|name| (name, valid_name(name))) else {
            return Ok(());
        };
        let kind = self.node.text("kind").unwrap_or_default();
        let what = format!("invalid name {name:?} for {kind:?}: {why}");
        self.error(what, "rename it; it is not loaded");
        Err(Broken)
    }

    fn decoded<T>(&mut self, decoded: Decoded<T>) -> (T, Source) {
        self.check_name();
        let unknown = decoded
            .unknown
            .iter()
            .map(|e| Problem::from_yaml(self.file, e, UNKNOWN_KEY));
        self.warnings.extend(unknown);
        let mut source = Source::new(self.file, self.node.line);
        source.values = lines(&self.node);
        (decoded.value, source)
    }

    fn broken(&mut self, errors: &[yaml::Error]) -> Broken {
        let kind = self.node.text("kind").unwrap_or("document");
        let name = self.node.get("metadata").and_then(|m| m.text("name"));
        let name = name.map(|name| format!(" {name}")).unwrap_or_default();
        let remedy = format!("correct the value; the {kind}{name} is not loaded");
        let found = errors
            .iter()
            .map(|error| Problem::from_yaml(self.file, error, &remedy).into_error());
        self.warnings.extend(found);
        Broken
    }
}
