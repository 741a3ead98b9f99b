//! Between components and blocks: the one place that knows which block a component belongs to.

use std::sync::Arc;
use std::time::Duration;

use outrigger_component::{
    ConfigurationStore, Conversation, CryptoProvider, InputBinding, LockStore, Middleware, OutputBinding,
    SecretStore, StateStore, secrets, state,
};

use super::LOG;
use super::open::Opened;
use crate::blocks::Blocks;
use crate::blocks::bindings::OpenedInput;
use crate::blocks::registry::Users;

/// A component in its block.
pub(super) struct Installed {
    /// What the metadata API says it can do.
    pub(super) capabilities: Vec<&'static str>,
    pub(super) parts: Vec<Part>,
}

/// What a component is in one block; most are in one block only.
pub(super) struct Part {
    users: Users,
    handle: Handle,
}

enum Handle {
    State(Arc<dyn StateStore>),
    Secrets(Arc<dyn SecretStore>),
    Configuration(Arc<dyn ConfigurationStore>),
    Lock(Arc<dyn LockStore>),
    Middleware(Arc<dyn Middleware>),
    Input(Arc<dyn InputBinding>),
    Output(Arc<dyn OutputBinding>),
    Crypto(Arc<dyn CryptoProvider>),
    Conversation(Arc<dyn Conversation>),
}

impl Blocks {
    /// Puts a component into its block, in the place of one with its name.
    pub(super) fn install(&self, name: &str, opened: Opened) -> Installed {
        match opened {
            Opened::State(store) => {
                let capabilities = state_capabilities(store.component.features());
                let handle = Handle::State(Arc::clone(&store.component));
                Installed::new(capabilities, self.state.insert(store), handle)
            }
            Opened::Secrets(store) => {
                let features = store.features().iter().copied();
                let capabilities = features.map(secrets::Feature::name).collect();
                let users = self.secrets.insert(name, Arc::clone(&store));
                Installed::new(capabilities, users, Handle::Secrets(store))
            }
            Opened::Configuration(store) => {
                let users = self.configuration.insert(name, Arc::clone(&store));
                Installed::new(Vec::new(), users, Handle::Configuration(store))
            }
            Opened::Lock(store) => {
                let handle = Handle::Lock(Arc::clone(&store.component));
                Installed::new(Vec::new(), self.locks.insert(name, store), handle)
            }
            Opened::Middleware(opened) => {
                let handle = Handle::Middleware(Arc::clone(&opened.component));
                Installed::new(Vec::new(), self.middlewares.insert(opened), handle)
            }
            Opened::Bindings { input, output } => self.install_bindings(name, input, output),
            Opened::Crypto(provider) => {
                let users = self.crypto.insert(name, Arc::clone(&provider));
                Installed::new(Vec::new(), users, Handle::Crypto(provider))
            }
            Opened::Conversation(model) => {
                let users = self.conversation.insert(name, Arc::clone(&model));
                Installed::new(Vec::new(), users, Handle::Conversation(model))
            }
        }
    }

    /// The two directions of a binding, as far as it has them.
    fn install_bindings(
        &self,
        name: &str,
        input: Option<OpenedInput>,
        output: Option<Arc<dyn OutputBinding>>,
    ) -> Installed {
        let mut installed = Installed {
            capabilities: Vec::new(),
            parts: Vec::new(),
        };
        if let Some(input) = input {
            let handle = Handle::Input(Arc::clone(&input.component));
            let users = self.bindings.insert_input(input);
            installed.capabilities.push("INPUT_BINDING");
            installed.parts.push(Part { users, handle });
        }
        if let Some(output) = output {
            let users = self.bindings.insert_output(name, Arc::clone(&output));
            let handle = Handle::Output(output);
            installed.capabilities.push("OUTPUT_BINDING");
            installed.parts.push(Part { users, handle });
        }
        installed
    }

    /// Takes a component out of a block: calls that start now do not find it.
    fn uninstall(&self, name: &str, handle: &Handle) {
        match handle {
            Handle::State(_) => self.state.remove(name),
            Handle::Secrets(_) => self.secrets.remove(name),
            Handle::Configuration(_) => self.configuration.remove(name),
            Handle::Lock(_) => self.locks.remove(name),
            Handle::Middleware(_) => self.middlewares.remove(name),
            Handle::Input(_) => self.bindings.remove_input(name),
            Handle::Output(_) => self.bindings.remove_output(name),
            Handle::Crypto(_) => self.crypto.remove(name),
            Handle::Conversation(_) => self.conversation.remove(name),
        }
    }

    /// Takes a component out of the blocks it is in, save those where `successor` took its place already.
    pub(super) fn uninstall_all(&self, name: &str, parts: &[Part], successor: &[Part]) {
        for part in parts {
            let kind = std::mem::discriminant(&part.handle);
            let replaced = successor
                .iter()
                .any(|other| std::mem::discriminant(&other.handle) == kind);
            if !replaced {
                self.uninstall(name, &part.handle);
            }
        }
    }
}

impl Handle {
    async fn close(self) {
        match self {
            Self::State(store) => store.close().await,
            Self::Secrets(store) => store.close().await,
            Self::Configuration(store) => store.close().await,
            Self::Lock(store) => store.close().await,
            Self::Middleware(middleware) => middleware.close().await,
            Self::Input(binding) => binding.close().await,
            Self::Output(binding) => binding.close().await,
            Self::Crypto(provider) => provider.close().await,
            Self::Conversation(model) => model.close().await,
        }
    }
}

impl Installed {
    fn new(capabilities: Vec<&'static str>, users: Users, handle: Handle) -> Self {
        Self {
            capabilities,
            parts: vec![Part { users, handle }],
        }
    }
}

impl Part {
    /// Closes the component when nobody uses it any more, or after `limit`.
    pub(super) async fn close(self, log_name: &str, limit: Duration) {
        if !self.users.gone(limit).await && !limit.is_zero() {
            tracing::warn!(
                target: LOG,
                "component {log_name} is closed while calls still use it: they took longer than {limit:?}"
            );
        }
        self.handle.close().await;
    }
}

fn state_capabilities(features: &[state::Feature]) -> Vec<&'static str> {
    let mut names: Vec<_> = features.iter().map(|feature| feature.name()).collect();
    let has = |feature| features.contains(&feature);
    if has(state::Feature::Etag) && has(state::Feature::Transactional) {
        names.push("ACTOR");
    }
    names
}
