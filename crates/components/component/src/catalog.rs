//! Maps a component's `spec.type` and `spec.version` to an implementation.

mod dapr;

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
};

use futures::future::BoxFuture;
use outrigger_nearest::{hint, nearest};

pub use dapr::{all_only_of_dapr, only_of_dapr};

use crate::{
    ConfigurationStore, Conversation, CryptoProvider, Error, InputBinding, Kind, LockStore, Metadata,
    Middleware, OutputBinding, PubSub, Result, SecretStore, StateStore,
};

/// Input of a component's factory.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The properties and the component's name.
    pub metadata: Metadata,
    /// App ID of the sidecar.
    pub app_id: String,
}

type Build<T> = Arc<dyn Fn(Setup) -> BoxFuture<'static, Result<Arc<T>>> + Send + Sync>;

/// An implementation.
pub struct Entry<T: ?Sized> {
    /// Names without category, the main one first: `["sqlite", "sqlite3"]`.
    names: Vec<String>,
    version: Version,
    build: Build<T>,
}

/// Which `spec.version` selects an implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Empty, `v0` and `v1` all select this one: types with a single version.
    Only,
    /// The given version and, for the default of its type, the empty one.
    Named {
        /// E.g. `v2`.
        name: &'static str,
        /// Whether an empty version selects it.
        default: bool,
    },
}

impl Version {
    fn matches(self, given: &str) -> bool {
        match self {
            Self::Only => ["", "v0", "v1"]
                .iter()
                .any(|known| given.eq_ignore_ascii_case(known)),
            Self::Named { name, default } => {
                given.eq_ignore_ascii_case(name) || (default && given.is_empty())
            }
        }
    }
}

impl<T: ?Sized> Entry<T> {
    /// An implementation known as `names` (without category, the main name first), built by `build`.
    pub fn new<F, R>(names: &[&str], version: Version, build: F) -> Self
    where
        F: Fn(Setup) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Arc<T>>> + Send + 'static,
    {
        Self {
            names: names.iter().map(|name| name.to_lowercase()).collect(),
            version,
            build: Arc::new(move |setup| Box::pin(build(setup))),
        }
    }

    /// Builds and initialises the component, which is ready for calls on return.
    ///
    /// # Errors
    /// Lists every invalid property that is read before the first await: after an error, the properties are
    /// read again without the invalid one. Missing properties are not reported together with invalid ones.
    pub async fn build(&self, setup: Setup) -> Result<Arc<T>> {
        let secrets = setup.metadata.secrets();
        let built = self.build_or_tell_all(setup).await;
        built.map_err(|error| error.without(&secrets))
    }

    async fn build_or_tell_all(&self, setup: Setup) -> Result<Arc<T>> {
        let metadata = setup.metadata.clone();
        metadata.collect();
        let (built, waited) = self.try_build(&setup).await;
        let mut ended = Vec::new();
        match built {
            Some(Err(error)) if error.kind() == Kind::Configuration => ended.extend(error.split()),
            Some(built) if !metadata.has_collected() => {
                metadata.collected();
                return built;
            }
            // Other failures may be caused by the value that was left out.
            _ => {}
        }
        let is_given = |name: &str| metadata.text(&[name]).is_some();
        // Leaves out all of them; returns whether that changes anything.
        let leave_out = |ended: &[Error]| {
            let properties = ended.iter().filter_map(Error::property);
            properties.filter(|property| metadata.leave_out(property)).count() > 0
        };
        while !waited && leave_out(&ended) {
            let (Some(Err(error)), false) = self.try_build(&setup).await else {
                break;
            };
            let parts = error.split().into_iter();
            ended.extend(
                parts.filter(|part| {
                    part.kind() == Kind::Configuration && part.property().is_some_and(is_given)
                }),
            );
        }
        let collected = metadata.collected();
        let mut wrong: Vec<Error> = collected.into_iter().map(Error::from).collect();
        for error in ended {
            if error.property().is_none() || wrong.iter().all(|wrong| wrong.property() != error.property()) {
                wrong.push(error);
            }
        }
        Err(Error::all(wrong))
    }

    /// The factory's result if no invalid value was collected, and whether it had to wait. With an invalid
    /// value left out it must not connect or write.
    async fn try_build(&self, setup: &Setup) -> (Option<Result<Arc<T>>>, bool) {
        let mut waited = false;
        // Dropping it stops everything it started.
        let mut building = (self.build)(setup.clone());
        let built = poll_fn(|context| match building.as_mut().poll(context) {
            Poll::Pending if setup.metadata.has_collected() => Poll::Ready(None),
            Poll::Pending => {
                waited = true;
                Poll::Pending
            }
            Poll::Ready(built) => Poll::Ready(Some(built)),
        });
        let built = built.await;
        (built, waited)
    }
}

/// The implementations of a category.
pub struct Section<T: ?Sized> {
    category: &'static str,
    entries: Vec<Arc<Entry<T>>>,
    by_name: HashMap<String, Vec<usize>>,
    /// Types of other builds, by name, with the way to get one.
    elsewhere: HashMap<&'static str, &'static str>,
}

/// Why no implementation was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The type is unknown.
    #[error("couldn't find {category} component {kind}/{version}: {hint}this build has {known}")]
    UnknownType {
        /// E.g. `state`.
        category: &'static str,
        /// `spec.type` of the component, with category.
        kind: String,
        /// `spec.version` of the component; may be empty.
        version: String,
        /// A suggestion such as `did you mean state.redis? `, or how to get a build with this type.
        hint: String,
        /// The types in this build, for the message.
        known: String,
    },
    /// The type is known, the version is not.
    #[error("couldn't find {category} component {kind}/{version}: set spec.version to {versions}")]
    UnknownVersion {
        /// E.g. `state`.
        category: &'static str,
        /// `spec.type` of the component, with category.
        kind: String,
        /// `spec.version` of the component; may be empty.
        version: String,
        /// The versions in this build, for the message.
        versions: String,
    },
}

