//! From a Component resource to a component that works.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, SecretStore, Section, Setup, Unused, catalog::LookupError,
};
use outrigger_redact::Secrets;
use outrigger_resources::value::format_go_duration;
use outrigger_resources::{Component, NameValue};

use super::category::{Category, Opened};
use super::properties::{self, Properties};
use super::{Context, LOG};

/// Properties that belong to the sidecar, not to the component.
const OWN: [&str; 13] = [
    "actorStateStore",
    "allowedTopics",
    "consumerID",
    "keyPrefix",
    "outboxDiscardWhenMissingState",
    "outboxPublishPubsub",
    "outboxPublishTopic",
    "outboxPubsub",
    "primaryEncryptionKey",
    "protectedTopics",
    "publishingScopes",
    "secondaryEncryptionKey",
    "subscriptionScopes",
];

/// Why a component was not started: names it, its file and line, the cause and what helps.
#[derive(Debug)]
pub struct OpenError {
    step: Step,
    component: String,
    place: String,
    cause: String,
}

/// Where a start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is no such category.
    Category,
    /// Another component has the role that only one can have.
    Extra,
    /// There is no implementation, or it cannot be set up.
    Create,
    /// The component itself did not start.
    Init,
}

impl OpenError {
    fn new(step: Step, component: &Component, cause: impl fmt::Display) -> Self {
        Self {
            step,
            component: component.log_name(),
            place: component.source.to_string(),
            cause: cause.to_string(),
        }
    }

    /// The same at a value of the component: see [`Source::of`](outrigger_resources::Source::of).
    pub fn at(mut self, component: &Component, value: &str) -> Self {
        self.place = component.source.of(value).to_string();
        self
    }

    /// The same without what came from a secret store: a value in the wrong place, as of a host, is told by clients.
    fn without_secrets(mut self, metadata: &Metadata) -> Self {
        self.cause = metadata.redact(&self.cause);
        self
    }

    /// There is no implementation: points at the type, or at the version of a type that is known.
    fn unknown(component: &Component, error: &LookupError) -> Self {
        let value = match error {
            LookupError::UnknownType { .. } => "spec.type",
            LookupError::UnknownVersion { .. } => "spec.version",
        };
        Self::new(Step::Create, component, error).at(component, value)
    }

    /// What the component says; points at the properties that it names.
    fn init(component: &Component, error: &Error) -> Self {
        let place = |property: Option<&str>| match property {
            Some(property) => component.source.of(property).to_string(),
            None => component.source.to_string(),
        };
        // Which component it is stands in front, once.
        let own = format!("component {}: ", component.name);
        let each = error.each().map(|(text, property)| {
            let bare = text.strip_prefix(&own).unwrap_or(&text).to_owned();
            (bare, property)
        });
        let mut all: Vec<_> = each.collect();
        let (last, property) = all.pop().unwrap_or_default();
        let before: String = all
            .into_iter()
            .map(|(text, property)| format!("{text} ({}); ", place(property)))
            .collect();
        let cause = format!("{before}{last}{}", remedy(error.kind()));
        Self {
            place: place(property),
            ..Self::new(Step::Init, component, cause)
        }
    }

    /// A state store that wants to be the one of actors beside `first`.
    pub(super) fn second_actor_store(first: &str, component: &Component) -> Self {
        let cause = format!(
            "detected duplicate actor state store: {first} and {}; leave actorStateStore to one of them",
            component.name
        );
        Self::new(Step::Extra, component, cause)
    }

    /// The component, with type and version.
    pub fn component(&self) -> &str {
        &self.component
    }

    /// What went wrong, with what helps.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// File and line.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The error for people: what went wrong comes first.
    pub fn told(&self) -> String {
        let Self {
            step,
            component,
            place,
            cause,
        } = self;
        let code = match step {
            Step::Category => "",
            Step::Create => " [CREATE_COMPONENT_FAILURE]",
            Step::Extra | Step::Init => " [INIT_COMPONENT_FAILURE]",
        };
        format!("{cause} ({place}): component {component} did not start{code}")
    }

