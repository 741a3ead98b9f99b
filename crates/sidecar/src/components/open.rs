//! From a Component resource to a component that works.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use outrigger_component::{
    ConfigurationStore, Conversation, CryptoProvider, Entry, Error, Metadata, SecretStore, Section, Setup,
};
use outrigger_resources::value::format_go_duration;
use outrigger_resources::{Component, NameValue};

use super::{Context, LOG, properties};
use crate::blocks::lock::{self, LockKeys};
use crate::blocks::state::{self, Cipher, Keys, NamedKey};

/// Categories of the contract that this release has no block for.
const ABSENT: [&str; 3] = ["bindings.", "pubsub.", "middleware."];

/// A component that works.
pub(super) enum Opened {
    State(state::Opened),
    Secrets(Arc<dyn SecretStore>),
    Configuration(Arc<dyn ConfigurationStore>),
    Lock(lock::Opened),
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

    /// The step as metrics name it.
    pub fn reason(&self) -> &'static str {
        match self.step {
            Step::Category | Step::Create => "creation",
            Step::Init => "init",
        }
    }

    /// The error as the one that ends the start shows it: around what went wrong stands once more that it is an
    /// initialisation that failed. Tools match the whole.
    pub fn start(&self) -> String {
        match self.step {
            Step::Category => self.to_string(),
            Step::Create | Step::Init => {
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
            Step::Category => return write!(f, "{cause} ({place})"),
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
    let init = |cause: &dyn fmt::Display| OpenError::new(Step::Init, component, cause);
    let (kind, version) = (&component.kind, &component.version);
    if kind.starts_with("state.") {
        let entry = context.catalog.state.find(kind, version);
        let entry = entry.map_err(|error| create(&error))?;
        let items = properties::resolve(component, secrets, context).await;
        let items = items.map_err(|error| init(&error))?;
        let cipher = match secrets {
            Some(_) => cipher(&items).map_err(|error| create(&error))?,
            None => None,
        };
        if cipher.is_some() {
            tracing::info!(
                target: LOG,
                "Automatic encryption enabled for state store {}",
                component.name
            );
        }
        let setup = setup(component, items, context).map_err(|error| init(&error))?;
        let prefix = setup.metadata.text(&["keyPrefix"]);
        let keys = Keys::parse(
            prefix,
            &component.name,
            &context.app_id,
            context.namespace.as_deref(),
        )
        .map_err(|error| init(&format!("{error}; change keyPrefix")))?;
        let store = in_time(component, entry.build(setup)).await?;
        Ok(Opened::State(state::Opened {
            name: component.name.clone(),
            component: store,
            keys,
            cipher,
        }))
    } else if kind.starts_with("secretstores.") {
        let (entry, setup) = prepare(&context.catalog.secrets, component, secrets, context).await?;
        in_time(component, entry.build(setup)).await.map(Opened::Secrets)
    } else if kind.starts_with("configuration.") {
        let (entry, setup) = prepare(&context.catalog.configuration, component, secrets, context).await?;
        in_time(component, entry.build(setup))
            .await
            .map(Opened::Configuration)
    } else if kind.starts_with("lock.") {
        let (entry, setup) = prepare(&context.catalog.lock, component, secrets, context).await?;
        let prefix = setup.metadata.text(&["keyPrefix"]);
        let keys = LockKeys::parse(prefix, &component.name, &context.app_id)
            .map_err(|error| init(&format!("{error}; change keyPrefix")))?;
        let component = in_time(component, entry.build(setup)).await?;
        Ok(Opened::Lock(lock::Opened { component, keys }))
    } else if kind.starts_with("crypto.") {
        let (entry, setup) = prepare(&context.catalog.crypto, component, secrets, context).await?;
        in_time(component, entry.build(setup)).await.map(Opened::Crypto)
    } else if kind.starts_with("conversation.") {
        let (entry, setup) = prepare(&context.catalog.conversation, component, secrets, context).await?;
        in_time(component, entry.build(setup))
            .await
            .map(Opened::Conversation)
    } else if ABSENT.iter().any(|category| kind.starts_with(category)) {
        let text = format!("this release has no component of type {kind}: remove it, or set ignoreErrors");
        Err(create(&text))
    } else {
        let text =
            format!("incorrect type {kind}: spec.type must be a category and a name, like state.sqlite");
        Err(OpenError::new(Step::Category, component, text))
    }
}

/// The implementation of a component, and what it is built from.
async fn prepare<T: ?Sized>(
    section: &Section<T>,
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<(Arc<Entry<T>>, Setup), OpenError> {
    let init = |cause: &dyn fmt::Display| OpenError::new(Step::Init, component, cause);
    let entry = section.find(&component.kind, &component.version);
    let entry = entry.map_err(|error| OpenError::new(Step::Create, component, error))?;
    let items = properties::resolve(component, secrets, context).await;
    let items = items.map_err(|error| init(&error))?;
    let setup = setup(component, items, context).map_err(|error| init(&error))?;
    Ok((entry, setup))
}

/// Waits for a component as long as its `initTimeout` says.
async fn in_time<T>(
    component: &Component,
    building: impl Future<Output = Result<T, Error>>,
) -> Result<T, OpenError> {
    let failed = |cause: &dyn fmt::Display| OpenError::new(Step::Init, component, cause);
    match tokio::time::timeout(component.init_timeout, building).await {
        Ok(Ok(built)) => Ok(built),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(failed(&format!(
            "init timeout for component {} exceeded after {}; check that its server can be reached, or raise \
             spec.initTimeout",
            component.log_name(),
            format_go_duration(component.init_timeout)
        ))),
    }
}

fn setup(component: &Component, items: Vec<NameValue>, context: &Context) -> Result<Setup, Error> {
    let mut properties: Vec<(String, String)> = Vec::with_capacity(items.len());
    for item in items {
        let value = item.value.unwrap_or_default();
        // Of two items with the very same name the last counts.
        match properties.iter_mut().find(|(name, _)| *name == item.name) {
            Some((_, present)) => *present = value,
            None => properties.push((item.name, value)),
        }
    }
    Ok(Setup {
        metadata: Metadata::new(component.name.as_str(), properties)?,
        app_id: context.app_id.clone(),
    })
}

/// The encryption of a state store, where its primary key has a value.
fn cipher(items: &[NameValue]) -> Result<Option<Cipher>, String> {
    let primary = encryption_key(items, "primaryEncryptionKey")?;
    let secondary = encryption_key(items, "secondaryEncryptionKey")?;
    Ok(primary.map(|primary| Cipher::new(primary, secondary)))
}

fn encryption_key(items: &[NameValue], name: &str) -> Result<Option<NamedKey>, String> {
    let Some(item) = items.iter().find(|item| item.name == name) else {
        return Ok(None);
    };
    let failed = |cause: &dyn fmt::Display| format!("failed to extract encryption key: {name}: {cause}");
    let Some(secret) = &item.secret else {
        return Err(failed(
            &"the key must come from a secret; use secretKeyRef instead of value",
        ));
    };
    match item.value.as_deref().filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(hex) => NamedKey::parse(&secret.name, hex)
            .map(Some)
            .map_err(|error| failed(&error)),
    }
}