impl<T: ?Sized> Section<T> {
    /// An empty section for `category`, e.g. `state`.
    pub fn new(category: &'static str) -> Self {
        Self {
            category,
            entries: Vec::new(),
            by_name: HashMap::new(),
            elsewhere: HashMap::new(),
        }
    }

    /// The category of all entries, e.g. `state`.
    pub fn category(&self) -> &'static str {
        self.category
    }

    /// Adds an implementation, replacing an earlier one of the same name and version.
    pub fn add(&mut self, entry: Entry<T>) {
        let index = self.entries.len();
        for name in &entry.names {
            self.by_name.entry(name.clone()).or_default().insert(0, index);
        }
        self.entries.push(Arc::new(entry));
    }

    /// Registers a name, lowercase and without category, that only other builds have, with the way to get
    /// one.
    pub fn elsewhere(&mut self, name: &'static str, how: &'static str) {
        self.elsewhere.insert(name, how);
    }

    /// Whether any version of `name` exists. The name has no category; case is ignored.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(&name.to_lowercase())
    }

    /// The implementation of `kind` (`state.redis`, case ignored) in `version`.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn find(&self, kind: &str, version: &str) -> Result<Arc<Entry<T>>, LookupError> {
        let lower = kind.to_lowercase();
        let name = lower
            .strip_prefix(self.category)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or_default();
        let Some(indexes) = self.by_name.get(name) else {
            let known = self.known();
            let hint = match self.elsewhere.get(name) {
                Some(how) => format!("this build lacks it: {how}. "),
                None => only_of_dapr(kind).unwrap_or_else(|| hint(kind, known.iter().map(String::as_str))),
            };
            return Err(LookupError::UnknownType {
                category: self.category,
                kind: kind.to_owned(),
                version: version.to_owned(),
                hint,
                known: known.join(", "),
            });
        };
        let candidates = indexes.iter().map(|index| &self.entries[*index]);
        candidates
            .clone()
            .find(|entry| entry.version.matches(version))
            .cloned()
            .ok_or_else(|| LookupError::UnknownVersion {
                category: self.category,
                kind: kind.to_owned(),
                version: version.to_owned(),
                versions: candidates
                    .map(|entry| match entry.version {
                        Version::Only => "v1",
                        Version::Named { name, .. } => name,
                    })
                    .collect::<Vec<_>>()
                    .join(" or "),
            })
    }

    /// All types, sorted, with category.
    pub fn known(&self) -> Vec<String> {
        let mut known: Vec<_> = self
            .by_name
            .keys()
            .map(|name| format!("{}.{name}", self.category))
            .collect();
        known.sort_unstable();
        known
    }
}

/// Generates the catalog from a list of categories: field, trait and type prefix.
macro_rules! categories {
    ($($(#[$doc:meta])* $field:ident: $component:ident = $category:literal,)+) => {
        /// All implementations in this build.
        pub struct Catalog {
            $($(#[$doc])* pub $field: Section<dyn $component>,)+
        }

        impl Catalog {
            /// A catalog without implementations.
            pub fn empty() -> Self {
                Self { $($field: Section::new($category),)+ }
            }

            /// All types of all sections, sorted, without duplicates.
            pub fn known(&self) -> Vec<String> {
                let mut known = [$(self.$field.known()),+].concat();
                known.sort_unstable();
                known.dedup();
                known
            }

            /// Checks that some section has `kind` in `version`.
            ///
            /// # Errors
            /// Why it was not found; `None` if the category is unknown.
            pub fn check(&self, kind: &str, version: &str) -> Result<(), Option<LookupError>> {
                let mut why = None;
                $(if kind.strip_prefix($category).is_some_and(|rest| rest.starts_with('.')) {
                    match self.$field.find(kind, version) {
                        Ok(_) => return Ok(()),
                        Err(error) => why = why.or(Some(error)),
                    }
                })+
                Err(why)
            }
        }
    };
}

categories! {
    /// `state.*`
    state: StateStore = "state",
    /// `secretstores.*`
    secrets: SecretStore = "secretstores",
    /// `configuration.*`
    configuration: ConfigurationStore = "configuration",
    /// `lock.*`
    lock: LockStore = "lock",
    /// `bindings.*`, as output
    output_bindings: OutputBinding = "bindings",
    /// `bindings.*`, as input
    input_bindings: InputBinding = "bindings",
    /// `middleware.http.*`
    middleware: Middleware = "middleware.http",
    /// `crypto.*`
    crypto: CryptoProvider = "crypto",
    /// `conversation.*`
    conversation: Conversation = "conversation",
    /// `pubsub.*`
    pubsub: PubSub = "pubsub",
}

impl Catalog {
    /// The type most likely meant by a wrong one: the nearest name, or the same name in another category.
    pub fn nearest(&self, kind: &str) -> Option<String> {
        let known = self.known();
        let last = |kind: &str| kind.rsplit('.').next().map(str::to_lowercase);
        let near = nearest(kind, known.iter().map(String::as_str)).map(str::to_owned);
        near.or_else(|| known.iter().find(|known| last(known) == last(kind)).cloned())
    }
}

#[cfg(test)]
mod tests;