    /// The step as metrics name it.
    pub fn reason(&self) -> &'static str {
        match self.step {
            Step::Category | Step::Create => "creation",
            Step::Extra | Step::Init => "init",
        }
    }

    /// The error as the one that ends the start shows it: around what went wrong stands once more that it is an
    /// initialisation that failed. Tools match the whole.
    pub fn start(&self) -> String {
        match self.step {
            Step::Category => self.to_string(),
            Step::Extra | Step::Create | Step::Init => {
                format!(
                    "[INIT_COMPONENT_FAILURE]: initialization error occurred for {}: {self}",
                    self.component
                )
            }
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            component,
            place,
            cause,
        } = self;
        let code = match step {
            Step::Category | Step::Extra => return write!(f, "{cause} ({place})"),
            Step::Create => "CREATE_COMPONENT_FAILURE",
            Step::Init => "INIT_COMPONENT_FAILURE",
        };
        write!(
            f,
            "[{code}]: initialization error occurred for {component}: {cause} ({place})"
        )
    }
}

impl std::error::Error for OpenError {}

/// A component that is being started: its resource, the store of its secrets, and what the process gives all of them.
pub struct Opening<'a> {
    /// The resource.
    pub component: &'a Component,
    pub(super) secrets: Option<&'a dyn SecretStore>,
    pub(super) context: &'a Context,
    pub(super) hidden: OnceLock<Secrets>,
}

