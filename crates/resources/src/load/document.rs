//! One document: is it ours, may it have that name, what does it say.

use std::collections::BTreeMap;
use std::path::Path;

use outrigger_nearest::nearest;
use serde::de::DeserializeOwned;

use super::split::Chunk;
use super::{FromJson, Kind, Kinds};
use crate::component::{self, Component};
use crate::configuration::UNKNOWN_KEY;
use crate::http_endpoint::{self, HttpEndpoint};
use crate::meta::{Source, valid_name};
use crate::problem::Problem;
use crate::resiliency::{self, Resiliency};
use crate::subscription::{self, Subscription};
use crate::yaml::{self, Flavour, Node};

pub(super) enum Resource {
    Component(Component),
    HttpEndpoint(Box<HttpEndpoint>),
    Subscription(Subscription),
    Resiliency(Resiliency),
}

impl Resource {
    /// Reads what an operator sends; errors name the key.
    pub(super) fn from_json(kind: Kind, json: &[u8], source: Source) -> Result<Self, String> {
        Ok(match kind {
            Kind::Component => Self::Component(Component {
                source,
                ..FromJson::from_json(json)?
            }),
            Kind::HttpEndpoint => Self::HttpEndpoint(Box::new(HttpEndpoint {
                source,
                ..FromJson::from_json(json)?
            })),
            Kind::Subscription => Self::Subscription(Subscription {
                source,
                ..FromJson::from_json(json)?
            }),
            Kind::Resiliency => Self::Resiliency(Resiliency {
                source,
                ..FromJson::from_json(json)?
            }),
        })
    }
}

/// A document that should say something and cannot be read; a warning says why.
pub(super) struct Broken;

/// Reads a document of a wanted kind; anything wrong becomes a warning. `index` is its place in the file.
pub(super) fn read(
    file: &Path,
    index: usize,
    chunk: &Chunk<'_>,
    kinds: Kinds,
    warnings: &mut Vec<Problem>,
) -> Result<Option<Resource>, Broken> {
    let node = match yaml::parse(chunk.text, chunk.line) {
        Ok(Some(node)) => node,
        Ok(None) => return Ok(None),
        Err(error) => {
            warnings.push(Problem::from_yaml(
                file,
                &error,
                "correct the YAML; the document is not loaded",
            ));
            return Err(Broken);
        }
    };
    let mut document = Document {
        file,
        node: &node,
        warnings,
    };
    let Some(kind) = node.text("kind") else {
        return Ok(None);
    };
    let resource = match (node.text("apiVersion").unwrap_or(""), kind) {
        ("dapr.io/v1alpha1", "Component") if kinds.components => document
            .decode::<component::Raw>()
            .map(|(raw, at)| Resource::Component(raw.finish(at)))?,
        ("dapr.io/v1alpha1", "HTTPEndpoint") if kinds.http_endpoints => {
            let (raw, at) = document.decode::<http_endpoint::Raw>()?;
            if !raw.has_base_url() {
                document.warn(
                    "spec.baseUrl is missing",
                    "set spec.baseUrl to the URL of the service",
                );
            }
            Resource::HttpEndpoint(Box::new(raw.finish(at)))
        }
        ("dapr.io/v2alpha1", "Subscription") if kinds.subscriptions => {
            let (raw, at) = document.decode::<subscription::RawV2>()?;
            document.subscription(raw.finish(at))
        }
        ("dapr.io/v1alpha1", "Subscription") if kinds.subscriptions => {
            let (raw, at) = document.decode::<subscription::RawV1>()?;
            document.subscription(raw.finish(at))
        }
        // Of these only the first document of a file counts, whatever its apiVersion.
        (_, "Resiliency") if kinds.resiliency && index == 0 => document
            .decode::<resiliency::Raw>()
            .map(|(raw, at)| Resource::Resiliency(raw.finish(at)))?,
        (_, "Resiliency") if kinds.resiliency => {
            document.warn(
                "only the first document of a file can be a Resiliency",
                "move it to a file of its own; it is not loaded",
            );
            return Ok(None);
        }
        (api, kind) => {
            // Folders may hold what is nobody's business here; what was nearly ours is a mistake.
            let near = nearest(kind, KINDS).filter(|_| api.starts_with("dapr.io/") && !KINDS.contains(&kind));
            if let Some(near) = near {
                let what = format!("unknown kind {kind:?}");
                document.warn(what, &format!("did you mean {near}? it is not loaded"));
            }
            return Ok(None);
        }
    };
    Ok(Some(resource))
}

/// What Dapr's resources are called; not all are read here.
const KINDS: [&str; 5] = [
    "Component",
    "Configuration",
    "HTTPEndpoint",
    "Resiliency",
    "Subscription",
];

/// The lines of the values that errors point at later; see [`Source::of`].
fn lines(node: &Node) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    let Some(spec) = node.get("spec") else {
        return lines;
    };
    for key in ["type", "version"] {
        lines.extend(spec.get(key).map(|value| (format!("spec.{key}"), value.line)));
    }
    if let Some(yaml::Kind::Seq(items)) = spec.get("metadata").map(|metadata| &metadata.kind) {
        let named = |item: &Node| Some((item.text("name")?.to_lowercase(), item.line));
        lines.extend(items.iter().filter_map(named));
    }
    for group in ["timeouts", "retries", "circuitBreakers"] {
        let policies = spec.get("policies").and_then(|policies| policies.get(group));
        if let Some(yaml::Kind::Map(policies)) = policies.map(|policies| &policies.kind) {
            lines.extend(policies.iter().map(|entry| {
                let key = format!("spec.policies.{group}.{}", entry.key.text);
                (key.to_lowercase(), entry.line)
            }));
        }
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

struct Document<'a> {
    file: &'a Path,
    node: &'a Node,
    warnings: &'a mut Vec<Problem>,
}

impl Document<'_> {
    fn warn(&mut self, what: impl Into<String>, remedy: &str) {
        self.warnings
            .push(Problem::new(self.file, self.node.line, what, remedy));
    }

    /// A subscription, with a warning for what keeps it from ever getting an event.
    fn subscription(&mut self, subscription: Subscription) -> Resource {
        for (key, value) in [
            ("spec.pubsubname", &subscription.pubsub),
            ("spec.topic", &subscription.topic),
        ] {
            if value.is_empty() {
                self.warn(
                    format!("{key} is missing: the subscription gets no events"),
                    &format!("set {key}"),
                );
            }
        }
        Resource::Subscription(subscription)
    }

    /// The document as `T`, unless its name cannot be used.
    fn decode<T: DeserializeOwned>(&mut self) -> Result<(T, Source), Broken> {
        if let Some(name) = self.node.get("metadata").and_then(|m| m.text("name"))
            && let Err(why) = valid_name(name)
        {
            let kind = self.node.text("kind").unwrap_or_default();
            self.warn(
                format!("invalid name {name:?} for {kind:?}: {why}"),
                "rename it; it is not loaded",
            );
            return Err(Broken);
        }
        match yaml::decode::<T>(self.node, Flavour::Json) {
            Ok(decoded) => {
                let unknown = decoded
                    .unknown
                    .iter()
                    .map(|e| Problem::from_yaml(self.file, e, UNKNOWN_KEY));
                self.warnings.extend(unknown);
                let mut source = Source::new(self.file, self.node.line);
                source.values = lines(self.node);
                Ok((decoded.value, source))
            }
            Err(error) => {
                let remedy = "correct the value; the document is not loaded";
                self.warnings.push(Problem::from_yaml(self.file, &error, remedy));
                Err(Broken)
            }
        }
    }
}
