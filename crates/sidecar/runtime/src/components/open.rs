//! Opens a component from its resource.

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

/// Properties of the sidecar, not of the component.
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

/// Why a component was not started: the component, its file and line, the cause and the remedy.
#[derive(Debug)]
pub struct OpenError {
    step: Step,
    component: String,
    place: String,
    cause: String,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The category is unknown.
    Category,
    /// Only one component may have this role.
    Extra,
    /// There is no implementation, or its setup failed.
    Create,
    /// The component failed to start.
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

    /// Locates the error at a value of the component: see [`Source::of`](outrigger_resources::Source::of).
    pub fn at(mut self, component: &Component, value: &str) -> Self {
        self.place = component.source.of(value).to_string();
        self
    }

    /// Removes values of secrets: client libraries report misplaced values, such as a secret used as a host
    /// name.
    fn without_secrets(mut self, metadata: &Metadata) -> Self {
        self.cause = metadata.redact(&self.cause);
        self
    }

    /// There is no implementation. Locates the error at the type, or at the version if the type is known.
    fn unknown(component: &Component, error: &LookupError) -> Self {
        let value = match error {
            LookupError::UnknownType { .. } => "spec.type",
            LookupError::UnknownVersion { .. } => "spec.version",
        };
        Self::new(Step::Create, component, error).at(component, value)
    }

    /// The component's error, located at the property that it names.
    fn init(component: &Component, error: &Error) -> Self {
        let place = |property: Option<&str>| match property {
            Some(property) => component.source.of(property).to_string(),
            None => component.source.to_string(),
        };
        // The prefix already names the component.
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

    /// A second state store that wants to be the actor state store.
    pub(super) fn second_actor_store(first: &str, component: &Component) -> Self {
        let cause = format!(
            "detected duplicate actor state store: {first} and {}; leave actorStateStore to one of them",
            component.name
        );
        Self::new(Step::Extra, component, cause)
    }

    /// The component with type and version.
    pub fn component(&self) -> &str {
        &self.component
    }

    /// The cause, with the remedy.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// File and line.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The error for humans, starting with the cause.
    pub fn describe(&self) -> String {
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

    /// The step's label in metrics.
    pub fn reason(&self) -> &'static str {
        match self.step {
            Step::Category | Step::Create => "creation",
            Step::Extra | Step::Init => "init",
        }
    }

    /// The error in the form that ends the start, which repeats that initialisation failed. Tools match the
    /// whole text.
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

/// A component being started: its resource, its secret store, and the settings of the process.
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

/// Logs components of unknown type or version when they are not started for another reason.
pub fn show_unknown(components: &[Component], catalog: &Catalog) {
    for component in components {
        let error = match catalog.check(&component.kind, &component.version) {
            Ok(()) => continue,
            Err(Some(error)) => OpenError::unknown(component, &error),
            Err(None) => no_category(component, catalog),
        };
        tracing::error!(target: LOG, "{}", error.describe());
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

    /// The process's namespace, if it has one.
    pub fn namespace(&self) -> Option<&str> {
        self.context.namespace.as_deref()
    }

    /// The error of a failed step.
    pub fn failed(&self, step: Step, cause: impl fmt::Display) -> OpenError {
        OpenError::new(step, self.component, cause)
    }

    /// The error for an invalid property `keyPrefix`.
    pub fn bad_key_prefix(&self, error: impl fmt::Display) -> OpenError {
        self.failed(Step::Init, format!("{error}; change keyPrefix"))
            .at(self.component, "keyPrefix")
    }

    /// The component's implementation in a section of the catalog.
    pub fn find<T: ?Sized>(&self, section: &Section<T>) -> Result<Arc<Entry<T>>, OpenError> {
        let found = section.find(&self.component.kind, &self.component.version);
        found.map_err(|error| OpenError::unknown(self.component, &error))
    }

    /// Starts a component that needs only its implementation and properties.
    pub async fn start<T: ?Sized>(&self, section: &Section<T>) -> Result<Arc<T>, OpenError> {
        let (entry, setup) = self.prepare(section).await?;
        self.build(&entry, setup).await
    }

    /// The component's implementation and its setup.
    pub async fn prepare<T: ?Sized>(
        &self,
        section: &Section<T>,
    ) -> Result<(Arc<Entry<T>>, Setup), OpenError> {
        let entry = self.find(section)?;
        let properties = self.properties().await?;
        Ok((entry, self.setup(properties)?))
    }

    /// Builds the component and warns about unused properties.
    pub async fn build<T: ?Sized>(&self, entry: &Entry<T>, setup: Setup) -> Result<Arc<T>, OpenError> {
        let metadata = setup.metadata.clone();
        let built = self.build_part(entry, setup).await;
        self.show_unused(&metadata, built.is_ok());
        built
    }

    /// Builds one of several parts of a component; unused properties are known after the last one.
    pub async fn build_part<T: ?Sized>(&self, entry: &Entry<T>, setup: Setup) -> Result<Arc<T>, OpenError> {
        let metadata = setup.metadata.clone();
        let built = self.in_time(entry.build(setup)).await;
        built.map_err(|error| error.without_secrets(&metadata))
    }

    /// The properties of the component; the secret store has the same timeout as the component.
    pub async fn properties(&self) -> Result<Properties, OpenError> {
        let resolving = async {
            let properties = properties::resolve(self.component, self.secrets, self.context).await;
            properties.map_err(|cause| Error::new(Kind::Configuration, cause))
        };
        self.in_time(resolving).await
    }

    /// The setup of the component.
    pub fn setup(&self, properties: Properties) -> Result<Setup, OpenError> {
        let secret = properties.items.iter().filter(|item| item.secret.is_some());
        let secret: Vec<String> = secret.map(|item| item.name.clone()).collect();
        let metadata = Metadata::new(self.name(), last_of_each(properties.items));
        let metadata = metadata.map_err(|error| OpenError::init(self.component, &error.into()))?;
        let metadata = metadata
            .with_secrets(secret.iter().map(String::as_str))
            .with_max_answer(self.context.max_answer);
        // Set twice, the value is the same.
        let _first = self.hidden.set(metadata.secrets());
        Ok(Setup {
            metadata,
            app_id: self.context.app_id.clone(),
        })
    }

    /// The secrets that errors of the component must not contain. Empty before [`Opening::setup`].
    pub fn hidden(&self) -> Secrets {
        self.hidden.get().cloned().unwrap_or_default()
    }

    /// Waits for the component up to its `initTimeout`.
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

    /// Warns about unused properties, which Dapr ignores but users probably meant. A failed component may not
    /// have read all properties; then only likely misspellings of properties that it looked up are reported.
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

/// The remedy for errors of external systems, which do not name one.
fn remedy(kind: Kind) -> &'static str {
    match kind {
        Kind::Unavailable | Kind::Timeout => "; check that its server runs where spec.metadata says",
        Kind::Denied => "; check the credentials in spec.metadata, and what they allow",
        _ => "",
    }
}

/// Names and values; the last of items with the same name wins.
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
