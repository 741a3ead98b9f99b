//! Which implementation a component's `spec.type` and `spec.version` mean.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
};

use futures::future::BoxFuture;
use outrigger_nearest::{hint, nearest};

use crate::{
    ConfigurationStore, Conversation, CryptoProvider, Error, InputBinding, Kind, LockStore, Metadata,
    Middleware, OutputBinding, PubSub, Result, SecretStore, StateStore,
};

/// What a component is built from.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Properties, and the component's name.
    pub metadata: Metadata,
    /// The app the sidecar serves.
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
    /// Empty, `v0` and `v1` all mean this one: types with a single version.
    Only,
    /// The named one and, when it is the default of its type, the empty text.
    Named {
        /// E.g. `v2`.
        name: &'static str,
        /// Whether the empty text means it.
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

    /// Builds and initialises the component: when it returns, the component works.
    ///
    /// # Errors
    /// With all values of properties that are wrong, as far as they are read before anything is waited for.
    pub async fn build(&self, setup: Setup) -> Result<Arc<T>> {
        let metadata = setup.metadata.clone();
        metadata.collect();
        let mut building = (self.build)(setup);
        let built = poll_fn(|context| match building.as_mut().poll(context) {
            // With a wrong value left out it must not go on: to connect, or to write.
            Poll::Pending if metadata.has_collected() => Poll::Ready(None),
            polled => polled.map(Some),
        });
        let built = built.await;
        // What it started ends with it.
        drop(building);
        let collected = metadata.collected();
        let mut wrong: Vec<Error> = collected.into_iter().map(Error::from).collect();
        match built {
            Some(built) if wrong.is_empty() => built,
            Some(Err(error)) if error.kind() == Kind::Configuration => {
                if wrong.iter().all(|wrong| wrong.property() != error.property()) {
                    wrong.push(error);
                }
                Err(Error::all(wrong))
            }
            // What else failed may have done so because a value was left out.
            _ => Err(Error::all(wrong)),
        }
    }
}

/// The implementations of a category.
pub struct Section<T: ?Sized> {
    category: &'static str,
    entries: Vec<Arc<Entry<T>>>,
    by_name: HashMap<String, Vec<usize>>,
    /// What other builds have, by name, and how to get one.
    elsewhere: HashMap<&'static str, &'static str>,
}

/// Why there is no implementation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The type is not known here.
    #[error("couldn't find {category} component {kind}/{version}: {hint}this build has {known}")]
    UnknownType {
        /// E.g. `state`.
        category: &'static str,
        /// `spec.type` of the component, with category.
        kind: String,
        /// `spec.version` of the component; may be empty.
        version: String,
        /// The type that was meant, as far as one can tell: `did you mean state.redis? `; or how to get a build that has it.
        hint: String,
        /// The types that this build has, for the message.
        known: String,
    },
    /// The type is, the version is not.
    #[error("couldn't find {category} component {kind}/{version}: set spec.version to {versions}")]
    UnknownVersion {
        /// E.g. `state`.
        category: &'static str,
        /// `spec.type` of the component, with category.
        kind: String,
        /// `spec.version` of the component; may be empty.
        version: String,
        /// The versions that this build has, for the message.
        versions: String,
    },
}

impl<T: ?Sized> Section<T> {
    /// The empty section of `category`, e.g. `state`.
    pub fn new(category: &'static str) -> Self {
        Self {
            category,
            entries: Vec::new(),
            by_name: HashMap::new(),
            elsewhere: HashMap::new(),
        }
    }

    /// The category that all entries belong to, e.g. `state`.
    pub fn category(&self) -> &'static str {
        self.category
    }

    /// Adds an implementation; a later one wins over an earlier one of the same name and version.
    pub fn add(&mut self, entry: Entry<T>) {
        let index = self.entries.len();
        for name in &entry.names {
            self.by_name.entry(name.clone()).or_default().insert(0, index);
        }
        self.entries.push(Arc::new(entry));
    }

    /// Says of a name, without category and in lower case, that other builds have it, and how to get one.
    pub fn elsewhere(&mut self, name: &'static str, how: &'static str) {
        self.elsewhere.insert(name, how);
    }

    /// Whether there is an implementation of this name, without category, in any version; any case.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(&name.to_lowercase())
    }

    /// The implementation of `kind` (`state.redis`, any case) in `version`.
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
                None => hint(kind, known.iter().map(String::as_str)),
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