/// Starts a component in its category.
pub(super) async fn open(
    opening: &Opening<'_>,
    categories: &[Arc<dyn Category>],
) -> Result<Opened, OpenError> {
    let kind = &opening.component.kind;
    let is_of = |category: &str| {
        kind.strip_prefix(category)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    if let Some(category) = categories.iter().find(|category| is_of(category.name())) {
        return Arc::clone(category).open(opening).await;
    }
    Err(no_category(opening.component, &opening.context.catalog))
}

fn no_category(component: &Component, catalog: &Catalog) -> OpenError {
    let kind = &component.kind;
    let near = catalog.nearest(kind);
    let near = near
        .map(|near| format!("did you mean {near}? "))
        .unwrap_or_default();
    let text =
        format!("incorrect type {kind}: {near}spec.type must be a category and a name, like state.sqlite");
    OpenError::new(Step::Category, component, text).at(component, "spec.type")
}

/// Logs the components of a type or version that there is not, when they are not started for another reason.
pub fn show_unknown(components: &[Component], catalog: &Catalog) {
    for component in components {
        let error = match catalog.check(&component.kind, &component.version) {
            Ok(()) => continue,
            Err(Some(error)) => OpenError::unknown(component, &error),
            Err(None) => no_category(component, catalog),
        };
        tracing::error!(target: LOG, "{}", error.told());
    }
}

impl Opening<'_> {
    /// The component's name.
    pub fn name(&self) -> &str {
        &self.component.name
    }

    /// The components of this build.
    pub fn catalog(&self) -> &Catalog {
        &self.context.catalog
    }

    /// The app's id.
    pub fn app_id(&self) -> &str {
        &self.context.app_id
    }

    /// The process's namespace, where it has one.
    pub fn namespace(&self) -> Option<&str> {
        self.context.namespace.as_deref()
    }

    /// Why the component was not started.
    pub fn failed(&self, step: Step, cause: impl fmt::Display) -> OpenError {
        OpenError::new(step, self.component, cause)
    }

    /// The same, at the property `keyPrefix`.
    pub fn bad_key_prefix(&self, error: impl fmt::Display) -> OpenError {
        self.failed(Step::Init, format!("{error}; change keyPrefix"))
            .at(self.component, "keyPrefix")
    }

    /// The implementation of the component in a section of the catalog.
    pub fn find<T: ?Sized>(&self, section: &Section<T>) -> Result<Arc<Entry<T>>, OpenError> {
        let found = section.find(&self.component.kind, &self.component.version);
        found.map_err(|error| OpenError::unknown(self.component, &error))
    }

    /// Starts a component that needs nothing but its implementation and its properties.
    pub async fn start<T: ?Sized>(&self, section: &Section<T>) -> Result<Arc<T>, OpenError> {
        let (entry, setup) = self.prepare(section).await?;
        self.build(&entry, setup).await
    }

    /// The implementation of the component, and what it is built from.
    pub async fn prepare<T: ?Sized>(
        &self,
        section: &Section<T>,
    ) -> Result<(Arc<Entry<T>>, Setup), OpenError> {
        let entry = self.find(section)?;
        let properties = self.properties().await?;
        Ok((entry, self.setup(properties)?))
    }

    /// Builds the component and says which of its properties have no effect.
    pub async fn build<T: ?Sized>(&self, entry: &Entry<T>, setup: Setup) -> Result<Arc<T>, OpenError> {
        let metadata = setup.metadata.clone();
        let built = self.build_part(entry, setup).await;
        self.show_unused(&metadata, built.is_ok());
        built
    }

    /// Builds one of the parts that a component has: which properties have no effect is known after the last.
    pub async fn build_part<T: ?Sized>(&self, entry: &Entry<T>, setup: Setup) -> Result<Arc<T>, OpenError> {
        let metadata = setup.metadata.clone();
        let built = self.in_time(entry.build(setup)).await;
        built.map_err(|error| error.without_secrets(&metadata))
    }

    /// The properties of the component; its secret store may take as long as its own start.
    pub async fn properties(&self) -> Result<Properties, OpenError> {
        let resolving = async {
            let properties = properties::resolve(self.component, self.secrets, self.context).await;
            properties.map_err(|cause| Error::new(Kind::Configuration, cause))
        };
        self.in_time(resolving).await
    }

    /// What the component is built from.
    pub fn setup(&self, properties: Properties) -> Result<Setup, OpenError> {
        let secret = properties.items.iter().filter(|item| item.secret.is_some());
        let secret: Vec<String> = secret.map(|item| item.name.clone()).collect();
        let metadata = Metadata::new(self.name(), last_of_each(properties.items));
        let metadata = metadata.map_err(|error| OpenError::init(self.component, &error.into()))?;
        let metadata = metadata
            .with_secrets(secret.iter().map(String::as_str))
            .with_max_answer(self.context.max_answer);
        // Of a component that is set up twice they are the same.
        let _first = self.hidden.set(metadata.secrets());
        Ok(Setup {
            metadata,
            app_id: self.context.app_id.clone(),
        })
    }

    /// What errors of the component must not show: properties that came from a secret store. None before [`Opening::setup`].
    pub fn hidden(&self) -> Secrets {
        self.hidden.get().cloned().unwrap_or_default()
    }

    /// Waits for the component as long as its `initTimeout` says.
    async fn in_time<T>(&self, building: impl Future<Output = Result<T, Error>>) -> Result<T, OpenError> {
        let component = self.component;
        match tokio::time::timeout(component.init_timeout, building).await {
            Ok(Ok(built)) => Ok(built),
            Ok(Err(error)) => Err(OpenError::init(component, &error)),
            Err(_) => Err(self.failed(
                Step::Init,
                format!(
                    "init timeout for component {} exceeded after {}; check that its server and its secret store can \
                     be reached, or raise spec.initTimeout",
                    component.log_name(),
                    format_go_duration(component.init_timeout)
                ),
            )),
        }
    }

    /// Warns of the properties that nobody reads: Dapr ignores them, but often they were meant to say something. A
    /// component that failed has not read all: then only those that are nearly one that it looked for are shown.
    pub fn show_unused(&self, metadata: &Metadata, built: bool) {
        for Unused { name, near } in metadata.unused() {
            if OWN.iter().any(|own| own.eq_ignore_ascii_case(&name)) {
                continue;
            }
            let remedy = match near {
                Some(near) => format!("did you mean {near}?"),
                None if built => "check its name, or remove it".to_owned(),
                None => continue,
            };
            tracing::warn!(
                target: LOG,
                "component {}: the property {name} is not used ({}: {remedy})",
                self.component.log_name(),
                self.component.source.of(&name)
            );
        }
    }
}

/// What helps against errors that do not say so themselves: outside systems wrote them.
fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Unavailable | Kind::Timeout => "; check that its server runs where spec.metadata says",
        Kind::Denied => "; check the credentials in spec.metadata, and what they allow",
        _ => "",
    }
}

/// Names and values; of two items with the very same name the last counts.
fn last_of_each(items: Vec<NameValue>) -> Vec<(String, String)> {
    let mut properties: Vec<(String, String)> = Vec::with_capacity(items.len());
    for item in items {
        let value = item.value.unwrap_or_default();
        match properties.iter_mut().find(|(name, _)| *name == item.name) {
            Some((_, present)) => *present = value,
            None => properties.push((item.name, value)),
        }
    }
    properties
}
