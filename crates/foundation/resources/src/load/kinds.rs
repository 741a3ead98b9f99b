//! The kinds of resources. A kind is a row of the table below with its name in [`for_each_kind!`](crate::for_each_kind),
//! and `impl Read` beside its parser.

use std::path::PathBuf;

use super::document::{Broken, Document};
use crate::component::{self, Component};
use crate::configuration::Configuration;
use crate::http_endpoint::{self, HttpEndpoint};
use crate::meta::Source;
use crate::problem::Problem;
use crate::resiliency::{self, Resiliency};
use crate::subscription::{self, Subscription};
use crate::yaml::{self, Flavour};

/// What two resources of one kind and name mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// The start fails. Only resources of the sidecar's namespace count.
    Refused,
    /// The last one counts.
    LastCounts,
    /// Each counts.
    Kept,
}

/// What all kinds of resources have.
pub trait Resource: Clone + Send + Sync + 'static {
    /// Its kind.
    const KIND: Kind;
    /// What two of one name mean.
    const DUPLICATES: Duplicates;

    /// `metadata.name`.
    fn name(&self) -> &str;

    /// `metadata.namespace`; empty = none.
    fn namespace(&self) -> &str;

    /// The app ids that see it; empty = all.
    fn scopes(&self) -> &[String];

    /// Where it was read.
    fn source(&self) -> &Source;

    /// Its name for logs, with its type or address where it has one.
    fn log_name(&self) -> String;

    /// The resources of this kind among those that were read.
    fn of(loaded: &Loaded) -> &Vec<Self>;

    /// The same, to be changed.
    fn of_mut(loaded: &mut Loaded) -> &mut Vec<Self>;
}

/// A resource that can be read from a document of a file.
pub(crate) trait Read: Sized {
    /// The `apiVersion`s of the kind; empty = any.
    const VERSIONS: &'static [&'static str];

    /// Reads a document of this kind and of one of its versions; `None` when it is left out.
    fn read(document: &mut Document<'_>, api_version: &str) -> Result<Option<Self>, Broken>;

    /// Takes the values that could not be read and count as absent; gives them back where it cannot be used without them.
    fn with_mistakes(self, errors: Vec<yaml::Error>) -> Result<Self, Vec<yaml::Error>> {
        match errors.is_empty() {
            true => Ok(self),
            false => Err(errors),
        }
    }
}

/// A resource that can be read from JSON. Its source is empty.
pub trait FromJson: Sized {
    /// Reads one resource; the kind is the caller's knowledge. Errors name the key.
    fn from_json(json: &[u8]) -> Result<Self, String>;
}

/// `Kind: "kind of the documents", member of [`Loaded`]: Vec<type>, type that JSON is read as, duplicates, log name;`
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

        /// The resources of a sidecar, in order of folder, file name and place in the file. All of them are in scope.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Loaded {
            $($(#[doc = $doc])+ pub $member: Vec<$resource>,)*
            /// The Configuration, from a source that has it: folders of resources have none.
            pub configuration: Option<Configuration>,
            /// What was skipped or looks odd.
            pub warnings: Vec<Problem>,
            /// Resources that are not for this app, each with the reason; nothing is wrong with them.
            pub left_out: Vec<Problem>,
            /// Files that could not be read, or not every document of them: what they hold is not known.
            pub broken: Vec<PathBuf>,
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
            /// Takes the resource of a document of this kind.
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

            /// Takes what an operator sent.
            ///
            /// # Errors
            /// What is wrong with it; names the key.
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
    /// Services outside, invoked by name.
    HttpEndpoint: "HTTPEndpoint", http_endpoints: Vec<HttpEndpoint>, http_endpoint::Raw, Refused, HttpEndpoint::log_name;
    /// Resiliency policies and their targets.
    Resiliency: "Resiliency", resiliency: Vec<Resiliency>, resiliency::Raw, Kept, |this: &Resiliency| this.name.clone();
    /// Subscriptions of apps to topics, both versions.
    Subscription: "Subscription", subscriptions: Vec<Subscription>, subscription::RawV2, LastCounts, |this: &Subscription| this.name.clone();
}

/// Calls the macro `$each` with `Kind(type), ...` for all kinds: for what another crate does with each of them. They stand
/// in the order in which they are applied: policies before what is called under them, components before what uses
/// their secrets.
#[macro_export]
macro_rules! for_each_kind {
    ($each:ident) => {
        $each! {
            Resiliency($crate::Resiliency),
            Component($crate::Component),
            Subscription($crate::Subscription),
            HttpEndpoint($crate::HttpEndpoint)
        }
    };
}
