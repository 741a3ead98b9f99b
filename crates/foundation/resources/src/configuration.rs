//! `Configuration` (`dapr.io/v1alpha1`): settings of a sidecar or the CA beyond their flags.

mod access;
mod expand;
mod features;
mod known;
mod merge;
mod metrics;
mod mistakes;
mod mtls;
mod raw;
mod secrets;
mod tracing;
mod workflow;

use std::path::{Path, PathBuf};

pub use access::{AccessControl, AppOperation, AppPolicy};
pub use expand::expand;
pub use features::{
    ACTOR_STATE_TTL, Features, HOT_RELOAD, SUBTLE_CRYPTO, WORKFLOW_HISTORY_SIGNING, WORKFLOWS_CLUSTERED,
    WORKFLOWS_REMOTE_ACTIVITY_REMINDER,
};
pub use known::{Check, ValueChecks};
pub use metrics::{HttpMetrics, LabelRule, MetricRule, Metrics};
pub use mistakes::Found;
pub use mtls::{Mtls, TokenValidator};
pub use secrets::SecretScope;
pub use tracing::{DEFAULT_SAMPLING, Otel, Tracing};
pub use workflow::{GlobalLimit, Limited, Retention, Workflow};

use crate::component::Component;
use crate::meta::Source;
use crate::problem::Problem;
use crate::yaml::{self, Flavour, Node};

/// A Configuration with defaults filled in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Configuration {
    /// `metadata.name` of the last document merged; empty for the built-in defaults.
    pub name: String,
    /// `httpPipeline.handlers`: middleware around the public HTTP API, outermost first.
    pub http_pipeline: Vec<Handler>,
    /// `appHttpPipeline.handlers`: middleware around HTTP calls to the app and external endpoints.
    pub app_http_pipeline: Vec<Handler>,
    /// `tracing`.
    pub tracing: Tracing,
    /// `metric`, with fields overridden by `metrics`.
    pub metrics: Metrics,
    /// `mtls`, used by the CA; a sidecar uses its flags.
    pub mtls: Mtls,
    /// `secrets.scopes`: a store without an entry allows all access.
    pub secrets: Vec<SecretScope>,
    /// `accessControl`.
    pub access_control: AccessControl,
    /// `nameResolution`.
    pub name_resolution: NameResolution,
    /// `features`.
    pub features: Features,
    /// `api.allowed`.
    pub api_allowed: Vec<ApiRule>,
    /// `api.denied`.
    pub api_denied: Vec<ApiRule>,
    /// `components.deny`: `type` or `type/version`, exact.
    pub denied_components: Vec<String>,
    /// `logging.apiLogging`.
    pub api_logging: ApiLogging,
    /// `wasm.strictSandbox`: forces `strictSandbox` on every WASM component.
    pub wasm_strict_sandbox: bool,
    /// `workflow`.
    pub workflow: Workflow,
}

/// A middleware of a pipeline.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default)]
pub struct Handler {
    /// Name of the middleware component.
    pub name: String,
    /// Its type, `middleware.http.*`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its version; empty means `v1`.
    pub version: String,
    /// `selector`: parsed but unused, as in Dapr.
    pub selector: serde_json::Value,
    /// Location of the definition; ignored in comparisons.
    #[serde(skip)]
    pub source: Source,
}

impl PartialEq for Handler {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            kind,
            version,
            selector,
            source: _,
        } = self;
        *name == other.name && *kind == other.kind && *version == other.version && *selector == other.selector
    }
}

/// One entry of `api.allowed` or `api.denied`.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct ApiRule {
    /// API, such as `state`.
    pub name: String,
    /// Version, such as `v1.0` (HTTP) or `v1` (gRPC).
    pub version: String,
    /// `http` or `grpc`, in any case.
    pub protocol: String,
}

/// `logging.apiLogging`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ApiLogging {
    /// Log API calls unless the flag is set.
    pub enabled: bool,
    /// Log the route instead of the path.
    #[serde(rename = "obfuscateURLs")]
    pub obfuscate_urls: bool,
    /// Omit health checks.
    pub omit_health_checks: bool,
}

/// `nameResolution`.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct NameResolution {
    /// Resolver; empty selects the default of the mode (`mdns`, `kubernetes`).
    pub component: String,
    /// Version; empty means `v1`.
    pub version: String,
    /// Settings of the resolver; null if absent.
    pub configuration: serde_json::Value,
}

/// A Configuration and the findings in its files.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfiguration {
    /// The merged result.
    pub configuration: Configuration,
    /// Unknown keys and features.
    pub warnings: Vec<Problem>,
    /// Invalid values, with the values that apply instead.
    pub mistakes: Vec<Problem>,
    /// Files without a document.
    pub empty: Vec<PathBuf>,
}

impl Configuration {
    /// Whether a component must not be loaded: its type, or type and version, are on the deny list, or it
    /// has no type while there is such a list.
    pub fn denies(&self, component: &Component) -> bool {
        let Component { kind, version, .. } = component;
        !self.denied_components.is_empty()
            && (kind.is_empty()
                || version.is_empty()
                || self.denied_components.iter().any(|entry| {
                    entry == kind
                        || entry
                            .split_once('/')
                            .is_some_and(|(k, v)| k == kind && v == version)
                }))
    }

    /// Parses a Configuration from the operator's JSON.
    pub fn from_json(json: &[u8]) -> Result<Configuration, String> {
        let node = yaml::from_json(json).map_err(|e| e.to_string())?;
        let raw = yaml::decode::<raw::Raw>(&node, Flavour::Json).map_err(|e| e.to_string())?;
        raw.value.finish()
    }

