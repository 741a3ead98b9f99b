//! The kinds of resources. A kind is a row of the table below, its name in
//! [`for_each_kind!`](crate::for_each_kind), and `impl Read` next to its parser.

use std::path::PathBuf;

use super::document::{Broken, Document};
use crate::component::{self, Component};
use crate::configuration::Configuration;
use crate::http_endpoint::{self, HttpEndpoint};
use crate::mcp_server::{self, McpServer};
use crate::meta::Source;
use crate::problem::Problem;
use crate::resiliency::{self, Resiliency};
use crate::subscription::{self, Subscription};
use crate::workflow_access_policy::{self, WorkflowAccessPolicy};
use crate::yaml::{self, Flavour};

/// Treatment of two resources of the same kind and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// A startup error. Only resources of the sidecar's namespace count.
    Refused,
    /// The last one wins.
    LastCounts,
    /// All are loaded.
    Kept,
}

/// The interface of all kinds of resources.
pub trait Resource: Clone + Send + Sync + 'static {
    /// Its kind.
    const KIND: Kind;
    /// Treatment of duplicates.
    const DUPLICATES: Duplicates;

    /// `metadata.name`.
    fn name(&self) -> &str;

    /// `metadata.namespace`; may be empty.
    fn namespace(&self) -> &str;

    /// App IDs in scope; empty means all.
    fn scopes(&self) -> &[String];

    /// Location of the definition.
    fn source(&self) -> &Source;

    /// Its name for logs, with its type or address if any.
    fn log_name(&self) -> String;

    /// The resources of this kind in `loaded`.
    fn of(loaded: &Loaded) -> &Vec<Self>;

    /// Mutable version of `of`.
    fn of_mut(loaded: &mut Loaded) -> &mut Vec<Self>;
}

/// A resource that can be parsed from a document.
pub(crate) trait Read: Sized {
    /// The `apiVersion`s of the kind; empty means any.
    const VERSIONS: &'static [&'static str];

    /// Parses a document of this kind and one of its versions; `None` if it is skipped.
    fn read(document: &mut Document<'_>, api_version: &str) -> Result<Option<Self>, Broken>;

    /// Accepts values that could not be decoded and count as absent; returns them if the resource is
    /// unusable without them.
    fn with_mistakes(self, errors: Vec<yaml::Error>) -> Result<Self, Vec<yaml::Error>> {
        match errors.is_empty() {
            true => Ok(self),
            false => Err(errors),
        }
    }

    /// What counts for a document that may be of this kind and cannot be read, if anything does.
    fn unreadable(_: Source) -> Option<Self> {
        None
    }

    /// Problems that the resource itself records.
    fn problems(&self) -> Vec<Problem> {
        Vec::new()
    }
}

/// A resource that can be parsed from JSON. Its source is empty.
pub trait FromJson: Sized {
    /// Parses one resource of this kind. Errors name the key.
    fn from_json(json: &[u8]) -> Result<Self, String>;
}

