//! From a Component resource to a component that works.

mod bindings;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use outrigger_component::{
    ConfigurationStore, Conversation, CryptoProvider, Entry, Error, Kind, Metadata, OutputBinding,
    SecretStore, Section, Setup, Unused, catalog::LookupError,
};
use outrigger_resources::value::format_go_duration;
use outrigger_resources::{Component, NameValue};

use super::properties::{self, Properties};
use super::{Context, LOG};
use crate::blocks::bindings::OpenedInput;
use crate::blocks::lock::{self, LockKeys};
use crate::blocks::middleware;
use crate::blocks::state::{self, Cipher, Keys, NamedKey};

/// Categories of the contract that this release has no block for.
const ABSENT: [&str; 1] = ["pubsub."];

/// Properties that belong to the sidecar, not to the component.
const OWN: [&str; 8] = [
    "actorStateStore",
    "keyPrefix",
    "outboxDiscardWhenMissingState",
    "outboxPublishPubsub",
    "outboxPublishTopic",
    "outboxPubsub",
    "primaryEncryptionKey",
    "secondaryEncryptionKey",
];

/// A component that works.
pub(super) enum Opened {
    State(state::Opened),
    Secrets(Arc<dyn SecretStore>),
    Configuration(Arc<dyn ConfigurationStore>),
    Lock(lock::Opened),
    Middleware(middleware::Opened),
    Bindings {
        input: Option<OpenedInput>,
        output: Option<Arc<dyn OutputBinding>>,
    },
    Crypto(Arc<dyn CryptoProvider>),
    Conversation(Arc<dyn Conversation>),
}