    /// Findings in the values of such JSON; `name` is the location to report.
    pub fn mistakes_in(json: &[u8], name: &str, known: &ValueChecks) -> Found {
        let node = yaml::from_json(json).unwrap_or_else(|_| Node::null(0));
        let mut found = mistakes::find(Path::new(name), &node, known);
        // The JSON has no lines.
        let all = found.mistakes.iter_mut().chain(&mut found.warnings);
        all.for_each(|problem| problem.line = 0);
        found
    }
}

/// Loads files in order, each merged over the previous and over the built-in defaults. Expands `$VAR` and
/// `${VAR}` from `env` first; unset variables are empty. No files means the defaults.
///
/// # Errors
/// Fatal errors first, then all other findings, so that they can be fixed together.
pub fn load<P: AsRef<Path>>(
    files: &[P],
    known: &ValueChecks,
    env: impl Fn(&str) -> Option<String>,
) -> Result<LoadedConfiguration, Vec<Problem>> {
    let (mut merged, mut problems, mut warnings, mut empty) =
        (Node::null(0), Vec::new(), Vec::new(), Vec::new());
    let (mut mistakes, mut scopes) = (Vec::new(), Vec::new());
    let mut handlers = Handlers::default();
    let mut last = Path::new("");
    for file in files.iter().map(AsRef::as_ref) {
        let node = match document(file, &env) {
            Ok(Some(node)) if !node.is_null() => node,
            Ok(_) => {
                empty.push(file.to_owned());
                continue;
            }
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        warnings.extend(other_kind(file, &node));
        let found = mistakes::find(file, &node, known);
        mistakes.extend(found.mistakes);
        warnings.extend(found.warnings);
        if let Some(wrong) = secrets::problems(file, &node) {
            // As for all lists, the last one wins.
            scopes = wrong;
        }
        // Each file is also decoded separately, because only then errors and warnings have their file.
        match yaml::decode_every::<raw::Raw>(&node, Flavour::Text) {
            Ok(decoded) => {
                let unknown = decoded.unknown.iter();
                warnings.extend(unknown.map(|e| Problem::from_yaml(file, e, UNKNOWN_KEY)));
                handlers.read(file, &node);
                merge::merge_into(&mut merged, node);
                last = file;
            }
            Err(errors) => {
                let told = errors.iter();
                problems.extend(told.map(|e| Problem::from_yaml(file, e, "correct the value")));
            }
        }
    }
    problems.append(&mut scopes);
    if !problems.is_empty() {
        problems.extend(mistakes.into_iter().chain(warnings));
        return Err(problems);
    }
    let fail = |what: String| vec![Problem::new(last, 0, what, "correct the Configuration")];
    let raw = yaml::decode::<raw::Raw>(&merged, Flavour::Text).map_err(|e| fail(e.to_string()))?;
    let mut configuration = raw.value.finish().map_err(fail)?;
    handlers.place(&mut configuration);
    Ok(LoadedConfiguration {
        configuration,
        warnings,
        mistakes,
        empty,
    })
}

/// A document with another `kind` or `apiVersion`: it is still read, as in Dapr.
fn other_kind(file: &Path, document: &Node) -> Option<Problem> {
    let kind = document.get("kind").filter(|kind| !kind.is_null());
    let line = kind.map_or(document.line, |kind| kind.line);
    let what = match (document.text("kind"), kind) {
        (Some(KIND), _) => return None,
        (Some(other), _) => format!("kind is {other:?} and not {KIND}"),
        // Reported by decoding.
        (None, Some(_)) => return None,
        (None, None) => "kind is missing".to_owned(),
    };
    let what = format!("{what}: the file is still read as a {KIND}");
    let remedy = format!("write kind: {KIND}, or name another file");
    Some(Problem::new(file, line, what, remedy))
}

/// Locations of the handlers of both pipelines: a list in a later file replaces an earlier one.
#[derive(Default)]
struct Handlers {
    http: Vec<Source>,
    app: Vec<Source>,
}

impl Handlers {
    fn read(&mut self, file: &Path, document: &Node) {
        let spec = document.get("spec");
        for (key, places) in [
            ("httpPipeline", &mut self.http),
            ("appHttpPipeline", &mut self.app),
        ] {
            let pipeline = spec.and_then(|spec| spec.get(key));
            let Some(list) = pipeline.and_then(|pipeline| pipeline.get("handlers")) else {
                continue;
            };
            if !list.is_null() {
                let lines = mistakes::items(Some(list)).map(|(_, handler)| handler.line);
                *places = lines.map(|line| Source::new(file, line)).collect();
            }
        }
    }

    fn place(self, configuration: &mut Configuration) {
        let both = [
            (&mut configuration.http_pipeline, self.http),
            (&mut configuration.app_http_pipeline, self.app),
        ];
        for (pipeline, places) in both {
            for (handler, place) in pipeline.iter_mut().zip(places) {
                handler.source = place;
            }
        }
    }
}

/// The `kind` of its documents.
pub(crate) const KIND: &str = "Configuration";

pub(crate) const UNKNOWN_KEY: &str = "the key is ignored; check its spelling and its position";

fn document(file: &Path, env: &impl Fn(&str) -> Option<String>) -> Result<Option<Node>, Problem> {
    let text = crate::load::read(file)?;
    yaml::parse(&expand(&text, env), 1).map_err(|e| Problem::from_yaml(file, &e, "correct the YAML"))
}

#[cfg(test)]
mod tests;