/// `Kind: "kind of the documents", member of [`Loaded`]: Vec<type>, type decoded from JSON, duplicates, log
/// name;`
macro_rules! kinds {
    ($(
        $(#[doc = $doc:literal])+
        $kind:ident: $name:literal, $member:ident: Vec<$resource:ident>, $raw:ty, $duplicates:ident, $log_name:expr;
    )*) => {
        /// The kinds of resources that a sidecar loads.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind),*];

            /// The `kind` of its documents.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }

        /// The resources of a sidecar that are in scope, in order of directory, file name and position.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Loaded {
            $($(#[doc = $doc])+ pub $member: Vec<$resource>,)*
            /// The Configuration, if the source has one; directories of resources do not.
            pub configuration: Option<Configuration>,
            /// Warnings about skipped or suspicious documents.
            pub warnings: Vec<Problem>,
            /// Valid resources that are not for this app, each with the reason.
            pub left_out: Vec<Problem>,
            /// Files that were not completely readable, so that their content is unknown.
            pub broken: Vec<PathBuf>,
            /// Files without a document that has a kind: possibly being written.
            pub empty: Vec<PathBuf>,
        }

        $(
            impl Resource for $resource {
                const KIND: Kind = Kind::$kind;
                const DUPLICATES: Duplicates = Duplicates::$duplicates;

                fn name(&self) -> &str {
                    &self.name
                }

                fn namespace(&self) -> &str {
                    &self.namespace
                }

                fn scopes(&self) -> &[String] {
                    &self.scopes
                }

                fn source(&self) -> &Source {
                    &self.source
                }

                fn log_name(&self) -> String {
                    ($log_name)(self)
                }

                fn of(loaded: &Loaded) -> &Vec<Self> {
                    &loaded.$member
                }

                fn of_mut(loaded: &mut Loaded) -> &mut Vec<Self> {
                    &mut loaded.$member
                }
            }

            impl FromJson for $resource {
                fn from_json(json: &[u8]) -> Result<Self, String> {
                    let node = yaml::from_json(json).map_err(|e| e.to_string())?;
                    let read = match yaml::decode_usable::<$raw>(&node, Flavour::Json) {
                        (Some(raw), errors) => raw.value.finish(Source::default()).with_mistakes(errors),
                        (None, errors) => Err(errors),
                    };
                    read.map_err(|errors| {
                        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
                        errors.join("; ")
                    })
                }
            }
        )*

        impl super::Loading<'_> {
            /// Reads the resource of a document of this kind.
            pub(super) fn read(&mut self, kind: Kind, document: &mut Document<'_>, api: &str) -> Result<(), Broken> {
                match kind {
                    $(Kind::$kind => {
                        if document.check_version(<$resource as Read>::VERSIONS, api)
                            && let Some(resource) = <$resource as Read>::read(document, api)?
                        {
                            self.accept(resource);
                        }
                    })*
                }
                Ok(())
            }

            /// Adds what counts for an unreadable document that may be of these kinds.
            pub(super) fn unreadable(&mut self, is_possible: impl Fn(Kind) -> bool, source: &Source) {
                $(
                    let is_wanted = self.request.kinds.contains(&Kind::$kind) && is_possible(Kind::$kind);
                    let counts = is_wanted.then(|| <$resource as Read>::unreadable(source.clone()));
                    self.loaded.$member.extend(counts.flatten());
                )*
            }

            /// Reads the operator's JSON.
            ///
            /// # Errors
            /// Names the key.
            pub(super) fn json(&mut self, kind: Kind, json: &[u8], source: Source) -> Result<(), String> {
                match kind {
                    $(Kind::$kind => {
                        let resource: $resource = FromJson::from_json(json)?;
                        self.accept($resource { source, ..resource });
                    })*
                }
                Ok(())
            }
        }
    };
}

kinds! {
    /// Backends of building blocks.
    Component: "Component", components: Vec<Component>, component::Raw, Refused, Component::log_name;
    /// External services, invoked by name.
    HttpEndpoint: "HTTPEndpoint", http_endpoints: Vec<HttpEndpoint>, http_endpoint::Raw, Refused, HttpEndpoint::log_name;
    /// Servers of the Model Context Protocol.
    McpServer: "MCPServer", mcp_servers: Vec<McpServer>, mcp_server::Raw, Refused, McpServer::log_name;
    /// Resiliency policies and their targets.
    Resiliency: "Resiliency", resiliency: Vec<Resiliency>, resiliency::Raw, Kept, |this: &Resiliency| this.name.clone();
    /// Subscriptions of apps to topics, both versions.
    Subscription: "Subscription", subscriptions: Vec<Subscription>, subscription::RawV2, LastCounts, |this: &Subscription| this.name.clone();
    /// Which apps may use the workflows and activities of an app.
    WorkflowAccessPolicy: "WorkflowAccessPolicy", workflow_access_policies: Vec<WorkflowAccessPolicy>, workflow_access_policy::Raw, Refused, |this: &WorkflowAccessPolicy| this.name.clone();
}

/// Calls the macro `$each` with `Kind(type), ...` for all kinds, for other crates. The order is that in
/// which changes are applied: access before workflows, policies before the targets that use them, components
/// before the users of their secrets.
#[macro_export]
macro_rules! for_each_kind {
    ($each:ident) => {
        $each! {
            WorkflowAccessPolicy($crate::WorkflowAccessPolicy),
            Resiliency($crate::Resiliency),
            Component($crate::Component),
            Subscription($crate::Subscription),
            HttpEndpoint($crate::HttpEndpoint),
            McpServer($crate::McpServer)
        }
    };
}