/// Why a component was not started: names it, its file and line, the cause and what helps.
#[derive(Debug)]
pub struct OpenError {
    step: Step,
    component: String,
    place: String,
    cause: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// There is no such category.
    Category,
    /// It is one too many.
    Extra,
    Create,
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
    fn at(mut self, component: &Component, value: &str) -> Self {
        self.place = component.source.of(value).to_string();
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

    /// What the component says; points at the property that it names.
    fn init(component: &Component, error: &Error) -> Self {
        let failed = Self::new(Step::Init, component, format!("{error}{}", remedy(error.kind())));
        match error.property() {
            Some(property) => failed.at(component, property),
            None => failed,
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

/// Starts one component; `secrets` is the store of its secrets.
pub(super) async fn open(
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<Opened, OpenError> {
    let create = |cause: &dyn fmt::Display| OpenError::new(Step::Create, component, cause);
    let key_prefix = |error: &dyn fmt::Display| {
        OpenError::new(Step::Init, component, format!("{error}; change keyPrefix")).at(component, "keyPrefix")
    };
    let (kind, version) = (&component.kind, &component.version);
    if kind.starts_with("state.") {
        let entry = context.catalog.state.find(kind, version);
        let entry = entry.map_err(|error| OpenError::unknown(component, &error))?;
        let properties = resolve(component, secrets, context).await?;
        let cipher = cipher(&properties).map_err(|error| create(&error))?;
        if cipher.is_some() {
            tracing::info!(
                target: LOG,
                "Automatic encryption enabled for state store {}",
                component.name
            );
        }
        let setup = setup(component, properties.items, context)?;
        let prefix = setup.metadata.text(&["keyPrefix"]);
        let keys = Keys::parse(
            prefix,
            &component.name,
            &context.app_id,
            context.namespace.as_deref(),
        )
        .map_err(|error| key_prefix(&error))?;
        let store = build(component, &entry, setup).await?;
        Ok(Opened::State(state::Opened {
            name: component.name.clone(),
            component: store,
            keys,
            cipher,
        }))
    } else if kind.starts_with("secretstores.") {
        let (entry, setup) = prepare(&context.catalog.secrets, component, secrets, context).await?;
        build(component, &entry, setup).await.map(Opened::Secrets)
    } else if kind.starts_with("configuration.") {
        let (entry, setup) = prepare(&context.catalog.configuration, component, secrets, context).await?;
        build(component, &entry, setup).await.map(Opened::Configuration)
    } else if kind.starts_with("lock.") {
        let (entry, setup) = prepare(&context.catalog.lock, component, secrets, context).await?;
        let prefix = setup.metadata.text(&["keyPrefix"]);
        let keys =
            LockKeys::parse(prefix, &component.name, &context.app_id).map_err(|error| key_prefix(&error))?;
        let component = build(component, &entry, setup).await?;
        Ok(Opened::Lock(lock::Opened { component, keys }))
    } else if kind.starts_with("middleware.") {
        let (entry, setup) = prepare(&context.catalog.middleware, component, secrets, context).await?;
        let opened = middleware::Opened {
            name: component.name.clone(),
            kind: kind.clone(),
            version: version.clone(),
            component: build(component, &entry, setup).await?,
        };
        Ok(Opened::Middleware(opened))
    } else if kind.starts_with("bindings.") {
        bindings::open(component, secrets, context).await
    } else if kind.starts_with("crypto.") {
        let (entry, setup) = prepare(&context.catalog.crypto, component, secrets, context).await?;
        build(component, &entry, setup).await.map(Opened::Crypto)
    } else if kind.starts_with("conversation.") {
        let (entry, setup) = prepare(&context.catalog.conversation, component, secrets, context).await?;
        build(component, &entry, setup).await.map(Opened::Conversation)
    } else if ABSENT.iter().any(|category| kind.starts_with(category)) {
        let text = format!("this release has no component of type {kind}: remove it, or set ignoreErrors");
        Err(create(&text).at(component, "spec.type"))
    } else {
        let near = context.catalog.nearest(kind);
        let near = near
            .map(|near| format!("did you mean {near}? "))
            .unwrap_or_default();
        let text = format!(
            "incorrect type {kind}: {near}spec.type must be a category and a name, like state.sqlite"
        );
        Err(OpenError::new(Step::Category, component, text).at(component, "spec.type"))
    }
}

/// The implementation of a component, and what it is built from.
async fn prepare<T: ?Sized>(
    section: &Section<T>,
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<(Arc<Entry<T>>, Setup), OpenError> {
    let entry = section.find(&component.kind, &component.version);
    let entry = entry.map_err(|error| OpenError::unknown(component, &error))?;
    let properties = resolve(component, secrets, context).await?;
    let setup = setup(component, properties.items, context)?;
    Ok((entry, setup))
}

/// Builds the component and says which of its properties have no effect.
async fn build<T: ?Sized>(
    component: &Component,
    entry: &Entry<T>,
    setup: Setup,
) -> Result<Arc<T>, OpenError> {
    let metadata = setup.metadata.clone();
    let built = in_time(component, entry.build(setup)).await;
    show_unused(component, &metadata, built.is_ok());
    built
}

/// Warns of the properties that nobody reads: Dapr ignores them, but often they were meant to say something. A
/// component that failed has not read all: then only those that are nearly one that it looked for are shown.
fn show_unused(component: &Component, metadata: &Metadata, built: bool) {
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
            component.log_name(),
            component.source.of(&name)
        );
    }
}

/// The properties of a component; its secret store may take as long as its own start.
async fn resolve(
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<Properties, OpenError> {
    let resolving = async {
        let properties = properties::resolve(component, secrets, context).await;
        properties.map_err(|cause| Error::new(Kind::Configuration, cause))
    };
    in_time(component, resolving).await
}

/// Waits for a component as long as its `initTimeout` says.
async fn in_time<T>(
    component: &Component,
    building: impl Future<Output = Result<T, Error>>,
) -> Result<T, OpenError> {
    match tokio::time::timeout(component.init_timeout, building).await {
        Ok(Ok(built)) => Ok(built),
        Ok(Err(error)) => Err(OpenError::init(component, &error)),
        Err(_) => {
            let cause = format!(
                "init timeout for component {} exceeded after {}; check that its server and its secret store can be \
                 reached, or raise spec.initTimeout",
                component.log_name(),
                format_go_duration(component.init_timeout)
            );
            Err(OpenError::new(Step::Init, component, cause))
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

fn setup(component: &Component, items: Vec<NameValue>, context: &Context) -> Result<Setup, OpenError> {
    let mut properties: Vec<(String, String)> = Vec::with_capacity(items.len());
    for item in items {
        let value = item.value.unwrap_or_default();
        // Of two items with the very same name the last counts.
        match properties.iter_mut().find(|(name, _)| *name == item.name) {
            Some((_, present)) => *present = value,
            None => properties.push((item.name, value)),
        }
    }
    let metadata = Metadata::new(component.name.as_str(), properties);
    Ok(Setup {
        metadata: metadata.map_err(|error| OpenError::init(component, &error.into()))?,
        app_id: context.app_id.clone(),
    })
}

/// The encryption of a state store, where it has a primary key. A key that is named but cannot be had is an error:
/// without it the values would be written as they are.
fn cipher(properties: &Properties) -> Result<Option<Cipher>, String> {
    let primary = encryption_key(properties, "primaryEncryptionKey")?;
    let secondary = encryption_key(properties, "secondaryEncryptionKey")?;
    Ok(primary.map(|primary| Cipher::new(primary, secondary)))
}

fn encryption_key(properties: &Properties, name: &str) -> Result<Option<NamedKey>, String> {
    let Some(item) = properties.items.iter().find(|item| item.name == name) else {
        return Ok(None);
    };
    let failed = |cause: &dyn fmt::Display| format!("failed to extract encryption key: {name}: {cause}");
    let Some(secret) = &item.secret else {
        return Err(failed(
            &"the key must come from a secret; use secretKeyRef instead of value",
        ));
    };
    if let Some(cause) = properties.cause(name) {
        return Err(failed(&cause));
    }
    NamedKey::parse(&secret.name, item.text())
        .map(Some)
        .map_err(|error| failed(&error))
}