/// The catalog from the list of categories: a field, the trait of its components, and how their types begin.
macro_rules! categories {
    ($($(#[$doc:meta])* $field:ident: $component:ident = $category:literal,)+) => {
        /// All implementations of a build.
        pub struct Catalog {
            $($(#[$doc])* pub $field: Section<dyn $component>,)+
        }

        impl Catalog {
            /// Without any implementation.
            pub fn empty() -> Self {
                Self { $($field: Section::new($category),)+ }
            }

            /// All types of all sections, sorted, each once.
            pub fn known(&self) -> Vec<String> {
                let mut known = [$(self.$field.known()),+].concat();
                known.sort_unstable();
                known.dedup();
                known
            }

            /// Whether there is an implementation of `kind` in `version`, in any section.
            ///
            /// # Errors
            /// Why there is none; nothing where no category is meant.
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
    /// The type that a wrong one was meant to be: the nearest, else one whose name is the same in another category.
    pub fn nearest(&self, kind: &str) -> Option<String> {
        let known = self.known();
        let last = |kind: &str| kind.rsplit('.').next().map(str::to_lowercase);
        let near = nearest(kind, known.iter().map(String::as_str)).map(str::to_owned);
        near.or_else(|| known.iter().find(|known| last(known) == last(kind)).cloned())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::executor::block_on;

    use super::*;
    use crate::Unit;

    /// The texts of the error of a component that reads `a`, `b` and `c` and then does `more`, and the properties.
    fn wrong<R>(more: fn(Metadata) -> R) -> Vec<(String, Option<String>)>
    where
        R: Future<Output = Result<()>> + Send + 'static,
    {
        let entry: Entry<dyn StateStore> =
            Entry::new(&["x"], Version::Only, move |setup: Setup| async move {
                let (metadata, second) = (setup.metadata, Duration::from_secs(1));
                let _number: Option<u8> = metadata.number(&["a"])?;
                let _duration = metadata.duration(&["b"], Unit::Seconds)?;
                let _span = metadata.span(&["c"], second, second)?;
                more(metadata).await?;
                Err(Error::new(Kind::Internal, "built"))
            });
        let given = [("a", "300"), ("b", "soon"), ("c", "1ms")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let setup = Setup {
            metadata: Metadata::new("x", given).unwrap(),
            app_id: String::new(),
        };
        let metadata = setup.metadata.clone();
        let error = block_on(entry.build(setup)).map(drop).unwrap_err();
        assert!(metadata.number::<u8>(&["a"]).is_err(), "only while it is built");
        let each = error.each();
        each.map(|(text, property)| (text, property.map(str::to_owned)))
            .collect()
    }

    #[test]
    fn every_wrong_value_is_told_and_nothing_is_done_without_it() {
        let about = |told: Vec<(String, Option<String>)>| -> Vec<Option<String>> {
            told.into_iter().map(|(_, property)| property).collect()
        };
        let all = ["a", "b", "c"].map(|name| Some(name.to_owned()));
        // A component that would wait, one that fails because of what was left out, and one that would work.
        assert_eq!(about(wrong(|_| std::future::pending())), all);
        assert_eq!(
            about(wrong(|_| async { Err(Error::new(Kind::Unavailable, "away")) })),
            all
        );
        assert_eq!(about(wrong(|_| async { Ok(()) })), all);
        let told = wrong(|metadata| async move { Ok(metadata.required(&["d"]).map(drop)?) });
        assert_eq!(about(told)[2..], [Some("c".to_owned()), Some("d".to_owned())]);
        let told = wrong(|metadata| async move { Err(metadata.wrong(&["a"], "something else").into()) });
        assert_eq!(told.len(), 3, "each property once: {told:?}");
    }

    fn section() -> Section<dyn StateStore> {
        let mut section: Section<dyn StateStore> = Section::new("state");
        let fail = |text: &'static str| move |_| async move { Err(Error::new(Kind::Internal, text)) };
        section.add(Entry::new(&["sqlite", "sqlite3"], Version::Only, fail("sqlite")));
        for (name, default) in [("v1", true), ("v2", false)] {
            section.add(Entry::new(
                &["postgresql"],
                Version::Named { name, default },
                fail(name),
            ));
        }
        section
    }

    #[test]
    fn what_another_build_has_is_told() {
        let mut section = section();
        section.elsewhere("mongodb", "build with the feature mongodb");
        let error = section
            .find("State.MongoDB", "v1")
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("v1: this build lacks it: build with the feature mongodb. this build has state."),
            "{error}"
        );
        assert!(!section.has("mongodb"));
    }

    #[test]
    fn a_wrong_type_is_told_the_one_meant() {
        let hinted = |kind: &str| match section().find(kind, "v1") {
            Err(LookupError::UnknownType { hint, .. }) => hint,
            other => panic!("{kind}: {:?}", other.err()),
        };
        assert_eq!(hinted("state.sqlit"), "did you mean state.sqlite? ");
        assert_eq!(hinted("state.postgres"), "did you mean state.postgresql? ");
        assert_eq!(hinted("state.mongodb"), "");
        let mut catalog = Catalog::empty();
        catalog.state = section();
        assert_eq!(catalog.nearest("stat.sqlite").as_deref(), Some("state.sqlite"));
        assert_eq!(catalog.nearest("sqlite3").as_deref(), Some("state.sqlite3"));
        assert_eq!(catalog.nearest("kafka"), None);
        let unknown = |kind, version| catalog.check(kind, version).unwrap_err().map(|e| e.to_string());
        assert!(
            unknown("state.sqlit", "v1")
                .unwrap()
                .contains("did you mean state.sqlite?")
        );
        assert!(
            unknown("state.sqlite", "v9")
                .unwrap()
                .contains("set spec.version to v1")
        );
        assert_eq!(unknown("stat.sqlite", "v1"), None);
        catalog.check("state.sqlite", "v1").unwrap();
    }

    async fn built(section: &Section<dyn StateStore>, kind: &str, version: &str) -> String {
        let setup = Setup {
            metadata: Metadata::new("store", []).unwrap(),
            app_id: "app".to_owned(),
        };
        match section.find(kind, version) {
            Ok(entry) => match entry.build(setup).await {
                Ok(_) => unreachable!("the factories of this test fail"),
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn types_have_aliases_and_any_case() {
        let section = section();
        for kind in ["state.sqlite", "STATE.SQLite3"] {
            for version in ["", "v0", "V1"] {
                assert_eq!(built(&section, kind, version).await, "sqlite");
            }
        }
    }

    #[tokio::test]
    async fn versions_select_and_the_empty_one_is_the_default() {
        let section = section();
        assert_eq!(built(&section, "state.postgresql", "").await, "v1");
        assert_eq!(built(&section, "state.postgresql", "v2").await, "v2");
        let error = built(&section, "state.postgresql", "v0").await;
        assert!(
            error.contains("state.postgresql/v0") && error.contains("v2 or v1"),
            "{error}"
        );
        let error = built(&section, "state.sqlite", "v2").await;
        assert!(error.contains("set spec.version to v1"), "{error}");
    }

    #[tokio::test]
    async fn unknown_types_say_what_there_is() {
        let section = section();
        for kind in ["state.nosuch", "pubsub.sqlite", "sqlite", "state."] {
            let error = built(&section, kind, "v1").await;
            assert!(error.contains("state.sqlite3"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_later_entry_replaces_an_earlier_one() {
        let mut section = section();
        section.add(Entry::new(&["sqlite"], Version::Only, |_| async {
            Err(Error::new(Kind::Internal, "pluggable"))
        }));
        assert_eq!(built(&section, "state.sqlite", "v1").await, "pluggable");
        assert_eq!(built(&section, "state.sqlite3", "v1").await, "sqlite");
    }
}
